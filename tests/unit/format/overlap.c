/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The set of metadata clusters is compared with a plain array of the kind of each
 * cluster, also while other threads look up clusters and the set changes.
 *
 * overlap.c is compiled into the test, so that the set can be made to change between any
 * two steps of a lookup without the lock.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/stubs.h"

/* Is called between two steps; NULL: nothing is. */
static _Thread_local void (*between) (void);

static void
disturb (void)
{
  void (*const f) (void) = between;

  between = NULL;
  if (f)
    f ();
  between = f;
}

#undef atomic_load
#define atomic_load(p)                                          \
  (disturb (), atomic_load_explicit ((p), memory_order_seq_cst))

#include "format/overlap.c"

#define BITS 9
#define CLUSTERS 30000
#define KINDS 10

static const uint64_t cs = UINT64_C (1) << BITS;

static void
test_basics (void)
{
  struct overlap *o = overlap_new (16);
  const uint64_t c = 1 << 16;

  CHECK (o != NULL);
  /* The header is there from the start. */
  CHECK (overlap_find (o, 0, 1) == OVERLAP_HEADER);
  CHECK (overlap_find (o, c - 1, 1) == OVERLAP_HEADER);
  CHECK (overlap_find (o, c, 1) == OVERLAP_NONE);
  CHECK (overlap_find (o, 0, 0) == OVERLAP_NONE);

  /* Every cluster that is touched, not only whole ones. */
  CHECK (overlap_add (o, 5 * c, 8, OVERLAP_L2) == 0);
  CHECK (overlap_find (o, 5 * c + 100, 1) == OVERLAP_L2);
  CHECK (overlap_add (o, 8 * c - 1, 2, OVERLAP_L1) == 0);
  CHECK (overlap_find (o, 7 * c, c) == OVERLAP_L1);
  CHECK (overlap_find (o, 8 * c, c) == OVERLAP_L1);
  CHECK (overlap_find (o, 9 * c, c) == OVERLAP_NONE);
  CHECK (overlap_add (o, 20 * c, 0, OVERLAP_L1) == 0);
  CHECK (overlap_find (o, 20 * c, c) == OVERLAP_NONE);

  /* The first of several, and the first kind of one. */
  CHECK (overlap_find (o, c, 7 * c) == OVERLAP_L2);
  CHECK (overlap_add (o, 5 * c, c, OVERLAP_L2) == 0);
  CHECK (overlap_add (o, 5 * c, c, OVERLAP_REFBLOCK) == OVERLAP_L2);
  CHECK (overlap_find (o, 5 * c, c) == OVERLAP_L2);
  CHECK (overlap_add (o, 0, 100 * c, OVERLAP_BITMAP) == OVERLAP_HEADER);
  CHECK (overlap_find (o, 5 * c, c) == OVERLAP_L2);
  CHECK (overlap_find (o, 6 * c, c) == OVERLAP_BITMAP);
  /* However it was added, it goes. */
  overlap_remove (o, c, 99 * c);
  CHECK (overlap_find (o, 0, c) == OVERLAP_HEADER);
  CHECK (overlap_find (o, c, 99 * c) == OVERLAP_NONE);

  /* The largest offsets that there are. */
  CHECK (overlap_add (o, (UINT64_C (1) << 56) - c, c, OVERLAP_L2) == 0);
  CHECK (overlap_find (o, (UINT64_C (1) << 56) - 1, 1) == OVERLAP_L2);
  overlap_remove (o, (UINT64_C (1) << 56) - c, c);
  CHECK (overlap_find (o, (UINT64_C (1) << 56) - 1, 1) == OVERLAP_NONE);

  /* A range too long for the filter. */
  CHECK (overlap_add (o, 1000 * c, UINT64_C (1) << 50, OVERLAP_CRYPTO) == 0);
  CHECK (overlap_find (o, UINT64_C (1) << 49, 1) == OVERLAP_CRYPTO);
  CHECK (overlap_find (o, 999 * c, c) == OVERLAP_NONE);
  overlap_remove (o, 1000 * c, UINT64_C (1) << 50);
  CHECK (overlap_find (o, UINT64_C (1) << 49, 1) == OVERLAP_NONE);

  for (int kind = OVERLAP_NONE; kind <= OVERLAP_CRYPTO; kind++)
    CHECK (strlen (overlap_name (kind)) > 0);
  overlap_free (o);
  overlap_free (NULL);
}

/* What overlap_find should say. */
static enum overlap_kind
model_find (const uint8_t *model, uint64_t first, uint64_t n)
{
  for (uint64_t i = first; i < first + n; i++)
    if (model[i] != OVERLAP_NONE)
      return model[i];
  return OVERLAP_NONE;
}

/* Random adds, removes of ranges that may have been added in many pieces, or not at all,
 * and look-ups.
 */
