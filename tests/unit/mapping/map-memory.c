/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mapping cache: does it use no more memory than it reports, does it make good use of
 * its limit, and (unit/mapping/map-memory --bench, not run by default) how long does a
 * hit take?
 */

#include <config.h>

#include <inttypes.h>
#include <malloc.h>
#include <string.h>
#include <time.h>

#include "mapping/map.h"
#include "lib/stubs.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature (address_sanitizer) || __has_feature (thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined __GLIBC__ && !defined SANITIZED
#if __GLIBC_PREREQ (2, 33)
#define MALLOC_TELLS 1
#endif
#endif

/* What malloc has handed out, or 0 if it can't tell. */
static double
allocated (void)
{
#ifdef MALLOC_TELLS
  return mallinfo2 ().uordblks;
#else
  return 0;
#endif
}

static uint64_t
held (struct map *map)
{
  struct map_stats stats;

  map_get_stats (map, &stats);
  return stats.bytes;
}

struct pattern { unsigned units; bool in_order; };

static int
pattern_load (void *opaque, uint64_t slice, unsigned n, struct map_fill *fill)
{
  const struct pattern *p = opaque;
  struct rng rng;

  CHECK (n == 1);
  if (p->in_order)
    return map_fill_add (fill, p->units, RUN_NORMAL, true, 0,
                         slice * p->units << 16);
  rng_init (&rng, slice, 0);
  for (unsigned i = 0; i < p->units; i++)
    if (map_fill_add (fill, 1, RUN_NORMAL, true, 0,
                      rng_below (&rng, 1 << 20) << 16) == -1)
      return -1;
  return 0;
}

static const struct map_ops pattern_ops = { .load = pattern_load };

static void
test_density (void)
{
  const uint64_t slices = 8192;         /* 256 GiB of 64K clusters */
  struct pattern p = { .units = 512 };
  struct map *map;
  struct map_space *space;
  struct run run;
  uint64_t base, first, i;
  double before;

  for (int in_order = 0; in_order < 2; in_order++) {
    p.in_order = in_order;
    map = map_new (UINT64_MAX);
    CHECK (map);
    base = held (map);
    first = 0;
    /* Twice the same, to see that nothing stays counted. */
    for (int round = 0; round < 2; round++) {
      space = map_space_new (map, 16, 512, 0, &pattern_ops, &p);
      CHECK (space);
      before = allocated ();
      for (i = 0; i < slices; i++)
        CHECK (map_lookup (space, i << 25, 1, &run) == 0);
      if (round == 0) {
        const double count = held (map) - base;
        const double real = allocated () - before;

        printf ("%s: %.1f bytes per slice, %.3f per cluster; malloc says %.1f\n",
                in_order ? "in order " : "at random", count / slices,
                count / slices / 512, real / slices);
        CHECK (count / slices <= (in_order ? 140 : 512 * 2.9));
        if (real > 0)
          CHECK (real <= count * 1.02 && real >= count * 0.7);
      }
      map_space_free (space);
      /* (Tables may have grown, by 16 bytes per slice at most.) */
      CHECK (round == 0 || held (map) <= first + slices * 16);
      first = held (map);
    }
    map_free (map);
  }
}

static void
test_limit (void)
{
  const uint64_t slices = 8192;
  struct pattern p = { .units = 512 };
  struct map *map = map_new (1 << 20);
  struct map_space *space;
  struct run run;
  uint64_t i;

  /* A hot slice outlives a scan that is larger than the limit. */
  CHECK (map);
  space = map_space_new (map, 16, 512, 0, &pattern_ops, &p);
  CHECK (space);
  for (i = 0; i < slices; i++) {
    struct map_stats a, b;

    map_get_stats (map, &a);
    CHECK (map_lookup (space, 3 << 25, 1, &run) == 0);
    map_get_stats (map, &b);
    CHECK (i == 0 || b.misses == a.misses);
    if (i != 3)
      CHECK (map_lookup (space, i << 25, 1, &run) == 0);
    CHECK (held (map) <= 1 << 20);
  }
  /* And the limit is made use of. */
  CHECK (held (map) > (1 << 20) - 4096);
  map_free (map);
}

