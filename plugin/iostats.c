/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many requests have clients made of each export, and how long did they take?
 *
 * Each connection counts its own requests, and in it each thread: so that threads do not
 * fight for memory, the counts of each are on cache lines of their own, and a thread that
 * shares its number with no other one only loads and stores.  When a connection ends, its
 * counts go to its export.
 *
 * Any number of images may be in a directory, and each has many exports.  So only the
 * last MOST_IDLE exports are kept that no connection uses.
 *
 * Locks: `lock' guards the lists.  Counters are atomic.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/epoch.h"
#include "util/memory.h"
#include "plugin/iostats.h"

#define MOST_IDLE 256

const char *const iostats_words[IOSTATS_KINDS] = {
  [IOSTATS_READ] = "read", [IOSTATS_WRITE] = "write", [IOSTATS_TRIM] = "trim",
  [IOSTATS_ZERO] = "zero", [IOSTATS_FLUSH] = "flush", [IOSTATS_CACHE] = "cache",
  [IOSTATS_EXTENTS] = "extents",
};

#define US UINT64_C (1000)
#define MS (1000 * US)
#define S (1000 * MS)
const uint64_t iostats_bounds[IOSTATS_BOUNDS] = {
  5 * US, 10 * US, 20 * US, 50 * US, 100 * US, 200 * US, 500 * US,
  1 * MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS,
  1 * S, 2 * S, 5 * S, 10 * S,
};

/* Of a thread; or of several, which have the same number. */
struct shard {
  struct {
    _Alignas (64) _Atomic uint64_t begun;
    _Atomic uint64_t operations, bytes, failed, refused, ns;
    _Atomic uint64_t times[IOSTATS_BOUNDS + 1];
  } of[IOSTATS_KINDS];
  _Atomic uint64_t highest;
};

struct iostats_client {
  struct iostats_client *next;
  struct counted *counted;
  _Atomic (struct shard *) shards[EPOCH_THREADS];       /* NULL: that one counted
                                                           nothing */
};

/* An export. */
struct counted {
  struct counted *next;
  struct iostats_client *clients;
  struct iocounts past;         /* of connections that have ended; and how many came */
  const char *export;           /* a part of: */
  char device[];                /* with its NUL, and then the export */
};

struct iostats {
  pthread_mutex_t lock;
  struct counted *all;          /* in order of use, the last one first; under lock, as are
                                   their lists and `past' */
};

struct iostats *
iostats_new (void)
{
  struct iostats *s = memory_new (1, sizeof *s);

  if (s)
    pthread_mutex_init (&s->lock, NULL);
  return s;
}

void
iostats_free (struct iostats *s)
{
  struct counted *c;

  if (s == NULL)
    return;
  while ((c = s->all) != NULL) {
    s->all = c->next;
    free (c);
  }
  pthread_mutex_destroy (&s->lock);
  free (s);
}

/* --- connections; with the lock held --- */

/* Takes it out of the list.  NULL: it is not there. */
static struct counted *
take_out (struct iostats *s, const char *device, const char *export)
{
  struct counted **link = &s->all, *c;

  while ((c = *link) && (strcmp (c->device, device) != 0 ||
                         strcmp (c->export, export) != 0))
    link = &c->next;
  if (c)
    *link = c->next;
  return c;
}

static struct counted *
new_counted (const char *device, const char *export)
{
  const size_t n = strlen (device) + 1;
  struct counted *c = calloc (1, sizeof *c + n + strlen (export) + 1);

  if (c == NULL)
    return NULL;
  memcpy (c->device, device, n);
  c->export = strcpy (c->device + n, export);
  return c;
}

/* The last one in use comes first. */
static struct counted *
find_or_add (struct iostats *s, const char *device, const char *export)
{
  struct counted *c = take_out (s, device, export);

  if (c == NULL)
    c = new_counted (device, export);
  if (c) {
    c->next = s->all;
    s->all = c;
  }
  return c;
}

