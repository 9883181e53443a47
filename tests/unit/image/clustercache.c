/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cache of decompressed clusters: its data is correct; each cluster is decompressed
 * once, and the most recently used ones are kept; memory is limited; a cluster that
 * cannot be read or decompressed gives an error, and leaves nothing behind.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "format/compress.h"
#include "lib/packed.h"

static void
test_basics (unsigned bits, unsigned type)
{
  struct packed_image im;
  struct cluster_cache *c;
  struct cluster_cache_stats s;
  const unsigned n = bits < 16 ? 64 : bits < 20 ? 12 : 8;
  const uint64_t cs = UINT64_C (1) << bits, limit = 6 * (cs + OVERHEAD);

  packed_make (&im, bits, type, n);
  c = cluster_cache_new (limit);
  CHECK (c != NULL);

  sequential (c, &im);
  s = stats_of (c);
  CHECK (s.bytes <= limit && s.peak_bytes <= limit);
  CHECK (s.evictions + limit / cs >= n);
  CHECK (s.bytes >= 4 * cs);

  /* The last few are still there, and whole clusters come from there, too. */
  CHECK (piece_is (c, &im, n - 1, 0, cs));
  CHECK (piece_is (c, &im, n - 3, 0, cs));
  CHECK (stats_of (c).hits == s.hits + 2);
  CHECK (stats_of (c).inflations == s.inflations);

  /* What was used last goes last. */
  CHECK (piece_is (c, &im, n - 4, 1, 1));
  for (unsigned i = 0; i < 3; i++)
    CHECK (piece_is (c, &im, i, 0, 1));
  s = stats_of (c);
  CHECK (piece_is (c, &im, n - 4, 2, 1));
  CHECK (stats_of (c).hits == s.hits + 1);

  /* Whole clusters that are not there: one inflation each, nothing is kept, nothing
   * is evicted. */
  s = stats_of (c);
  CHECK (piece_is (c, &im, 3, 0, cs));
  CHECK (piece_is (c, &im, 3, 0, cs));
  CHECK (stats_of (c).inflations == s.inflations + 2);
  CHECK (stats_of (c).evictions == s.evictions);
  CHECK (stats_of (c).bytes == s.bytes);

  CHECK (piece_is (c, &im, 3, cs, 0));
  cluster_cache_free (c);

  /* However small the limit, a few clusters are kept. */
  c = cluster_cache_new (0);
  CHECK (c != NULL);
  sequential (c, &im);
  for (unsigned i = 0; i < 20; i++)
    CHECK (piece_is (c, &im, i % CLUSTER_CACHE_MIN, cs / 2 + i, 1));
  CHECK (stats_of (c).inflations == n + CLUSTER_CACHE_MIN);
  CHECK (stats_of (c).peak_bytes <= CLUSTER_CACHE_MIN * (cs + OVERHEAD));
  cluster_cache_free (c);
  cluster_cache_free (NULL);
  packed_free (&im);
}

/* Layers with clusters of different sizes: each entry has a buffer of its own size, also
 * one that comes from an entry that was evicted. */
static void
test_sizes (unsigned type)
{
  const uint64_t limit = 6 * (65536 + OVERHEAD);
  struct packed_image images[3];
  struct cluster_cache *c = cluster_cache_new (limit);
  struct rng r;

  CHECK (c != NULL);
  rng_init (&r, packed_seed, type);
  for (unsigned i = 0; i < 3; i++) {
    packed_make (&images[i], 9 + 7 * i / 2, type, 64);
    images[i].layer = LAYER + i;
  }
  for (unsigned i = 0; i < 3000; i++) {
    struct packed_image *im = &images[i / 100 % 2 ? rng_below (&r, 3) : i / 200 % 3];
    const uint64_t within = im->cs / 2 + rng_below (&r, im->cs / 2);

    /* From the second half, which is never read without the cache. */
    CHECK (piece_is (c, im, rng_below (&r, im->n), within, im->cs - within));
  }
  CHECK (stats_of (c).evictions > 100);
  CHECK (stats_of (c).peak_bytes <= limit);
  cluster_cache_free (c);
  for (unsigned i = 0; i < 3; i++)
    packed_free (&images[i]);
}

/* Something in the first half of a cluster, at random, when the cache is full: read
 * without it once. */