/* However small the limit is, two slices that are used in turn are not read again
 * and again; and no more than that is kept. */
static void
test_least (void)
{
  struct pattern p = { .units = 8192 };
  struct map *map = map_new (0);
  struct map_space *space;
  struct map_stats stats;
  struct run run;

  CHECK (map);
  space = map_space_new (map, 16, p.units, 0, &pattern_ops, &p);
  CHECK (space);
  for (uint64_t i = 0; i < 1000; i++)
    CHECK (map_lookup (space, (i % 2) << 29 | i << 16, 1, &run) == 0);
  map_get_stats (map, &stats);
  CHECK (stats.misses == 2 && stats.hits == 998);
  for (uint64_t i = 0; i < 100; i++)
    CHECK (map_lookup (space, i << 29, 1, &run) == 0);
  map_get_stats (map, &stats);
  CHECK (stats.evictions > 90);
  CHECK (stats.bytes < (16 << 10) + 2 * (64 << 10));
  map_free (map);
}

/* --- slices with a raw form --- */

#define RAW_UNITS 512u          /* per slice */

/* The raw form: host offsets.  OPAQUE says how many units a run has. */
static int
load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  const unsigned fragment = *(unsigned *) opaque;
  uint64_t *host = raw;
  struct rng rng;

  CHECK (n == 1);
  rng_init (&rng, slice, 0);
  for (unsigned i = 0; i < RAW_UNITS; i++)
    host[i] = i % fragment ? host[i - 1] + (1 << 16)
                           : rng_below (&rng, 1 << 20) << 16;
  return 0;
}

static unsigned
decode_raw (void *opaque, const void *raw, unsigned unit, unsigned max,
              struct run *run)
{
  const uint64_t *host = (const uint64_t *) raw + unit;
  unsigned n;

  (void) opaque;
  run->kind = RUN_NORMAL;
  run->copied = true;
  run->layer = 0;
  run->host = *host;
  for (n = 1; n < max && host[n] == *host + ((uint64_t) n << 16); n++)
    ;
  return n;
}

static const struct map_ops raw_ops = {
  .load_raw = load_raw, .decode = decode_raw
};

/* Slices that can't go are in nobody's way, however many they are: most of the time of
 * those who need memory would be spent looking at them. */
static void
test_unevictable (void)
{
  const uint64_t dirty = 4096, others = 4096;
  unsigned fragment = 1;
  struct map *map = map_new (1 << 20);
  struct map_space *space;
  struct map_stats stats;
  struct map_dirty *items;
  struct map_slice *s;
  struct run run;
  uint64_t made, i;
  bool barrier;
  int n;

  CHECK (map);
  space = map_space_new (map, 16, RAW_UNITS, RAW_UNITS * sizeof (uint64_t),
                         &raw_ops, &fragment);
  CHECK (space);
  for (i = 0; i < dirty; i++) {
    s = map_pin (space, i);
    CHECK (s);
    map_edit_begin (s);
    map_edit_end (s, MAP_CHANGED);
    map_unpin (s);
  }
  for (; i < dirty + others; i++) {
    CHECK (map_lookup (space, i * RAW_UNITS << 16, 1, &run) == 0);
    map_unpin (map_pin (space, i));
  }
  map_get_stats (map, &stats);
  made = stats.evictions + stats.packs;
  printf ("%" PRIu64 " looks for %" PRIu64 " slices packed or evicted\n",
          stats.looks, made);
  CHECK (made >= others);
  CHECK (stats.looks <= 3 * (made + stats.hits));

  /* And when they can go, they do. */
  n = map_take_dirty (space, &items, &barrier);
  CHECK (n == (int) dirty);
  map_written (space, items, n, true);
  CHECK (held (map) <= 1 << 20);
  map_free (map);
}

/* A slice that is only looked up, long after its last change, is packed, but not before
 * the change is in the file. */
