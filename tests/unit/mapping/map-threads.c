/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mapping cache with many threads.
 *
 *   blocking  which threads wait for each other, and which must not
 *   stress    everything at once; versions show whether an answer is possible
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "mapping/map.h"
#include "lib/stubs.h"

static uint64_t seed;

static void
sleep_us (unsigned us)
{
  nanosleep (&(struct timespec) { .tv_nsec = us * 1000L }, NULL);
}

/* --- who waits for whom --- */

struct gate {
  sem_t entered, go;
  atomic_int calls;             /* loads of slice 0 */
  atomic_bool closed;           /* slice 0 has to wait */
  atomic_bool fail;             /* the next load of slice 0 fails */
};

static int
gate_wait (struct gate *g, uint64_t slice)
{
  if (slice != 0)
    return 0;
  atomic_fetch_add (&g->calls, 1);
  if (atomic_load (&g->closed)) {
    sem_post (&g->entered);
    sem_wait (&g->go);
  }
  if (atomic_exchange (&g->fail, false)) {
    errno = EIO;
    return -1;
  }
  return 0;
}

static int
gate_load (void *opaque, uint64_t slice, unsigned n, struct map_fill *fill)
{
  CHECK (n == 1);
  if (gate_wait (opaque, slice) == -1)
    return -1;
  return map_fill_add (fill, 16, RUN_NORMAL, false, 0, slice << 20);
}

static int
gate_load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  CHECK (n == 1);
  *(uint64_t *) raw = slice << 20;
  return gate_wait (opaque, slice);
}

static unsigned
gate_decode (void *opaque, const void *raw, unsigned unit, unsigned max,
             struct run *run)
{
  (void) opaque;
  *run = (struct run) {
    .kind = RUN_NORMAL, .host = *(const uint64_t *) raw + (unit << 16)
  };
  return max;
}

static const struct map_ops gate_ops = {
  .load = gate_load, .load_raw = gate_load_raw, .decode = gate_decode
};

struct client {
  struct map_space *space;
  bool pin;
  int err;                      /* 0, or the errno */
  atomic_bool done;
  pthread_t thread;
};

static void *
client (void *arg)
{
  struct client *c = arg;
  struct map_slice *s;
  struct run run;

  if (c->pin) {
    s = map_pin (c->space, 0);
    c->err = s ? 0 : errno;
    if (s)
      map_unpin (s);
  }
  else {
    c->err = map_lookup (c->space, 0x12345, 1 << 20, &run) == 0 ? 0 : errno;
    if (c->err == 0)
      CHECK (run.host == 0x12345 && run.len == (1 << 20) - 0x12345);
  }
  atomic_store (&c->done, true);
  return NULL;
}

static void
start (struct client *c, struct map_space *space, bool pin)
{
  memset (c, 0, sizeof *c);
  c->space = space;
  c->pin = pin;
  CHECK (pthread_create (&c->thread, NULL, client, c) == 0);
}

