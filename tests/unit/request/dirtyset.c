/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a set of pieces lose a mark, or invent one?
 *
 * Ranges are recorded, taken and unmarked at random, beyond the end, too, and compared
 * with a model that has a byte for each piece.  Then threads record while another one
 * takes: each mark comes out, at least once.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many sets (default: as many as are
 * possible in SECONDS, 2); FIRST: start with this one.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "util/bytes.h"
#include "request/dirtyset.h"
#include "lib/trials.h"

#define MOST 1000               /* pieces */
#define THREADS 3

/* --- one thread --- */

struct range {
  uint64_t offset, count;       /* bytes */
};

static void
mark (unsigned char *model, uint64_t pieces, unsigned bits, struct range r, bool value)
{
  for (uint64_t i = 0; i < pieces; i++)
    if ((i << bits) < r.offset + r.count && ((i + 1) << bits) > r.offset)
      model[i] = value;
}

static void
check (const struct dirtyset *s, const unsigned char *model, uint64_t pieces, unsigned bits,
       struct rng *rng)
{
  const uint64_t end = pieces << bits;
  uint64_t marked = 0, len;

  for (uint64_t i = 0; i < pieces; i++)
    marked += model[i];
  if (dirtyset_count (s) != marked)
    FAIL ("the count is wrong");
  for (uint64_t at = 0; at < end; at += len) {
    len = 1 + rng_below (rng, end - at);
    if (dirtyset_find (s, at, &len) != model[at >> bits] || len == 0)
      FAIL ("the piece at %" PRIu64 " is wrong", at >> bits);
    for (uint64_t i = at >> bits; i <= (at + len - 1) >> bits; i++)
      if (model[i] != model[at >> bits])
        FAIL ("piece %" PRIu64 " differs", i);
  }
}

static void
trial (struct rng *rng)
{
  const unsigned bits = 9 + rng_below (rng, 12);
  const uint64_t pieces = 1 + rng_below (rng, MOST);
  struct dirtyset *live = dirtyset_new (pieces, bits), *taken = dirtyset_new (pieces, bits);
  unsigned char in_live[MOST] = { 0 }, in_taken[MOST] = { 0 };

  CHECK (live && taken);
  for (unsigned i = 0; i < 60; i++) {
    const uint64_t most = UINT64_C (1) << (bits + rng_below (rng, 8));
    const struct range r = {
      rng_below (rng, (pieces << bits) + (2 << bits)), rng_below (rng, most),
    };
    const struct range inside = { r.offset % (pieces << bits), 1 };

    switch (rng_below (rng, 6)) {
    case 0:
      dirtyset_take (live, taken);
      for (uint64_t k = 0; k < pieces; k++)
        in_taken[k] |= in_live[k];
      memset (in_live, 0, sizeof in_live);
      break;
    case 1:
      dirtyset_unmark (taken, inside.offset, inside.count);
      mark (in_taken, pieces, bits, inside, false);
      break;
    default:
      dirtyset_record (live, r.offset, r.count);
      if (r.count > 0)
        mark (in_live, pieces, bits, r, true);
    }
  }
  check (live, in_live, pieces, bits, rng);
  check (taken, in_taken, pieces, bits, rng);
  dirtyset_free (live);
  dirtyset_free (taken);
}

/* --- many threads --- */

static struct dirtyset *shared;
static atomic_uint running;

struct recorder {
  unsigned first;               /* its pieces: every THREADS-th */
};

static void *
record (void *opaque)
{
  const struct recorder *r = opaque;

  for (unsigned i = r->first; i < MOST; i += THREADS)
    dirtyset_record (shared, (uint64_t) i << 9, 1);
  running--;
  return NULL;
}

static void
test_threads (void)
{
  struct recorder recorders[THREADS];
  pthread_t threads[THREADS];
  struct dirtyset *taken = dirtyset_new (MOST, 9);

  shared = dirtyset_new (MOST, 9);
  CHECK (shared && taken);
  running = THREADS;
  for (unsigned i = 0; i < THREADS; i++) {
    recorders[i].first = i;
    CHECK (pthread_create (&threads[i], NULL, record, &recorders[i]) == 0);
  }
  while (running > 0)
    dirtyset_take (shared, taken);
  for (unsigned i = 0; i < THREADS; i++)
    CHECK (pthread_join (threads[i], NULL) == 0);
  dirtyset_take (shared, taken);
  CHECK (dirtyset_count (shared) == 0);
  CHECK (dirtyset_count (taken) == MOST);
  dirtyset_free (shared);
  dirtyset_free (taken);
}

int
main (void)
{
  for (unsigned i = 0; i < 200; i++)
    test_threads ();
  printf ("%u sets\n", trials_run ("dirtyset", 2, 100, trial));
  return 0;
}