static void
forget_idle (struct iostats *s)
{
  unsigned n = 0;

  for (struct counted **link = &s->all, *c; (c = *link) != NULL; ) {
    if (c->clients || ++n <= MOST_IDLE) {
      link = &c->next;
      continue;
    }
    *link = c->next;
    free (c);
  }
}

/* (What has ended is looked at before what has begun, so that there are never less.) */
static void
add_shard (struct iocounts *sum, const struct shard *s)
{
  for (int i = 0; i < IOSTATS_KINDS; i++) {
    const uint64_t operations = s->of[i].operations, failed = s->of[i].failed;
    const uint64_t refused = s->of[i].refused;

    sum->of[i].operations += operations;
    sum->of[i].failed += failed;
    sum->of[i].bytes += s->of[i].bytes;
    sum->of[i].ns += s->of[i].ns;
    for (int t = 0; t <= IOSTATS_BOUNDS; t++)
      sum->of[i].times[t] += s->of[i].times[t];
    sum->of[i].running += s->of[i].begun - operations - failed - refused;
  }
  sum->highest = max64 (sum->highest, s->highest);
}

static void
add (struct iocounts *sum, const struct iostats_client *c)
{
  for (size_t i = 0; i < EPOCH_THREADS; i++) {
    const struct shard *const s = atomic_load (&c->shards[i]);

    if (s)
      add_shard (sum, s);
  }
}

static void
sum_up (const struct counted *c, struct iocounts *sum)
{
  *sum = c->past;
  for (const struct iostats_client *k = c->clients; k; k = k->next) {
    add (sum, k);
    sum->clients++;
  }
}

/* --- connections --- */

struct iostats_client *
iostats_enter (struct iostats *s, const char *device, const char *export)
{
  struct iostats_client *k = s ? calloc (1, sizeof *k) : NULL;

  if (k == NULL)
    return NULL;
  LOCK_FOR_BLOCK (&s->lock);
  k->counted = find_or_add (s, device, export);
  if (k->counted == NULL) {
    free (k);
    return NULL;
  }
  k->next = k->counted->clients;
  k->counted->clients = k;
  k->counted->past.ever++;
  return k;
}

void
iostats_leave (struct iostats *s, struct iostats_client *k, struct iocounts *ended)
{
  struct iostats_client **link;

  *ended = (struct iocounts) { .highest = 0 };
  if (s == NULL || k == NULL)
    return;
  LOCK_FOR_BLOCK (&s->lock);
  add (ended, k);
  add (&k->counted->past, k);
  for (link = &k->counted->clients; *link != k; link = &(*link)->next)
    ;
  *link = k->next;
  for (size_t i = 0; i < EPOCH_THREADS; i++)
    free (k->shards[i]);
  free (k);
  forget_idle (s);
}

void
iostats_get (struct iostats *s, const char *device, struct iocounts *sum)
{
  *sum = (struct iocounts) { .highest = 0 };
  if (s == NULL)
    return;
  LOCK_FOR_BLOCK (&s->lock);
  for (const struct counted *c = s->all; c; c = c->next)
    if (strcmp (c->device, device) == 0 && c->export[0] == '\0')
      sum_up (c, sum);
}

/* So that what is done with the counts takes place without the lock. */
struct copy {
  struct copy *next;
  struct iocounts counts;
  struct counted *names;        /* of these only device and export */
};

/* Adds a copy at *END.  Returns where the next one goes.  (Without memory, one is left
 * out.) */
static struct copy **
copy_one (struct copy **end, const struct counted *c)
{
  struct copy *const copy = calloc (1, sizeof *copy);

  if (copy)
    copy->names = new_counted (c->device, c->export);
  if (copy == NULL || copy->names == NULL) {
    free (copy);
    return end;
  }
  sum_up (c, &copy->counts);
  *end = copy;
  return &copy->next;
}