static void
test_blocking (uint64_t limit)
{
  struct map *map = map_new (limit);
  struct gate g = { .closed = true };
  struct client a, b, c;
  struct map_space *space;
  struct run run;

  CHECK (map);
  CHECK (sem_init (&g.entered, 0, 0) == 0 && sem_init (&g.go, 0, 0) == 0);
  space = map_space_new (map, 16, 16, 8, &gate_ops, &g);
  CHECK (space);

  /* A load is under way: others for the slice wait for it, nobody else does.  (1000
   * slices are in all shards.)  One load serves all. */
  start (&a, space, false);
  sem_wait (&g.entered);
  start (&b, space, false);
  start (&c, space, true);
  for (uint64_t i = 1; i < 1000; i++) {
    CHECK (map_lookup (space, i << 20, 1, &run) == 0);
    CHECK (run.host == i << 20);
  }
  sleep_us (20000);
  CHECK (!atomic_load (&a.done) && !atomic_load (&b.done) &&
         !atomic_load (&c.done));
  CHECK (atomic_load (&g.calls) == 1);
  atomic_store (&g.closed, false);
  sem_post (&g.go);
  pthread_join (a.thread, NULL);
  pthread_join (b.thread, NULL);
  pthread_join (c.thread, NULL);
  CHECK (a.err == 0 && b.err == 0 && c.err == 0);
  if (limit > 0)
    CHECK (atomic_load (&g.calls) <= 2);        /* one of them raw */

  /* While a pack is being replaced by its raw form it answers; a second pin
   * waits for the first. */
  map_space_free (space);
  space = map_space_new (map, 16, 16, 8, &gate_ops, &g);
  CHECK (space);
  CHECK (map_lookup (space, 0, 1, &run) == 0);
  if (limit > 0) {
    atomic_store (&g.calls, 0);
    atomic_store (&g.closed, true);
    start (&a, space, true);
    sem_wait (&g.entered);
    start (&b, space, true);
    CHECK (map_lookup (space, 0x20000, 1, &run) == 0 && run.host == 0x20000);
    sleep_us (10000);
    CHECK (!atomic_load (&b.done));
    atomic_store (&g.closed, false);
    sem_post (&g.go);
    pthread_join (a.thread, NULL);
    pthread_join (b.thread, NULL);
    CHECK (a.err == 0 && b.err == 0 && atomic_load (&g.calls) == 1);
  }

  /* A load fails: that is the answer for who made it; who waited tries again. */
  map_space_free (space);
  space = map_space_new (map, 16, 16, 8, &gate_ops, &g);
  CHECK (space);
  for (int pin = 0; pin < 2; pin++) {
    atomic_store (&g.closed, true);
    atomic_store (&g.fail, true);
    start (&a, space, pin);
    sem_wait (&g.entered);
    start (&b, space, pin);
    sleep_us (5000);
    atomic_store (&g.closed, false);
    sem_post (&g.go);
    pthread_join (a.thread, NULL);
    pthread_join (b.thread, NULL);
    CHECK (a.err == EIO && b.err == 0);
    CHECK (map_lookup (space, 0, 1, &run) == 0);
    map_space_free (space);
    space = map_space_new (map, 16, 16, 8, &gate_ops, &g);
    CHECK (space);
  }
  map_free (map);
  sem_destroy (&g.entered);
  sem_destroy (&g.go);
}

/* --- a look at the file while it changes --- */

struct late {
  sem_t entered, go;
  atomic_bool closed;
  atomic_uint value;            /* of slice 0, in the file */
};

static int
late_load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  struct late *l = opaque;

  CHECK (n == 1);
  *(uint32_t *) raw = slice ? 1 : atomic_load (&l->value);
  return 0;
}

static unsigned
late_decode (void *opaque, const void *raw, unsigned unit, unsigned max,
             struct run *run)
{
  (void) opaque;
  (void) unit;
  *run = (struct run) { .kind = RUN_ZERO_ALLOC, .host = *(uint32_t *) raw };
  return max;
}

static int64_t
late_peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
           struct run *run)
{
  struct late *l = opaque;
  uint32_t raw;

  if (slice == 0 && atomic_exchange (&l->closed, false)) {
    sem_post (&l->entered);
    sem_wait (&l->go);
  }
  late_load_raw (l, slice, 1, &raw);
  return late_decode (l, &raw, unit, max, run);
}

static const struct map_ops late_ops = {
  .load_raw = late_load_raw, .decode = late_decode, .peek = late_peek
};

struct late_looker {
  struct late *late;
  struct map_space *space;
  struct run run;
};

static void *
late_looker (void *arg)
{
  struct late_looker *w = arg;

  CHECK (map_lookup (w->space, 0, 1, &w->run) == 0);
  sem_post (&w->late->entered);
  return NULL;
}

/* What is in the file, but not durable yet, is not given out as settled by somebody who
 * found nothing in memory and then looked there. */
