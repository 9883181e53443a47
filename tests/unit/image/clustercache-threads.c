/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cache of decompressed clusters, with many readers: readers of the same cluster wait
 * for each other, and it is decompressed once; readers of different clusters do not wait;
 * all readers that waited get the same error; and all of this at once, at random.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "format/compress.h"
#include "lib/packed.h"

#define MAX_THREADS 8

/* Readers of one cluster; WHOLE are for all of it, the leader if LEAD_WHOLE. */
static void
test_single_flight (unsigned n, unsigned whole, bool lead_whole, int fail)
{
  struct reader rd[MAX_THREADS] = { 0 };
  struct packed_image im;
  struct cluster_cache *c = cluster_cache_new (1 << 20);
  struct cluster_cache_stats s;
  const unsigned long errors = error_count ();

  CHECK (c != NULL);
  packed_make (&im, 16, QCOW2_COMPRESSION_DEFLATE, 4);
  quiet_errors = fail != 0;
  gate_set (&im.gate, true, fail);

  for (unsigned i = 0; i < n; i++) {
    const bool all = i == 0 ? lead_whole : i <= whole;

    rd[i] = (struct reader) {
      .cache = c, .im = &im, .cluster = 2,
      .within = all ? 0 : i * 5000, .len = all ? im.cs : PIECE,
    };
    reader_start (&rd[i]);
    if (i == 0)
      gate_wait (&im.gate, 1);
  }
  wait_for_waits (c, n - 1);
  gate_set (&im.gate, false, fail);
  for (unsigned i = 0; i < n; i++) {
    reader_join (&rd[i]);
    CHECK (rd[i].ok == !fail);
    CHECK (rd[i].err == fail);
  }
  s = stats_of (c);
  CHECK (s.inflations == 1 && s.waits == n - 1 && im.gate.reads == 1);
  CHECK (error_count () == errors + (fail != 0));

  /* A failure does not stick; a success does, unless nobody had a use for it. */
  gate_set (&im.gate, false, 0);
  if (fail)
    CHECK (s.bytes == 0);
  CHECK (piece_is (c, &im, 2, 1, 100));
  CHECK (im.gate.reads == (fail ? 2 : 1));
  quiet_errors = false;
  cluster_cache_free (c);
  packed_free (&im);
}

/* Different clusters are read and inflated at the same time. */
static void
test_parallel (void)
{
  struct reader rd[MAX_THREADS] = { 0 };
  struct packed_image im;
  struct cluster_cache *c = cluster_cache_new (0);

  CHECK (c != NULL);
  packed_make (&im, 12, QCOW2_COMPRESSION_DEFLATE, MAX_THREADS + 1);
  CHECK (piece_is (c, &im, MAX_THREADS, 0, 1));
  gate_set (&im.gate, true, 0);
  for (unsigned i = 0; i < MAX_THREADS; i++) {
    rd[i] = (struct reader) {
      .cache = c, .im = &im, .cluster = i, .within = 2050, .len = 100 * i,
    };
    reader_start (&rd[i]);
  }
  gate_wait (&im.gate, MAX_THREADS);

  /* They are more than the limit: all are kept as long as they are needed, and what is
   * not has gone. */
  CHECK (stats_of (c).bytes >= MAX_THREADS * im.cs);
  CHECK (stats_of (c).bytes <= MAX_THREADS * (im.cs + OVERHEAD));
  CHECK (stats_of (c).evictions == 1);
  gate_set (&im.gate, false, 0);
  for (unsigned i = 0; i < MAX_THREADS; i++) {
    reader_join (&rd[i]);
    CHECK (rd[i].ok);
  }
  CHECK (stats_of (c).waits == 0);

  /* The next one brings them back within the limit. */
  CHECK (piece_is (c, &im, MAX_THREADS, 0, 1));
  CHECK (stats_of (c).bytes <= CLUSTER_CACHE_MIN * (im.cs + OVERHEAD));
  cluster_cache_free (c);
  packed_free (&im);
}

/* Everything at once. */
static void
test_stress (unsigned bits, unsigned type, unsigned rounds)
{
  struct reader rd[4] = { 0 };
  struct packed_image im;
  struct cluster_cache *c;
  struct cluster_cache_stats s;
  struct rng r;
  uint64_t limit, bound, host, bytes;

  packed_make (&im, bits, type, 24);
  limit = 6 * im.cs;
  c = cluster_cache_new (limit);
  CHECK (c != NULL);
  rng_init (&r, packed_seed, 2);

  for (unsigned i = 0; i < 4; i++) {
    rd[i] = (struct reader) {
      .cache = c, .im = &im, .rounds = rounds, .stream = 10 + i,
    };
    reader_start (&rd[i]);
  }
  for (unsigned i = 0; i < rounds / 4; i++) {
    CHECK (compress_descriptor (&im.header, im.descriptors[rng_below (&r, im.n)],
                                &host, &bytes));
    if (rng_below (&r, 20) == 0)
      bytes = UINT64_MAX - host;
    cluster_cache_forget (c, LAYER, host, host + bytes);
    usleep (100);
  }
  for (unsigned i = 0; i < 4; i++)
    reader_join (&rd[i]);

  s = stats_of (c);
  bound = limit;
  if (bound < CLUSTER_CACHE_MIN * (im.cs + OVERHEAD))
    bound = CLUSTER_CACHE_MIN * (im.cs + OVERHEAD);
  CHECK (s.peak_bytes <= bound && s.bytes <= bound);
  printf ("%s, %" PRIu64 ": %" PRIu64 " hits, %" PRIu64 " inflations, %" PRIu64
          " waits, %" PRIu64 " evictions\n", compress_name (type), im.cs, s.hits,
          s.inflations, s.waits, s.evictions);
  cluster_cache_free (c);
  packed_free (&im);
}

int
main (void)
{
  const bool zstd = compress_supported (QCOW2_COMPRESSION_ZSTD);

  packed_seed = seed_from_env ();

  for (unsigned fail = 0; fail <= EIO; fail += EIO) {
    test_single_flight (2, 0, false, fail);
    test_single_flight (8, 0, false, fail);
    test_single_flight (8, 3, false, fail);
    test_single_flight (8, 0, true, fail);
    test_single_flight (8, 7, true, fail);
  }
  test_parallel ();
  for (unsigned bits = 9; bits <= 16; bits += 7) {
    test_stress (bits, QCOW2_COMPRESSION_DEFLATE, 1000);
    if (zstd)
      test_stress (bits, QCOW2_COMPRESSION_ZSTD, 1000);
  }
  return 0;
}
