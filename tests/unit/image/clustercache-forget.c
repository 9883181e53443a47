/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cache of decompressed clusters forgets overwritten clusters, by their first and by
 * their last byte, and no others; also a cluster that is being read.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "format/compress.h"
#include "lib/packed.h"

/* Does a read of this cluster find it there? */
static bool
is_cached (struct cluster_cache *c, struct packed_image *im, unsigned cluster)
{
  const uint64_t hits = stats_of (c).hits;

  CHECK (piece_is (c, im, cluster, 0, 10));
  return stats_of (c).hits == hits + 1;
}

/* Does the second half of the cluster that D stands for read as that of CLUSTER? */
static bool
read_is (struct cluster_cache *c, struct packed_image *im, uint64_t d,
         const unsigned char *cluster)
{
  unsigned char *buf = malloc (im->cs / 2);
  bool same;

  CHECK (buf != NULL);
  CHECK (cluster_cache_read (c, im->file, &im->header, LAYER, d, im->cs / 2,
                             im->cs / 2, buf) == 0);
  same = memcmp (buf, cluster + im->cs / 2, im->cs / 2) == 0;
  free (buf);
  return same;
}

static void
test_forget (unsigned bits, unsigned n)
{
  struct packed_image im;
  struct cluster_cache *c = cluster_cache_new (64 << 20);
  struct reader rd = { 0 }, waiter;
  uint64_t host, len, d;

  CHECK (c != NULL);
  packed_make (&im, bits, QCOW2_COMPRESSION_DEFLATE, n);
  cluster_cache_forget (c, LAYER, 0, UINT64_MAX);
  sequential (c, &im);

  /* Each is dropped by its first and its last byte, and by nothing else. */
  for (unsigned i = 0; i < n; i += 5) {
    CHECK (compress_descriptor (&im.header, im.descriptors[i], &host, &len));
    if (i > 0)
      CHECK (!is_cached (c, &im, i));
    CHECK (is_cached (c, &im, i));
    cluster_cache_forget (c, LAYER, 0, host);
    cluster_cache_forget (c, LAYER, host + len, host + len + 100000);
    cluster_cache_forget (c, LAYER, host + len, UINT64_MAX);
    cluster_cache_forget (c, LAYER, host + 1, host + 1);
    cluster_cache_forget (c, LAYER, host + 1, host);
    cluster_cache_forget (c, LAYER + 1, 0, UINT64_MAX);
    CHECK (is_cached (c, &im, i));
    cluster_cache_forget (c, LAYER, host, host + 1);
    CHECK (!is_cached (c, &im, i));
    cluster_cache_forget (c, LAYER, host + len - 1, host + len);
    CHECK (!is_cached (c, &im, i));
    cluster_cache_forget (c, LAYER, host + len / 2, host + len / 2 + 2);
    CHECK (!is_cached (c, &im, i));
    cluster_cache_forget (c, LAYER, 0, UINT64_MAX);
    CHECK (stats_of (c).bytes == 0);
    CHECK (!is_cached (c, &im, i));
  }

  /* The same descriptor, but other bytes: those of cluster 0, then those of 1. */
  host = 1 << 30;
  CHECK (compress_encode (&im.header, host, im.cs, &d));
  for (unsigned i = 0; i < 2; i++) {
    unsigned char *copy = malloc (2 * im.cs);
    uint64_t from, bytes;

    CHECK (copy != NULL);
    CHECK (compress_descriptor (&im.header, im.descriptors[i], &from, &bytes));
    CHECK (storage_read (im.file, copy, bytes, from) == 0);
    cluster_cache_forget (c, LAYER, host, host + bytes);
    CHECK (storage_write (im.file, copy, bytes, host) == 0);
    memcpy (copy, im.clusters[i], im.cs);
    CHECK (read_is (c, &im, d, copy));
    CHECK (read_is (c, &im, d, copy));
    free (copy);
  }

  /* While it is being read: those who wait get it, and it is not kept. */
  cluster_cache_forget (c, LAYER, 0, UINT64_MAX);
  gate_set (&im.gate, true, 0);
  rd = (struct reader) { .cache = c, .im = &im, .cluster = n - 1, .len = 50 };
  waiter = rd;
  len = stats_of (c).waits;
  reader_start (&rd);
  gate_wait (&im.gate, 1);
  reader_start (&waiter);
  wait_for_waits (c, len + 1);
  cluster_cache_forget (c, LAYER, 0, UINT64_MAX);
  CHECK (stats_of (c).bytes > im.cs);   /* not yet */
  gate_set (&im.gate, false, 0);
  reader_join (&rd);
  reader_join (&waiter);
  CHECK (rd.ok && waiter.ok);
  CHECK (stats_of (c).bytes == 0);
  CHECK (!is_cached (c, &im, n - 1));

  cluster_cache_free (c);
  packed_free (&im);
}

int
main (void)
{
  packed_seed = seed_from_env ();

  test_forget (9, 300);
  test_forget (16, 12);
  test_forget (21, 3);
  return 0;
}