static void
test_peek_race (void)
{
  struct map *map = map_new (0);
  struct late l = { .value = 1 };
  struct late_looker w = { .late = &l };
  struct map_slice *s;
  struct map_dirty *items;
  struct run run;
  bool barrier;
  pthread_t thread;
  unsigned peeked = 0;

  CHECK (map && sem_init (&l.entered, 0, 0) == 0 && sem_init (&l.go, 0, 0) == 0);
  w.space = map_space_new (map, 16, 4096, sizeof (uint32_t), &late_ops, &l);
  CHECK (w.space);
  for (unsigned i = 0; i < 200 && peeked < 5; i++) {
    /* Until slice 0 is out of memory. */
    for (uint64_t other = 1; other < 5000; other++)
      CHECK (map_lookup (w.space, other << 28, 1, &run) == 0);
    atomic_store (&l.closed, true);
    CHECK (pthread_create (&thread, NULL, late_looker, &w) == 0);
    sem_wait (&l.entered);
    if (atomic_exchange (&l.closed, false)) {
      pthread_join (thread, NULL);      /* it was there, or was loaded */
      continue;
    }
    peeked++;
    s = map_pin (w.space, 0);
    CHECK (s);
    *(uint32_t *) map_edit_begin (s) = 2 + i;
    map_edit_end (s, MAP_CHANGED);
    map_unpin (s);
    CHECK (map_take_dirty (w.space, &items, &barrier) == 1);
    atomic_store (&l.value, 2 + i);
    sem_post (&l.go);
    sem_wait (&l.entered);
    pthread_join (thread, NULL);
    CHECK (w.run.host < 2 + i || w.run.unsettled);
    map_written (w.space, items, 1, true);
  }
  CHECK (peeked > 0);
  map_free (map);
  sem_destroy (&l.entered);
  sem_destroy (&l.go);
}

/* --- many that look at once --- */

#define CROWD 256
#define CROWD_SLICES 2000u

struct crowd {
  struct map_space *space;
  atomic_ulong loads, peeks;
  pthread_t threads[CROWD];
  atomic_uint next;             /* stream of random numbers */
};

static int
crowd_load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  struct crowd *c = opaque;

  CHECK (n == 1);
  atomic_fetch_add (&c->loads, 1);
  sleep_us (100);
  *(uint32_t *) raw = slice;
  return 0;
}

static unsigned
crowd_decode (void *opaque, const void *raw, unsigned unit, unsigned max,
              struct run *run)
{
  (void) opaque;
  /* No two units alike: packs are large. */
  *run = (struct run) {
    .kind = RUN_NORMAL, .host = (*(const uint32_t *) raw * 4096 + unit * 7) << 16
  };
  return max ? 1 : 0;
}

static int64_t
crowd_peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
            struct run *run)
{
  struct crowd *c = opaque;
  const uint32_t raw = slice;

  atomic_fetch_add (&c->peeks, 1);
  sleep_us (100);
  return crowd_decode (c, &raw, unit, max, run);
}

static const struct map_ops crowd_ops = {
  .load_raw = crowd_load_raw, .decode = crowd_decode, .peek = crowd_peek
};

static void *
crowd_member (void *arg)
{
  struct crowd *c = arg;
  struct rng rng;
  struct run run;

  rng_init (&rng, seed, 1000 + atomic_fetch_add (&c->next, 1));
  for (unsigned i = 0; i < 80; i++)
    CHECK (map_lookup (c->space, (uint64_t) rng_below (&rng, CROWD_SLICES) << 24,
                       1, &run) == 0);
  return NULL;
}

/* Their loads don't make each other's looks count for nothing. */
static void
test_crowd (void)
{
  struct map *map = map_new (0);
  struct crowd c = { 0 };

  CHECK (map);
  c.space = map_space_new (map, 16, 256, sizeof (uint32_t), &crowd_ops, &c);
  CHECK (c.space);
  for (unsigned i = 0; i < CROWD; i++)
    CHECK (pthread_create (&c.threads[i], NULL, crowd_member, &c) == 0);
  for (unsigned i = 0; i < CROWD; i++)
    pthread_join (c.threads[i], NULL);
  printf ("crowd: %lu loads, %lu peeks\n", atomic_load (&c.loads),
          atomic_load (&c.peeks));
  CHECK (atomic_load (&c.loads) * 12 < atomic_load (&c.peeks));
  map_free (map);
}

/* --- stress --- */

#define S_UNITS 128u            /* more than are peeked at once */
#define S_SLICES 100u
#define S_TOTAL (S_UNITS * S_SLICES)
#define S_BITS 16
#define EDITORS 2
#define LOOKERS 3

