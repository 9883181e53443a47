/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do tests of the cache of decompressed clusters read?
 *
 * Files with compressed clusters, but without the tables of an image.  Between them and
 * the host is a gate, where reads are counted, delayed, or made to fail.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/compress.h"
#include "lib/packed.h"

uint64_t packed_seed;

static int
at_gate (void *opaque, const char *path, enum storage_op op,
         const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
         bool dsync)
{
  struct gate *g = opaque;
  int err;

  (void) path; (void) iov; (void) niov; (void) offset; (void) count; (void) dsync;
  if (op != STORAGE_OP_READ)
    return 0;
  pthread_mutex_lock (&g->lock);
  g->reads++;
  g->inside++;
  pthread_cond_broadcast (&g->changed);
  while (g->shut)
    pthread_cond_wait (&g->changed, &g->lock);
  g->inside--;
  err = g->fail;
  pthread_mutex_unlock (&g->lock);
  errno = err;
  return err ? -1 : 0;
}

void
gate_set (struct gate *g, bool shut, int fail)
{
  pthread_mutex_lock (&g->lock);
  g->shut = shut;
  g->fail = fail;
  pthread_cond_broadcast (&g->changed);
  pthread_mutex_unlock (&g->lock);
}

void
gate_wait (struct gate *g, unsigned inside)
{
  pthread_mutex_lock (&g->lock);
  while (g->inside < inside)
    pthread_cond_wait (&g->changed, &g->lock);
  pthread_mutex_unlock (&g->lock);
}

/* --- images --- */

void
packed_init (struct packed_image *im, unsigned max_clusters)
{
  char name[] = "clustercache-XXXXXX";
  int fd = mkstemp (name);

  memset (im, 0, sizeof *im);
  im->layer = LAYER;
  CHECK (fd >= 0);
  CHECK (realpath (name, im->path) != NULL);
  close (fd);
  pthread_mutex_init (&im->gate.lock, NULL);
  pthread_cond_init (&im->gate.changed, NULL);
  im->hooks = (struct storage_hooks) { .before = at_gate, .opaque = &im->gate };
  im->descriptors = calloc (max_clusters, sizeof *im->descriptors);
  im->clusters = calloc (max_clusters, sizeof *im->clusters);
  CHECK (im->descriptors != NULL && im->clusters != NULL);
}

void
packed_open (struct packed_image *im)
{
  struct storage_options opts = { .try_writable = true, .hooks = &im->hooks };

  CHECK (storage_open (im->path, &opts, &im->file) == 0);
}

void
packed_free (struct packed_image *im)
{
  storage_close (im->file);
  unlink (im->path);
  for (unsigned i = 0; i < im->n; i++)
    free (im->clusters[i]);
  free (im->clusters);
  free (im->descriptors);
  if (im->parsed)
    header_free (&im->header);
  pthread_cond_destroy (&im->gate.changed);
  pthread_mutex_destroy (&im->gate.lock);
}

void
packed_fill (struct rng *r, unsigned char *buf, size_t n)
{
  const unsigned salt = rng_next (r);
  uint64_t noise;

  memset (buf, 0, n);
  for (size_t i = 0; i + 16 <= n; i += 16) {
    noise = rng_next (r);
    memset (buf + i, i / 512 + salt, 16);
    memcpy (buf + i, &noise, 4);
  }
}

