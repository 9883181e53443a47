/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How far back do compressed clusters refer?  By default no further than a decoder can
 * look that was told of a window of 4K, even if it decodes piece by piece and has nothing
 * but its window.  The long window makes clusters smaller; a decoder reads them that
 * decodes a cluster with one call, as QEMU's does, whatever window it was told of.
 *
 * Each cluster repeats a random block that is a little shorter than 32K, so only long
 * distances can make it smaller.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "format/compress.h"
#include "format/format.h"
#include "lib/stubs.h"

#define DEFLATE QCOW2_COMPRESSION_DEFLATE
#define QEMU_WINDOW (-12)
#define MOST (2u << 20)

static unsigned char in[MOST], out[MOST], again[MOST];

/* Blocks, and short texts that even a short window finds. */
static void
make_cluster (struct rng *rng, size_t size)
{
  const size_t block = 31000 + rng_below (rng, 1500);
  const size_t near = 100 + rng_below (rng, 400);

  for (size_t i = 0; i < size; i++)
    in[i] = i < near ? rng_next (rng)
      : i < block ? (i / near % 3 == 0 ? in[i - near] : rng_next (rng))
      : in[i - block];
}

/* Decodes LEN bytes of out[], PIECE bytes at a time.  False: it is refused. */
static bool
decodes (size_t len, size_t size, size_t piece)
{
  z_stream z = { 0 };
  int r = Z_OK;

  memset (again, 0xee, size);
  CHECK (inflateInit2 (&z, QEMU_WINDOW) == Z_OK);
  z.next_in = out;
  z.avail_in = len;
  for (size_t done = 0; done < size && (r == Z_OK || r == Z_BUF_ERROR); done += piece) {
    z.next_out = again + done;
    z.avail_out = piece;
    r = inflate (&z, piece == size ? Z_FINISH : Z_SYNC_FLUSH);
  }
  inflateEnd (&z);
  return (r == Z_OK || r == Z_BUF_ERROR || r == Z_STREAM_END) &&
    memcmp (in, again, size) == 0;
}

static void
test_size (struct rng *rng, size_t size, unsigned level)
{
  const struct compress_options s = { .level = level };
  const struct compress_options l = { .level = level, .long_window = true };
  struct compress_pool *near = compress_pool_new (&s), *far = compress_pool_new (&l);
  size_t len, before;

  CHECK (near && far);
  make_cluster (rng, size);

  before = compress_deflate (near, DEFLATE, in, size, out, size);
  CHECK (before > 0 && decodes (before, size, 4096) && decodes (before, size, size));

  len = compress_deflate (far, DEFLATE, in, size, out, size);
  CHECK (len > 0 && len < before * 9 / 10);
  CHECK (decodes (len, size, size));
  CHECK (!decodes (len, size, 4096));   /* or it would not be long */
  memset (again, 0, size);
  CHECK (compress_inflate (near, DEFLATE, out, len, again, size) == 0);
  CHECK (memcmp (in, again, size) == 0);
  printf ("%zu, level %u: %zu, %zu with the long window\n", size, level, before, len);
  compress_pool_free (near);
  compress_pool_free (far);
}

/* Levels matter. */
static void
test_levels (struct rng *rng, unsigned type, bool long_window)
{
  const unsigned most = compress_max_level (type, long_window);
  const struct compress_options fast = { 1, long_window }, slow = { most, long_window };
  struct compress_pool *a = compress_pool_new (&fast), *b = compress_pool_new (&slow);
  size_t quick, thorough;

  CHECK (a && b);
  for (size_t i = 0; i < 65536; i++)
    in[i] = rng_below (rng, 4) == 0 || i < 50 ? rng_below (rng, 6)
      : in[i - 1 - rng_below (rng, 50)];
  quick = compress_deflate (a, type, in, 65536, out, 65536);
  thorough = compress_deflate (b, type, in, 65536, out, 65536);
  CHECK (thorough > 0 && thorough < quick);
  CHECK (compress_inflate (a, type, out, thorough, again, 65536) == 0);
  CHECK (memcmp (in, again, 65536) == 0);
  compress_pool_free (a);
  compress_pool_free (b);
}

int
main (void)
{
  static const unsigned levels[] = { 0, 1, 6, 9 };
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  for (unsigned i = 0; i < 4; i++) {
    test_size (&rng, 64 << 10, levels[i]);
    test_size (&rng, 512 << 10, levels[i]);
  }
  test_size (&rng, MOST, 0);
  test_levels (&rng, DEFLATE, false);
  test_levels (&rng, DEFLATE, true);
  if (compress_supported (QCOW2_COMPRESSION_ZSTD))
    test_levels (&rng, QCOW2_COMPRESSION_ZSTD, false);
  return 0;
}