static void
test_settled (void)
{
  unsigned fragment = 8;
  struct map *map = map_new (UINT64_MAX);
  struct map_space *space;
  struct map_stats stats;
  struct map_dirty *items;
  struct map_slice *s;
  struct run run;
  bool barrier;

  CHECK (map);
  space = map_space_new (map, 16, RAW_UNITS, RAW_UNITS * sizeof (uint64_t),
                         &raw_ops, &fragment);
  CHECK (space);
  for (unsigned round = 0; round < 3; round++) {
    s = map_pin (space, 7);
    CHECK (s);
    map_edit_begin (s);
    map_edit_end (s, MAP_CHANGED);
    map_unpin (s);
    for (uint64_t i = 0; i < 10000; i++)
      CHECK (map_lookup (space, (7 * RAW_UNITS + i % RAW_UNITS) << 16, 1, &run) == 0);
    CHECK (run.unsettled);
    map_get_stats (map, &stats);
    CHECK (stats.packs == round && stats.bytes > RAW_UNITS * sizeof (uint64_t));

    CHECK (map_take_dirty (space, &items, &barrier) == 1);
    map_written (space, items, 1, true);
    for (uint64_t i = 0; i < 10000; i++)
      CHECK (map_lookup (space, (7 * RAW_UNITS + i % RAW_UNITS) << 16, 1, &run) == 0);
    CHECK (!run.unsettled);
    map_get_stats (map, &stats);
    CHECK (stats.packs == round + 1 && stats.evictions == 0);
  }
  map_free (map);
}

/* --- how fast? --- */

#define BENCH_SLICES 320u       /* 10 GiB of 64K */
#define BENCH_LOOKS 10000000u

struct bench_thread {
  struct map_space *space;
  struct rng rng;
  uint64_t sum;
  double ns;
};

static void *
bench_thread (void *arg)
{
  const uint64_t size = (uint64_t) BENCH_SLICES * RAW_UNITS << 16;
  struct bench_thread *b = arg;
  struct timespec t0, t1;
  struct run run;

  /* Its own time, on a machine that may have other things to do. */
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t0);
  for (unsigned i = 0; i < BENCH_LOOKS; i++) {
    CHECK (map_lookup (b->space, rng_next (&b->rng) % size & ~UINT64_C (4095),
                       4096, &run) == 0);
    b->sum += run.host;
  }
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t1);
  b->ns = ((t1.tv_sec - t0.tv_sec) * 1e9 + (t1.tv_nsec - t0.tv_nsec))
          / BENCH_LOOKS;
  return NULL;
}

static void
bench (const char *what, unsigned fragment, bool raw)
{
  struct map *map = map_new (UINT64_MAX);
  struct map_space *space;
  struct run run;

  CHECK (map);
  space = map_space_new (map, 16, RAW_UNITS, RAW_UNITS * sizeof (uint64_t),
                         &raw_ops, &fragment);
  CHECK (space);
  for (uint64_t i = 0; i < BENCH_SLICES; i++) {
    if (raw)
      map_unpin (map_pin (space, i));
    else
      CHECK (map_lookup (space, i * RAW_UNITS << 16, 1, &run) == 0);
  }
  for (unsigned threads = 1; threads <= 2; threads++) {
    struct bench_thread b[2];

    for (unsigned i = 0; i < threads; i++) {
      b[i] = (struct bench_thread) { .space = space };
      rng_init (&b[i].rng, 7, i);
    }
    run_threads (bench_thread, b, sizeof b[0], threads);
    printf ("%-20s %u thread%s %6.1f ns per hit\n", what, threads,
            threads > 1 ? "s:" : ": ", b[0].ns);
  }
  map_free (map);
}

int
main (int argc, char *argv[])
{
  if (argc > 1 && strcmp (argv[1], "--bench") == 0) {
    bench ("runs (1 per slice)", 512, false);
    bench ("list (64 per slice)", 8, false);
    bench ("array (at random)", 1, false);
    bench ("raw", 1, true);
    return 0;
  }
  test_density ();
  test_limit ();
  test_least ();
  test_unevictable ();
  test_settled ();
  return 0;
}
