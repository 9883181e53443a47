/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Compressed clusters: many threads share a pool, and each reads what it wrote.
 */

#include <config.h>

#include <string.h>

#include "format/compress.h"
#include "lib/stubs.h"

#define DEFLATE QCOW2_COMPRESSION_DEFLATE
#define ZSTD QCOW2_COMPRESSION_ZSTD

#define CLUSTER 8192

static struct compress_pool *pool;

struct worker {
  struct rng rng;
};

/* Nothing, words, or words with noise between them: all can be compressed. */
static void
fill (struct rng *r, unsigned char *buf)
{
  static const char words[] = "lorem ipsum dolor sit amet ";
  const unsigned kind = rng_below (r, 3);

  for (unsigned i = 0; i < CLUSTER; i++)
    if (kind == 0)
      buf[i] = 0;
    else if (kind == 1 || i / 64 % 4)
      buf[i] = words[i % (sizeof words - 1)];
    else
      buf[i] = rng_next (r);
}

static void *
work (void *arg)
{
  struct worker *w = arg;
  unsigned char in[CLUSTER], out[CLUSTER], again[CLUSTER];

  for (int i = 0; i < 100; i++) {
    const unsigned type =
      compress_supported (ZSTD) && rng_below (&w->rng, 2) ? ZSTD : DEFLATE;
    size_t len;

    fill (&w->rng, in);
    len = compress_deflate (pool, type, in, CLUSTER, out, CLUSTER);
    CHECK (len > 0);
    CHECK (compress_inflate (pool, type, out, len, again, CLUSTER) == 0);
    CHECK (memcmp (in, again, CLUSTER) == 0);
  }
  return NULL;
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  struct worker w[4];

  pool = compress_pool_new (NULL);
  CHECK (pool != NULL);
  for (int i = 0; i < 4; i++)
    rng_init (&w[i].rng, seed, i);
  run_threads (work, w, sizeof w[0], 4);
  compress_pool_free (pool);
  CHECK (error_count () == 0);
  return 0;
}
