/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which allocation fails?
 *
 * A test does the same work again and again, and each time memory runs out at another
 * allocation: for this one alone, or for all from this one on.  Allocations count whoever
 * makes them: the core, its threads, or the libraries that it uses.  Only those of spared
 * threads do not: of the test itself, and of simulated disks.
 *
 * To derive keys from a passphrase, OpenSSL allocates memory thousands of times.  So a
 * place is what called the core's functions that led to the allocation, whatever a
 * library did then; few allocations of the same place need to fail.
 *
 * AddressSanitizer ends the program if it has no memory when a thread starts.  So there,
 * allocations that no function of this program led to do not count.
 *
 * Over NBD, and with ThreadSanitizer, only those count that functions of this program ask
 * for themselves: the libraries below libnbd do not always say that it was memory that
 * they lacked, and ThreadSanitizer allocates where it must succeed.
 *
 * Locks: `lock' guards the places.  Everything else is atomic, or constant while threads
 * of the core run.
 */

#include <config.h>

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/stubs.h"

#define DEPTH 64

#if defined __SANITIZE_ADDRESS__ || __has_feature (address_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static bool begun;              /* atomic, for code without instrumentation */
static bool only_own;           /* allocations of libraries do not count */
static atomic_ullong allocations, failures, all_failures;
static struct shortage now;
static unsigned one_in;         /* 0: NOW says which fail */
static uint64_t scarcity_seed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *places;        /* of each allocation of the last SHORTAGE_NONE */
static size_t nr_places, room;

static _Thread_local bool spared;

/* This program; libraries are elsewhere. */
extern const char __executable_start[], etext[];

/* --- places --- */

static inline bool
is_own (const char *caller)
{
  return caller >= __executable_start && caller < etext;
}

/* Of an allocation that CALLER asks for.  0: no function of the program led to it. */
static uint64_t
find_place (const char *caller)
{
  uint64_t hash = 0;
  void *frames[DEPTH];
  bool led = false;
  int n;

  spared = true;
  n = backtrace (frames, DEPTH);
  spared = false;
  for (int i = 0; i < n; i++) {
    const char *const frame = frames[i];

    led |= frame == caller;
    if (led && is_own (frame))
      hash = (hash ^ (uintptr_t) (frame - __executable_start)) *
        UINT64_C (0x9e3779b97f4a7c15);
  }
  return hash;
}

static void
add_place (uint64_t place)
{
  spared = true;
  pthread_mutex_lock (&lock);
  if (nr_places == room) {
    room = 2 * room + 1000;
    places = reallocarray (places, room, sizeof *places);
    CHECK (places != NULL);
  }
  places[nr_places++] = place;
  pthread_mutex_unlock (&lock);
  spared = false;
}

struct numbered {
  uint64_t place, number;
};

static int
by_place (const void *a, const void *b)
{
  const struct numbered *x = a, *y = b;

  return x->place != y->place ? (x->place > y->place) - (x->place < y->place)
    : (x->number > y->number) - (x->number < y->number);
}

static void
shuffle (uint64_t *numbers, size_t n, struct rng *rng)
{
  for (size_t i = n; i > 1; i--) {
    const size_t k = rng_below (rng, i);
    const uint64_t number = numbers[i - 1];

    numbers[i - 1] = numbers[k];
    numbers[k] = number;
  }
}

uint64_t *
shortage_choose (struct rng *rng, size_t most, size_t *n)
{
  const char *which = getenv ("ALLOCATIONS");
  const bool all = which && strcmp (which, "all") == 0;
  const size_t asked = which ? strtoul (which, NULL, 10) : 0;
  struct numbered *sorted = calloc (nr_places + 1, sizeof *sorted);
  uint64_t *chosen = calloc (nr_places + 1, sizeof *chosen);
  size_t first, last, i;

  CHECK (sorted != NULL && chosen != NULL);
  for (i = 0; i < nr_places; i++)
    sorted[i] = (struct numbered) { places[i], i };
  qsort (sorted, nr_places, sizeof *sorted, by_place);
  *n = 0;
  for (first = 0; first < nr_places; first = last + 1) {
    for (last = first; last + 1 < nr_places &&
           sorted[last + 1].place == sorted[first].place; last++)
      ;
    for (i = first; i <= last; i++)
      if (all || i == first || i == last || rng_below (rng, last - first) == 0)
        chosen[(*n)++] = sorted[i].number;
  }
  shuffle (chosen, *n, rng);
  if (asked > 0)
    most = asked;
  if (*n > most && !all)
    *n = most;
  free (sorted);
  return chosen;
}

/* --- shortages --- */

static bool
is_none (void)
{
  return now.times == 0 && one_in == 0;
}

/* Allocation number N. */
static bool
is_hit (uint64_t n)
{
  if (one_in > 0)
    return ((n + scarcity_seed) * UINT64_C (0x9e3779b97f4a7c15) >> 32) % one_in == 0;
  return n >= now.after && n - now.after < now.times;
}

static void
begin (void)
{
  void *frame;

  CHECK (!__atomic_load_n (&begun, __ATOMIC_RELAXED));
  backtrace (&frame, 1);        /* the first time, it loads a library */
  only_own = TRACES_THREADS || reach_server ();
  allocations = failures = 0;
  if (is_none ())
    nr_places = 0;
  __atomic_store_n (&begun, true, __ATOMIC_RELEASE);
}

void
shortage_begin (struct shortage shortage)
{
  now = shortage;
  one_in = 0;
  begin ();
}

void
shortage_begin_scarcity (unsigned chance, uint64_t seed)
{
  one_in = chance;
  scarcity_seed = seed;
  begin ();
}

uint64_t
shortage_end (void)
{
  CHECK (__atomic_load_n (&begun, __ATOMIC_RELAXED));
  __atomic_store_n (&begun, false, __ATOMIC_RELEASE);
  return failures;
}

uint64_t
shortage_failures (void)
{
  return failures;
}

uint64_t
shortage_all_failures (void)
{
  return all_failures;
}

bool
shortage_spare (bool spare)
{
  const bool was = spared;

  spared = spare;
  return was;
}

/* An allocation that counts, unless no function of the program led to it. */
static __attribute__ ((noinline)) bool
hits (const char *caller)
{
  uint64_t n, place;

  place = SANITIZED || is_none () ? find_place (caller) : 0;
  if (SANITIZED && place == 0)
    return false;
  if (is_none ()) {
    add_place (place);
    return false;
  }
  n = atomic_fetch_add (&allocations, 1);
  if (!is_hit (n))
    return false;
  failures++;
  all_failures++;
  errno = ENOMEM;
  return true;
}

NO_TRACING bool
shortage_hits (const void *caller)
{
  if (!__atomic_load_n (&begun, __ATOMIC_ACQUIRE) || spared ||
      (only_own && !is_own (caller)))
    return false;
  return hits (caller);
}