static void
test_model (uint64_t seed, unsigned adds)
{
  static uint8_t model[CLUSTERS];
  static bool clashed[CLUSTERS];
  unsigned removed = 0, clashes = 0;
  struct overlap *o = overlap_new (BITS);
  struct rng rng;

  CHECK (o != NULL);
  rng_init (&rng, seed, adds);
  memset (model, 0, sizeof model);
  memset (clashed, 0, sizeof clashed);
  model[0] = OVERLAP_HEADER;

  for (int i = 0; i < (long_suite () ? 40000 : 10000); i++) {
    uint64_t n = 1 + rng_below (&rng, rng_below (&rng, 4) ? 3 : 60);
    uint64_t first = rng_below (&rng, CLUSTERS - n);

    if (rng_below (&rng, 100) < adds) {
      enum overlap_kind kind = 1 + rng_below (&rng, KINDS);
      int r = overlap_add (o, first * cs, n * cs, kind);
      bool clash = false, named = false, past = false;

      for (uint64_t c = first; c < first + n; c++) {
        clash = clash || (model[c] != OVERLAP_NONE && model[c] != kind);
        named = named || model[c] == r;
        past = past || clashed[c];
        if (model[c] == OVERLAP_NONE)
          model[c] = kind;
      }
      /* It may name any of several earlier kinds, and clashes of the past. */
      if (past)
        CHECK (r >= 0 && r != (int) kind && (!clash || r > 0));
      else
        CHECK (clash ? r > 0 && r != (int) kind && named : r == 0);
      if (clash)
        memset (clashed + first, true, n);
      clashes += clash;
    }
    else {
      if (rng_below (&rng, 100) == 0) {
        n = 1 + rng_below (&rng, CLUSTERS / 8);
        first = rng_below (&rng, CLUSTERS - n);
      }
      overlap_remove (o, first * cs, n * cs);
      memset (model + first, 0, n);
      memset (clashed + first, 0, n);
      removed++;
    }

    n = 1 + rng_below (&rng, 40);
    first = rng_below (&rng, CLUSTERS - n - 1);
    CHECK (overlap_find (o, first * cs, n * cs) ==
           model_find (model, first, n));
    CHECK (overlap_find (o, first * cs + cs - 1, 2) ==
           model_find (model, first, 2));
  }

  for (uint64_t c = 0; c < CLUSTERS; c++)
    CHECK (overlap_find (o, c * cs, 1) == model[c]);
  CHECK (removed > 100 && (adds < 50 || clashes > 100));
  overlap_free (o);
}

/* Many single clusters: the table and the filter grow, and shrink in use. */
static void
test_many (uint64_t seed)
{
  enum { N = 200000 };
  struct overlap *o = overlap_new (BITS);
  struct rng rng;

  CHECK (o != NULL);
  rng_init (&rng, seed, 99);
  for (uint64_t i = 1; i < N; i++)
    CHECK (overlap_add (o, i * 7 * cs, cs, OVERLAP_L2) == 0);
  for (uint64_t i = 1; i < N; i++) {
    CHECK (overlap_find (o, i * 7 * cs, 1) == OVERLAP_L2);
    CHECK (overlap_find (o, (i * 7 + 1 + rng_below (&rng, 6)) * cs, 1) ==
           OVERLAP_NONE);
  }
  for (uint64_t i = 1; i < N; i += 2)
    overlap_remove (o, i * 7 * cs, cs);
  for (uint64_t i = 1; i < N; i++)
    CHECK (overlap_find (o, i * 7 * cs, 1) ==
           (i % 2 ? OVERLAP_NONE : OVERLAP_L2));
  overlap_free (o);
}

/* The longest range there can be goes as fast as what is in it. */
static void
test_all_at_once (void)
{
  enum { N = 20000 };
  struct overlap *o = overlap_new (BITS);

  CHECK (o != NULL);
  for (uint64_t round = 0; round < 20; round++) {
    for (uint64_t i = 1; i < N; i++)
      CHECK (overlap_add (o, i * (7 + round) * cs, cs, OVERLAP_L2) == 0);
    CHECK (overlap_add (o, UINT64_C (1) << 50, UINT64_C (1) << 49,
                        OVERLAP_BITMAP) == 0);
    overlap_remove (o, cs, (UINT64_C (1) << 56) - cs);
    for (uint64_t i = 1; i < N; i++)
      CHECK (overlap_find (o, i * (7 + round) * cs, cs) == OVERLAP_NONE);
    CHECK (overlap_find (o, UINT64_C (1) << 50, cs) == OVERLAP_NONE);
  }
  CHECK (overlap_find (o, 0, cs) == OVERLAP_HEADER);
  overlap_free (o);
}

/* --- between the steps of a lookup --- */

static struct {
  struct overlap *o;
  struct rng rng;
  bool in[100];                 /* clusters 100 and up */
} other;

/* Adds and removes others: the table grows, and clusters move within it. */
static void
change_others (void)
{
  const unsigned first = rng_below (&other.rng, 100);

  if (rng_below (&other.rng, 3) > 0)
    return;
  for (unsigned i = first; i < 100 && i < first + 8; i++) {
    if (other.in[i])
      overlap_remove (other.o, (100 + i) * cs, cs);
    else
      CHECK (overlap_add (other.o, (100 + i) * cs, cs, OVERLAP_REFBLOCK) == 0);
    other.in[i] = !other.in[i];
  }
}