/* Those of the device of FIRST, which is the first one in the list. */
static struct copy **
copy_each_of (struct copy **end, const struct counted *first, bool used)
{
  for (const struct counted *c = first; c; c = c->next)
    if (strcmp (c->device, first->device) == 0 && (c->clients != NULL) == used)
      end = copy_one (end, c);
  return end;
}

static bool
is_first (const struct iostats *s, const struct counted *c)
{
  const struct counted *first = s->all;

  while (strcmp (first->device, c->device) != 0)
    first = first->next;
  return first == c;
}

void
iostats_each (struct iostats *s, const char *device, iostats_fn fn, void *opaque)
{
  struct copy *copies = NULL, **end = &copies, *one;

  if (s == NULL)
    return;
  {
    LOCK_FOR_BLOCK (&s->lock);

    for (const struct counted *c = s->all; c; c = c->next)
      if ((device == NULL || strcmp (c->device, device) == 0) && is_first (s, c)) {
        end = copy_each_of (end, c, true);
        end = copy_each_of (end, c, false);
      }
  }
  while ((one = copies) != NULL) {
    fn (opaque, one->names->device, one->names->export, &one->counts);
    copies = one->next;
    free (one->names);
    free (one);
  }
}

/* --- requests --- */

/* That of the calling thread.  *ALONE: no other thread counts there now.  NULL: there is
 * no memory, so nothing is counted. */
static struct shard *
my_shard (struct iostats_client *k, bool *alone)
{
  _Atomic (struct shard *) *const place = &k->shards[epoch_thread (alone)];
  struct shard *s = atomic_load_explicit (place, memory_order_acquire), *other = NULL;

  if (__builtin_expect (s != NULL, 1))
    return s;
  KEEP_ERRNO_FOR_BLOCK;
  s = aligned_alloc (_Alignof (struct shard), sizeof *s);
  if (s == NULL)
    return NULL;
  memset (s, 0, sizeof *s);
  if (atomic_compare_exchange_strong (place, &other, s))
    return s;
  free (s);
  return other;
}

static inline void
count (_Atomic uint64_t *counter, uint64_t n, bool alone)
{
  if (__builtin_expect (alone, 1))
    atomic_store_explicit (counter,
                           atomic_load_explicit (counter, memory_order_relaxed) + n,
                           memory_order_release);
  else
    atomic_fetch_add (counter, n);
}

int64_t
iostats_begin (struct iostats_client *k, enum iostats_kind kind)
{
  struct shard *s;
  bool alone;

  if (k == NULL || (s = my_shard (k, &alone)) == NULL)
    return -1;
  count (&s->of[kind].begun, 1, alone);
  return clock_ns ();
}

static void
raise_to (_Atomic uint64_t *highest, uint64_t end)
{
  uint64_t before = *highest;

  while (before < end && !atomic_compare_exchange_weak (highest, &before, end))
    ;
}

void
iostats_end (struct iostats_client *k, enum iostats_kind kind, int64_t begun,
             uint64_t offset, uint64_t bytes, enum iostats_result result)
{
  struct shard *s;
  uint64_t ns;
  bool alone;
  int t = 0;

  if (begun == -1 || (s = my_shard (k, &alone)) == NULL)
    return;
  if (result == IOSTATS_REFUSED) {
    count (&s->of[kind].refused, 1, alone);
    return;
  }
  ns = clock_ns () - begun;
  while (t < IOSTATS_BOUNDS && ns >= iostats_bounds[t])
    t++;
  count (&s->of[kind].times[t], 1, alone);
  count (&s->of[kind].ns, ns, alone);
  if (result == IOSTATS_DONE)
    count (&s->of[kind].bytes, bytes, alone);
  count (result == IOSTATS_DONE ? &s->of[kind].operations : &s->of[kind].failed, 1, alone);
  if (result == IOSTATS_DONE && (kind == IOSTATS_WRITE || kind == IOSTATS_ZERO))
    raise_to (&s->highest, offset + bytes);
}