/* The host offset of a unit says which unit it is, and its version. */
struct stress {
  struct map *map;
  struct map_space *space, *other;
  atomic_uint file[S_TOTAL];    /* versions; a slice is not loaded while it is being
                                   written, but who peeks may see it */
  atomic_uint begun[S_TOTAL], done[S_TOTAL], durable[S_TOTAL];
  atomic_bool loading[S_SLICES];
  atomic_bool stop;
  atomic_ulong looks, edits, snapshots, peeks;
};

struct worker {
  struct stress *s;
  struct rng rng;
  unsigned n;
  pthread_t thread;
};

static uint64_t
version_host (uint64_t unit, uint64_t version)
{
  return (version * S_TOTAL + unit) << S_BITS;
}

/* A seed from the slice and the time: which thread loads is no matter. */
static int
dawdle (struct stress *s, uint64_t slice)
{
  struct rng rng;

  rng_init (&rng, seed + atomic_load (&s->looks), slice);
  switch (rng_below (&rng, 20)) {
  case 0: sleep_us (rng_below (&rng, 300)); break;
  case 1: case 2: case 3: sched_yield (); break;
  case 4: errno = EIO; return -1;
  }
  return 0;
}

static int
load_one_raw (struct stress *s, uint64_t slice, bool alone, void *raw)
{
  int r;

  /* A slice amid others may be in memory, and is then loaded in vain. */
  CHECK (!alone || !atomic_exchange (&s->loading[slice], true));
  r = dawdle (s, slice);
  for (unsigned i = 0; i < S_UNITS; i++)
    ((uint32_t *) raw)[i] = atomic_load_explicit (&s->file[slice * S_UNITS + i],
                                                  memory_order_relaxed);
  if (alone)
    atomic_store (&s->loading[slice], false);
  /* The decoder needs to know which slice it is: the last item says so. */
  ((uint32_t *) raw)[S_UNITS] = slice;
  return r;
}

static int
stress_load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  int r = 0;

  for (unsigned i = 0; r == 0 && i < n; i++)
    r = load_one_raw (opaque, slice + i, n == 1,
                      (uint32_t *) raw + i * (S_UNITS + 1));
  return r;
}

static unsigned
four_together (void *opaque)
{
  (void) opaque;
  return 4;
}

static unsigned
stress_decode (void *opaque, const void *raw, unsigned unit, unsigned max,
               struct run *run)
{
  const uint32_t *v = raw;
  unsigned n;

  (void) opaque;
  run->kind = RUN_NORMAL;
  run->copied = v[unit] & 1;
  run->layer = 0;
  run->host = version_host (v[S_UNITS] * S_UNITS + unit, v[unit]);
  for (n = 1; n < max && v[unit + n] == v[unit]; n++)
    ;
  return n;
}

static int64_t
stress_peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
             struct run *run)
{
  struct stress *s = opaque;
  uint32_t raw[S_UNITS + 1];

  for (unsigned i = 0; i < S_UNITS; i++) {
    if (i == S_UNITS / 2 && dawdle (s, slice) == -1)
      return -1;
    raw[i] = atomic_load_explicit (&s->file[slice * S_UNITS + i],
                                   memory_order_relaxed);
  }
  raw[S_UNITS] = slice;
  atomic_fetch_add (&s->peeks, 1);
  return stress_decode (s, raw, unit, max, run);
}

static const struct map_ops stress_ops = {
  .load_raw = stress_load_raw, .decode = stress_decode, .peek = stress_peek,
  .together = four_together,
};

static int
load_one (struct stress *s, uint64_t slice, struct map_fill *fill)
{
  if (dawdle (s, slice) == -1)
    return -1;
  for (unsigned i = 0; i < S_UNITS; i++)
    if (map_fill_add (fill, 1, i % 3 ? RUN_NORMAL : RUN_ZERO, false, slice,
                      (slice * 77 + i * i % 13) << S_BITS) == -1)
      return -1;
  return 0;
}

static int
other_load (void *opaque, uint64_t slice, unsigned n, struct map_fill *fill)
{
  int r = 0;

  for (; r == 0 && n > 0; n--)
    r = load_one (opaque, slice++, fill);
  return r;
}

static const struct map_ops other_ops = { .load = other_load, .together = four_together };