/* A cluster that stays is found, and while the table changes, it says nothing. */
static void
test_between_steps (uint64_t seed)
{
  rng_init (&other.rng, seed, 3);
  for (unsigned round = 0; round < (long_suite () ? 2000u : 500u); round++) {
    other.o = overlap_new (BITS);
    memset (other.in, 0, sizeof other.in);
    CHECK (other.o && overlap_add (other.o, 5 * cs, cs, OVERLAP_L2) == 0);
    for (unsigned i = 0; i < 20; i++) {
      between = change_others;
      CHECK (overlap_find (other.o, 5 * cs, cs) == OVERLAP_L2);
      between = NULL;
    }
    CHECK (is_absent (other.o, 6));
    other.o->version++;
    CHECK (!is_absent (other.o, 6));
    other.o->version++;
    overlap_free (other.o);
  }
}

/* --- threads --- */

struct shared {
  struct overlap *o;
  uint64_t seed;
  atomic_bool stop;
  _Atomic uint64_t announced;   /* clusters up to this (times 5) are in */
};

/* A range so long that it takes time to put it into the filter. */
#define RANGE_OFFSET (UINT64_C (1) << 40)
#define RANGE_CLUSTERS 200000

/* Whatever was announced must be found, and what is never added must not. */
static void *
reader (void *arg)
{
  struct shared *s = arg;
  struct rng rng;

  rng_init (&rng, s->seed, 1);
  while (!atomic_load (&s->stop)) {
    uint64_t n = atomic_load (&s->announced);
    uint64_t i = 1 + rng_below (&rng, n);

    if (n == 0)
      continue;
    CHECK (overlap_find (s->o, i * 5 * cs, cs) == OVERLAP_L2);
    CHECK (overlap_find (s->o, (i * 5 + 1) * cs, cs) == OVERLAP_NONE);
  }
  return NULL;
}

static void *
churner (void *arg)
{
  struct shared *s = arg;

  while (!atomic_load (&s->stop)) {
    for (uint64_t i = 0; i < 50; i++)
      CHECK (overlap_add (s->o, (i * 5 + 2) * cs, cs, OVERLAP_REFBLOCK) == 0);
    for (uint64_t i = 0; i < 50; i++)
      overlap_remove (s->o, (i * 5 + 2) * cs, cs);
  }
  return NULL;
}

/* The start of the range stays while pieces are cut off its end. */
static void *
range_reader (void *arg)
{
  struct shared *s = arg;

  while (!atomic_load (&s->stop))
    CHECK (overlap_find (s->o, RANGE_OFFSET, cs) == OVERLAP_L1);
  return NULL;
}

static void
test_threads (uint64_t seed)
{
  struct shared s = { .o = overlap_new (BITS), .seed = seed };
  pthread_t threads[3];

  CHECK (s.o != NULL);
  CHECK (pthread_create (&threads[0], NULL, reader, &s) == 0);
  CHECK (pthread_create (&threads[1], NULL, reader, &s) == 0);
  CHECK (pthread_create (&threads[2], NULL, churner, &s) == 0);
  for (uint64_t i = 1; i <= 10000; i++) {
    CHECK (overlap_add (s.o, i * 5 * cs, cs, OVERLAP_L2) == 0);
    atomic_store (&s.announced, i);
  }
  atomic_store (&s.stop, true);
  for (int i = 0; i < 3; i++)
    pthread_join (threads[i], NULL);
  overlap_free (s.o);
}

static void
test_cutting_threads (void)
{
  struct shared s = { .o = overlap_new (BITS) };
  pthread_t thread;

  CHECK (s.o != NULL);
  CHECK (overlap_add (s.o, RANGE_OFFSET, RANGE_CLUSTERS * cs, OVERLAP_L1) == 0);
  CHECK (pthread_create (&thread, NULL, range_reader, &s) == 0);
  for (uint64_t i = 1; i < 1500; i++) {
    const uint64_t cut = RANGE_OFFSET + (RANGE_CLUSTERS - 2 * i) * cs;

    overlap_remove (s.o, cut, cs);
    CHECK (overlap_find (s.o, cut - cs, cs) == OVERLAP_L1);
    CHECK (overlap_find (s.o, cut, cs) == OVERLAP_NONE);
    CHECK (overlap_find (s.o, cut + cs, cs) == OVERLAP_L1);
  }
  atomic_store (&s.stop, true);
  pthread_join (thread, NULL);
  overlap_free (s.o);
}

int
main (void)
{
  uint64_t seed = seed_from_env ();

  test_basics ();
  test_model (seed, 20);
  test_model (seed, 50);
  test_model (seed, 60);
  test_many (seed);
  test_all_at_once ();
  test_between_steps (seed);
  test_threads (seed);
  test_cutting_threads ();
  return 0;
}