static void
test_passing (unsigned type)
{
  const bool can = type == QCOW2_COMPRESSION_DEFLATE;
  uint64_t host, bytes;
  struct packed_image im;
  struct cluster_cache *c = cluster_cache_new (0);
  struct cluster_cache_stats s;

  CHECK (c != NULL);
  packed_make (&im, 16, type, 9);

  /* While there is room all is kept. */
  for (unsigned i = 0; i < CLUSTER_CACHE_MIN; i++)
    for (unsigned j = 0; j < 2; j++)
      CHECK (piece_is (c, &im, i, 1000 + j, 2000));
  s = stats_of (c);
  CHECK (s.inflations == CLUSTER_CACHE_MIN && s.hits == CLUSTER_CACHE_MIN);

  CHECK (piece_is (c, &im, 4, 1000, 2000));
  CHECK (stats_of (c).inflations == s.inflations + 1);
  CHECK (stats_of (c).evictions == (can ? 0 : 1));
  CHECK (piece_is (c, &im, 4, 20000, 12768));
  CHECK (piece_is (c, &im, 4, 60000, 5536));
  CHECK (stats_of (c).inflations == s.inflations + (can ? 2 : 1));
  CHECK (stats_of (c).hits == s.hits + (can ? 1 : 2));
  CHECK (stats_of (c).evictions == 1);

  /* The beginning, and what lies behind the first half, are loaded at once. */
  s = stats_of (c);
  CHECK (piece_is (c, &im, 5, 0, 1));
  CHECK (piece_is (c, &im, 5, 1, 1));
  CHECK (piece_is (c, &im, 6, im.cs / 2, 1));
  CHECK (piece_is (c, &im, 6, 1, 1));
  CHECK (stats_of (c).inflations == s.inflations + 2);
  CHECK (stats_of (c).hits == s.hits + 2);

  /* An error is reported once, and the next one tries again. */
  quiet_errors = true;
  for (int i = 0; i < 2; i++) {
    const unsigned long errors = error_count ();

    gate_set (&im.gate, false, EIO);
    CHECK (!piece_is (c, &im, 7, 100, 100) && errno == EIO);
    CHECK (error_count () == errors + 1);
  }
  gate_set (&im.gate, false, 0);
  CHECK (piece_is (c, &im, 7, 100, 100));
  CHECK (compress_descriptor (&im.header, im.descriptors[8], &host, &bytes));
  CHECK (storage_write (im.file, "\377\377\377\377", 4, host) == 0);
  for (int i = 0; i < 2; i++) {
    const unsigned long errors = error_count ();

    CHECK (!piece_is (c, &im, 8, 100, 100) && errno == EIO);
    CHECK (error_count () == errors + 1);
  }
  quiet_errors = false;
  cluster_cache_free (c);
  packed_free (&im);
}

static bool
refused (struct cluster_cache *c, struct packed_image *im, unsigned cluster, uint64_t len)
{
  const unsigned long errors = error_count ();

  clear_last_error ();
  if (piece_is (c, im, cluster, 0, len))
    return false;
  CHECK (errno == EIO);
  CHECK (error_count () == errors + 1);
  CHECK (strstr (last_error (), im->path) != NULL);
  return true;
}

static void
test_garbage (unsigned type)
{
  struct packed_image im;
  struct cluster_cache *c = cluster_cache_new (1 << 20);
  uint64_t host, bytes, d;
  unsigned char garbage[600], good[600];
  char text[32];
  struct rng r;

  CHECK (c != NULL);
  packed_make (&im, 14, type, 5);
  rng_init (&r, packed_seed, 1);
  packed_fill (&r, garbage, sizeof garbage);
  memset (garbage, 0xff, 8);
  quiet_errors = true;

  CHECK (compress_descriptor (&im.header, im.descriptors[1], &host, &bytes));
  CHECK (storage_read (im.file, good, sizeof good, host) == 0);
  CHECK (storage_write (im.file, garbage, sizeof garbage, host) == 0);
  CHECK (refused (c, &im, 1, 100));
  snprintf (text, sizeof text, "offset %" PRIu64 " ", host);
  CHECK (strstr (last_error (), text) != NULL);
  CHECK (strstr (last_error (), "beyond the end") == NULL);
  CHECK (refused (c, &im, 1, im.cs));
  CHECK (stats_of (c).bytes == 0);

  /* Its neighbours are as they were, and so is it when its bytes are. */
  CHECK (piece_is (c, &im, 0, 0, 100));
  CHECK (piece_is (c, &im, 2, 0, im.cs));
  CHECK (storage_write (im.file, good, sizeof good, host) == 0);
  CHECK (piece_is (c, &im, 1, 0, 100));

  /* Behind the end of the file; far behind it; where nothing can be. */
  CHECK (compress_descriptor (&im.header, im.descriptors[4], &host, &bytes));
  CHECK (piece_is (c, &im, 4, 0, im.cs));
  CHECK (storage_truncate (im.file, host) == 0);
  CHECK (refused (c, &im, 4, 100));
  CHECK (strstr (last_error (), "beyond the end") != NULL);
  d = im.descriptors[4];
  CHECK (compress_encode (&im.header, UINT64_C (1) << 50, 700,
                          &im.descriptors[4]));
  CHECK (refused (c, &im, 4, 100));
  im.descriptors[4] = (UINT64_C (1) << 62) - 1;
  CHECK (refused (c, &im, 4, im.cs));
  im.descriptors[4] = d;

  if (!compress_supported (QCOW2_COMPRESSION_ZSTD)) {
    im.header.compression_type = QCOW2_COMPRESSION_ZSTD;
    clear_last_error ();
    CHECK (!piece_is (c, &im, 3, 0, 10));
    CHECK (strstr (last_error (), "zstd") != NULL);
  }
  quiet_errors = false;
  cluster_cache_free (c);
  packed_free (&im);
}

int
main (void)
{
  const bool zstd = compress_supported (QCOW2_COMPRESSION_ZSTD);

  packed_seed = seed_from_env ();

  for (unsigned bits = 9; bits <= 21; bits += 4) {
    test_basics (bits, QCOW2_COMPRESSION_DEFLATE);
    if (zstd)
      test_basics (bits, QCOW2_COMPRESSION_ZSTD);
  }
  test_sizes (QCOW2_COMPRESSION_DEFLATE);
  if (zstd)
    test_sizes (QCOW2_COMPRESSION_ZSTD);
  test_passing (QCOW2_COMPRESSION_DEFLATE);
  if (zstd)
    test_passing (QCOW2_COMPRESSION_ZSTD);
  test_garbage (QCOW2_COMPRESSION_DEFLATE);
  if (zstd)
    test_garbage (QCOW2_COMPRESSION_ZSTD);
  return 0;
}