void
packed_make (struct packed_image *im, unsigned bits, unsigned type, unsigned n)
{
  struct compress_pool *pool = compress_pool_new (NULL);
  unsigned char *out = malloc (1u << bits);
  uint64_t at = 12345;
  struct rng r;
  int fd;

  packed_init (im, n);
  rng_init (&r, packed_seed, bits);
  im->cs = UINT64_C (1) << bits;
  im->header.cluster_bits = bits;
  im->header.cluster_size = im->cs;
  im->header.compression_type = type;
  im->n = n;

  fd = open (im->path, O_WRONLY);
  CHECK (fd >= 0 && pool != NULL && out != NULL);
  for (unsigned i = 0; i < n; i++) {
    size_t len;

    im->clusters[i] = malloc (im->cs);
    CHECK (im->clusters[i] != NULL);
    packed_fill (&r, im->clusters[i], im->cs);
    len = compress_deflate (pool, type, im->clusters[i], im->cs, out, im->cs);
    CHECK (len > 0);
    CHECK (compress_encode (&im->header, at, len, &im->descriptors[i]));
    CHECK (pwrite (fd, out, len, at) == (ssize_t) len);
    at += len;
  }
  close (fd);
  free (out);
  compress_pool_free (pool);
  packed_open (im);              /* the cluster ends within the last sector */
}

/* --- reading --- */

bool
piece_is (struct cluster_cache *c, struct packed_image *im, unsigned cluster,
          uint64_t within, uint64_t len)
{
  unsigned char *buf = malloc (len + 1);
  int r, err;

  CHECK (buf != NULL);
  buf[len] = 0x5a;
  r = cluster_cache_read (c, im->file, &im->header, im->layer, im->descriptors[cluster],
                          within, len, buf);
  err = errno;
  CHECK (buf[len] == 0x5a);
  if (r == 0)
    CHECK (memcmp (buf, im->clusters[cluster] + within, len) == 0);
  else
    CHECK (r == -1);
  free (buf);
  errno = err;
  return r == 0;
}

struct cluster_cache_stats
stats_of (struct cluster_cache *c)
{
  struct cluster_cache_stats s;

  cluster_cache_get_stats (c, &s);
  return s;
}

static void *
reader_main (void *arg)
{
  struct reader *rd = arg;
  const uint64_t cs = rd->im->cs;
  struct rng r;

  if (rd->rounds == 0) {
    rd->ok = piece_is (rd->cache, rd->im, rd->cluster, rd->within, rd->len);
    rd->err = rd->ok ? 0 : errno;
    return NULL;
  }
  rng_init (&r, packed_seed, rd->stream);
  for (unsigned i = 0; i < rd->rounds; i++) {
    unsigned cluster = rng_below (&r, rd->im->n);
    uint64_t within = 0, len = cs;

    switch (rng_below (&r, 8)) {
    case 0:                     /* all of it */
      break;
    case 1:
      within = rng_below (&r, cs);
      len = rng_below (&r, cs - within + 1);
      break;
    default:
      len = cs > PIECE ? PIECE : cs / 2;
      within = rng_below (&r, cs / len) * len;
    }
    /* From time to time all threads read the same cluster. */
    if (rng_below (&r, 2))
      cluster = i / 16 % rd->im->n;
    CHECK (piece_is (rd->cache, rd->im, cluster, within, len));
  }
  return NULL;
}

void
reader_start (struct reader *rd)
{
  CHECK (pthread_create (&rd->thread, NULL, reader_main, rd) == 0);
}

void
reader_join (struct reader *rd)
{
  CHECK (pthread_join (rd->thread, NULL) == 0);
}

void
wait_for_waits (struct cluster_cache *c, uint64_t waits)
{
  while (stats_of (c).waits < waits)
    usleep (500);
}

void
sequential (struct cluster_cache *c, struct packed_image *im)
{
  const uint64_t piece = im->cs > PIECE ? PIECE : im->cs / 2;
  struct cluster_cache_stats before = stats_of (c), after;
  const uint64_t reads = im->gate.reads;

  for (unsigned i = 0; i < im->n; i++)
    for (uint64_t at = 0; at < im->cs; at += piece)
      CHECK (piece_is (c, im, i, at, piece));
  after = stats_of (c);
  CHECK (after.inflations - before.inflations == im->n);
  CHECK (im->gate.reads - reads == im->n);
  CHECK (after.hits - before.hits == im->n * (im->cs / piece - 1));
}