static void
look_at_other (struct map_space *space, struct rng *rng)
{
  const uint64_t unit = rng_below (rng, S_TOTAL), slice = unit / S_UNITS;
  const unsigned i = unit % S_UNITS;
  struct run run;

  if (map_lookup (space, unit << S_BITS, 1 << S_BITS, &run) == -1) {
    CHECK (errno == EIO);
    return;
  }
  CHECK (run.kind == (i % 3 ? RUN_NORMAL : RUN_ZERO) && run.layer == slice);
  if (run.kind == RUN_NORMAL)
    CHECK (run.host == (slice * 77 + i * i % 13) << S_BITS);
  CHECK (!run.unsettled);
}

static void
look_at_versions (struct stress *s, struct rng *rng)
{
  const unsigned unit = rng_below (rng, S_TOTAL);
  const unsigned most = S_UNITS - unit % S_UNITS;
  unsigned atleast[S_UNITS], n = 1 + rng_below (rng, most), i, version;
  struct run run;

  for (i = 0; i < n; i++)
    atleast[i] = atomic_load (&s->done[unit + i]);
  if (map_lookup (s->space, (uint64_t) unit << S_BITS, (uint64_t) n << S_BITS,
                  &run) == -1) {
    CHECK (errno == EIO);
    return;
  }
  CHECK (run.len >> S_BITS <= n && run.len >> S_BITS > 0);
  CHECK (((run.host >> S_BITS) % S_TOTAL) == unit);
  version = (run.host >> S_BITS) / S_TOTAL;
  CHECK (run.copied == (version & 1));
  for (i = 0; i < run.len >> S_BITS; i++) {
    CHECK (version >= atleast[i]);
    CHECK (version <= atomic_load (&s->begun[unit + i]));
    if (!run.unsettled)
      CHECK (version <= atomic_load (&s->durable[unit + i]));
  }
}

static void *
looker (void *arg)
{
  struct worker *w = arg;

  while (!atomic_load (&w->s->stop)) {
    if (rng_below (&w->rng, 3))
      look_at_versions (w->s, &w->rng);
    else
      look_at_other (w->s->other, &w->rng);
    atomic_fetch_add (&w->s->looks, 1);
  }
  return NULL;
}

/* Each editor has slices of his own (but pins those of others too). */
static void *
editor (void *arg)
{
  struct worker *w = arg;
  struct stress *s = w->s;

  while (!atomic_load (&s->stop)) {
    const unsigned slice = rng_below (&w->rng, S_SLICES);
    const unsigned first = rng_below (&w->rng, S_UNITS);
    const unsigned n = 1 + rng_below (&w->rng, S_UNITS - first);
    struct map_slice *pin = map_pin (s->space, slice);
    unsigned version = 0, i;
    uint32_t *raw;

    if (pin == NULL) {
      CHECK (errno == EIO);
      continue;
    }
    if (slice % EDITORS == w->n) {
      for (i = first; i < first + n; i++) {
        const unsigned v = atomic_load (&s->done[slice * S_UNITS + i]);
        version = v > version ? v : version;
      }
      version++;
      for (i = first; i < first + n; i++)
        atomic_store (&s->begun[slice * S_UNITS + i], version);
      raw = map_edit_begin (pin);
      for (i = first; i < first + n; i++)
        raw[i] = version;
      map_edit_end (pin, rng_below (&w->rng, 2) ? MAP_CHANGED_BARRIER : MAP_CHANGED);
      for (i = first; i < first + n; i++)
        atomic_store (&s->done[slice * S_UNITS + i], version);
      atomic_fetch_add (&s->edits, 1);
    }
    if (rng_below (&w->rng, 4) == 0)
      sched_yield ();
    map_unpin (pin);
    if (rng_below (&w->rng, 20) == 0)
      sleep_us (rng_below (&w->rng, 1000));
  }
  return NULL;
}

static void
snapshot (struct stress *s, struct rng *rng, bool ok)
{
  struct map_dirty *items;
  bool barrier;
  const int n = map_take_dirty (s->space, &items, &barrier);

  CHECK (n >= 0);
  for (int i = 0; i < n; i++) {
    atomic_uint *file = &s->file[items[i].index * S_UNITS];
    uint32_t *raw = items[i].raw;

    /* A write that fails may leave anything. */
    for (unsigned j = 0; j < S_UNITS; j++)
      file[j] = ok || rng_below (rng, 2) ? raw[j] : UINT32_MAX;
    if (rng_below (rng, 10) == 0)
      sched_yield ();
    for (unsigned j = 0; ok && j < S_UNITS; j++)
      atomic_store (&s->durable[items[i].index * S_UNITS + j], raw[j]);
  }
  map_written (s->space, items, n, ok);
}

static void *
saver (void *arg)
{
  struct worker *w = arg;

  while (!atomic_load (&w->s->stop)) {
    snapshot (w->s, &w->rng, rng_below (&w->rng, 3));
    atomic_fetch_add (&w->s->snapshots, 1);
    sleep_us (rng_below (&w->rng, 2000));
  }
  return NULL;
}

/* Spaces come and go while others reclaim. */
static void *
opener (void *arg)
{
  struct worker *w = arg;
  struct map_space *space;

  while (!atomic_load (&w->s->stop)) {
    space = map_space_new (w->s->map, S_BITS, S_UNITS, 0, &other_ops, w->s);
    CHECK (space);
    for (unsigned i = rng_below (&w->rng, 50); i > 0; i--)
      look_at_other (space, &w->rng);
    map_space_free (space);
  }
  return NULL;
}

/* Where memory is short, things have happened that otherwise seldom do.  On a loaded
 * machine that takes its time. */
static bool
seen_enough (struct stress *s, uint64_t limit)
{
  struct map_stats stats;

  map_get_stats (s->map, &stats);
  return limit > 1 << 20 ||
    (atomic_load (&s->peeks) > 10 && stats.evictions > 0 && stats.packs > 0);
}

/* For so long, and until enough was seen. */
static void
test_stress (uint64_t limit, unsigned ms)
{
  static void *(*const what[]) (void *) = {
    editor, editor, looker, looker, looker, saver, opener
  };
  enum { N = sizeof what / sizeof what[0] };
  struct stress *s = calloc (1, sizeof *s);
  struct worker w[N];
  struct map_stats stats;
  unsigned i;

  _Static_assert (N == EDITORS + LOOKERS + 2, "threads");
  CHECK (s);
  s->map = map_new (limit);
  CHECK (s->map);
  s->space = map_space_new (s->map, S_BITS, S_UNITS,
                            (S_UNITS + 1) * sizeof (uint32_t), &stress_ops, s);
  s->other = map_space_new (s->map, S_BITS, S_UNITS, 0, &other_ops, s);
  CHECK (s->space && s->other);
  for (i = 0; i < N; i++) {
    w[i].s = s;
    w[i].n = i;
    rng_init (&w[i].rng, seed, limit + i);
    CHECK (pthread_create (&w[i].thread, NULL, what[i], &w[i]) == 0);
  }
  do
    sleep_us (ms * 1000);
  while (!seen_enough (s, limit));
  atomic_store (&s->stop, true);
  for (i = 0; i < N; i++)
    pthread_join (w[i].thread, NULL);

  /* In the end the file holds what was edited last, and memory is in bounds. */
  snapshot (s, &w[0].rng, true);
  CHECK (map_dirty_bytes (s->space) == 0);
  for (i = 0; i < S_TOTAL; i++) {
    CHECK (s->file[i] == atomic_load (&s->done[i]));
    look_at_versions (s, &w[0].rng);
  }
  map_get_stats (s->map, &stats);
  CHECK (stats.bytes <= (limit > 40 << 10 ? limit : 40 << 10));
  printf ("limit %" PRIu64 ": %lu looks, %lu edits, %lu snapshots; %" PRIu64
          " hits, %" PRIu64 " misses, %" PRIu64 " evictions, %" PRIu64
          " packs, peak %" PRIu64 "\n", limit,
          atomic_load (&s->looks), atomic_load (&s->edits),
          atomic_load (&s->snapshots), stats.hits, stats.misses,
          stats.evictions, stats.packs, stats.peak_bytes);
  map_free (s->map);
  free (s);
}

int
main (void)
{
  seed = seed_from_env ();
  test_blocking (0);
  test_blocking (1 << 20);
  test_peek_race ();
  test_crowd ();
  test_stress (0, 500);
  test_stress (50 << 10, 500);
  test_stress (10 << 20, 500);
  return 0;
}
