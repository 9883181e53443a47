/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cache of inflated clusters: what it reads is right, also from images that
 * qemu-img made; each cluster is inflated once; readers of one cluster wait for
 * each other and readers of different ones do not; failures leave nothing behind; the
 * memory is bounded.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "storage/hostfile.h"
#include "format/compress.h"
#include "image/clustercache.h"
#include "lib/stubs.h"

#define PIECE 4096
#define MAX_THREADS 8
#define LAYER 3

/* More than the bookkeeping of an entry takes. */
#define OVERHEAD 512

static uint64_t seed;

/* --- what stands between hostfile and the host --- */

/* Reads come to the gate one by one.  While it is shut they wait there. */
struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool shut;                    /* guarded by lock, as all below */
  unsigned inside;              /* how many wait */
  uint64_t reads;               /* how many came */
  int fail;                     /* errno for all who go through, or 0 */
};

static int
at_gate (void *opaque, const char *path, enum hostfile_op op,
         const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
         bool dsync)
{
  struct gate *g = opaque;
  int err;

  (void) path; (void) iov; (void) niov; (void) offset; (void) count; (void) dsync;
  if (op != HOSTFILE_OP_READ)
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

static void
gate_set (struct gate *g, bool shut, int fail)
{
  pthread_mutex_lock (&g->lock);
  g->shut = shut;
  g->fail = fail;
  pthread_cond_broadcast (&g->changed);
  pthread_mutex_unlock (&g->lock);
}

static void
gate_wait (struct gate *g, unsigned inside)
{
  pthread_mutex_lock (&g->lock);
  while (g->inside < inside)
    pthread_cond_wait (&g->changed, &g->lock);
  pthread_mutex_unlock (&g->lock);
}

/* --- images --- */

struct image {
  char path[PATH_MAX];
  struct gate gate;
  struct hostfile_hooks hooks;
  struct hostfile *file;
  unsigned layer;
  struct header header;
  bool parsed;                  /* the header is from the file */
  uint64_t cs;
  unsigned n;                   /* compressed clusters */
  uint64_t *descriptors;
  unsigned char **clusters;     /* what they say */
};

static void
image_init (struct image *im, unsigned max_clusters)
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
  im->hooks = (struct hostfile_hooks) { .before = at_gate, .opaque = &im->gate };
  im->descriptors = calloc (max_clusters, sizeof *im->descriptors);
  im->clusters = calloc (max_clusters, sizeof *im->clusters);
  CHECK (im->descriptors != NULL && im->clusters != NULL);
}

static void
image_open (struct image *im)
{
  struct hostfile_options opts = { .try_writable = true, .hooks = &im->hooks };

  CHECK (hostfile_open (im->path, &opts, &im->file) == 0);
}

static void
image_free (struct image *im)
{
  hostfile_close (im->file);
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

/* Text with some noise: can be compressed to about a third. */
static void
fill (struct rng *r, unsigned char *buf, size_t n)
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

/* N clusters of our own making, packed as tightly as they can be. */
static void
image_make (struct image *im, unsigned bits, unsigned type, unsigned n)
{
  struct compress_pool *pool = compress_pool_new ();
  unsigned char *out = malloc (1u << bits);
  uint64_t at = 12345;
  struct rng r;
  int fd;

  image_init (im, n);
  rng_init (&r, seed, bits);
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
    fill (&r, im->clusters[i], im->cs);
    len = compress_deflate (pool, type, im->clusters[i], im->cs, out, im->cs);
    CHECK (len > 0);
    CHECK (compress_encode (&im->header, at, len, &im->descriptors[i]));
    CHECK (pwrite (fd, out, len, at) == (ssize_t) len);
    at += len;
  }
  close (fd);
  free (out);
  compress_pool_free (pool);
  image_open (im);              /* it ends within the last sector */
}

/* --- reading --- */

static bool
piece_is (struct cluster_cache *c, struct image *im, unsigned cluster,
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

static struct cluster_cache_stats
stats_of (struct cluster_cache *c)
{
  struct cluster_cache_stats s;

  cluster_cache_get_stats (c, &s);
  return s;
}

/* Readers as threads. */
struct reader {
  pthread_t thread;
  struct cluster_cache *cache;
  struct image *im;
  unsigned cluster;             /* one piece of this, or ... */
  uint64_t within, len;
  bool ok;
  int err;
  unsigned rounds;              /* ... if > 0, anything at random */
  uint64_t stream;
};

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
  rng_init (&r, seed, rd->stream);
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
    /* Now and then all come for the same one. */
    if (rng_below (&r, 2))
      cluster = i / 16 % rd->im->n;
    CHECK (piece_is (rd->cache, rd->im, cluster, within, len));
  }
  return NULL;
}

static void
reader_start (struct reader *rd)
{
  CHECK (pthread_create (&rd->thread, NULL, reader_main, rd) == 0);
}

static void
reader_join (struct reader *rd)
{
  CHECK (pthread_join (rd->thread, NULL) == 0);
}

static void
wait_for_waits (struct cluster_cache *c, uint64_t waits)
{
  while (stats_of (c).waits < waits)
    usleep (500);
}

/* Reads all clusters, 4K at a time (half of one if it is no larger). */
static void
sequential (struct cluster_cache *c, struct image *im)
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

/* --- tests --- */

static void
test_basics (unsigned bits, unsigned type)
{
  struct image im;
  struct cluster_cache *c;
  struct cluster_cache_stats s;
  const unsigned n = bits < 16 ? 64 : bits < 20 ? 12 : 8;
  const uint64_t cs = UINT64_C (1) << bits, limit = 6 * (cs + OVERHEAD);

  image_make (&im, bits, type, n);
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
  image_free (&im);
}

/* Layers with clusters of different sizes: each entry has a buffer of its own size, also
 * one that comes from an entry that was evicted. */
static void
test_sizes (unsigned type)
{
  const uint64_t limit = 6 * (65536 + OVERHEAD);
  struct image images[3];
  struct cluster_cache *c = cluster_cache_new (limit);
  struct rng r;

  CHECK (c != NULL);
  rng_init (&r, seed, type);
  for (unsigned i = 0; i < 3; i++) {
    image_make (&images[i], 9 + 7 * i / 2, type, 64);
    images[i].layer = LAYER + i;
  }
  for (unsigned i = 0; i < 3000; i++) {
    struct image *im = &images[i / 100 % 2 ? rng_below (&r, 3) : i / 200 % 3];
    const uint64_t within = im->cs / 2 + rng_below (&r, im->cs / 2);

    /* From the second half, which is never read without the cache. */
    CHECK (piece_is (c, im, rng_below (&r, im->n), within, im->cs - within));
  }
  CHECK (stats_of (c).evictions > 100);
  CHECK (stats_of (c).peak_bytes <= limit);
  cluster_cache_free (c);
  for (unsigned i = 0; i < 3; i++)
    image_free (&images[i]);
}

/* Something in the first half of a cluster, at random, when the cache is full: read
 * without it once. */
static void
test_passing (unsigned type)
{
  const bool can = type == QCOW2_COMPRESSION_DEFLATE;
  struct image im;
  struct cluster_cache *c = cluster_cache_new (0);
  struct cluster_cache_stats s;

  CHECK (c != NULL);
  image_make (&im, 16, type, 8);

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
  quiet_errors = false;
  CHECK (piece_is (c, &im, 7, 100, 100));
  cluster_cache_free (c);
  image_free (&im);
}

/* Readers of one cluster; WHOLE are for all of it, the leader if LEAD_WHOLE. */
static void
test_single_flight (unsigned n, unsigned whole, bool lead_whole, int fail)
{
  struct reader rd[MAX_THREADS] = { 0 };
  struct image im;
  struct cluster_cache *c = cluster_cache_new (1 << 20);
  struct cluster_cache_stats s;
  const unsigned long errors = error_count ();

  CHECK (c != NULL);
  image_make (&im, 16, QCOW2_COMPRESSION_DEFLATE, 4);
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
  image_free (&im);
}

/* Different clusters are read and inflated at the same time. */
static void
test_parallel (void)
{
  struct reader rd[MAX_THREADS] = { 0 };
  struct image im;
  struct cluster_cache *c = cluster_cache_new (0);

  CHECK (c != NULL);
  image_make (&im, 12, QCOW2_COMPRESSION_DEFLATE, MAX_THREADS + 1);
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
  image_free (&im);
}

static bool
refused (struct cluster_cache *c, struct image *im, unsigned cluster, uint64_t len)
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
  struct image im;
  struct cluster_cache *c = cluster_cache_new (1 << 20);
  uint64_t host, bytes, d;
  unsigned char garbage[600], good[600];
  char text[32];
  struct rng r;

  CHECK (c != NULL);
  image_make (&im, 14, type, 5);
  rng_init (&r, seed, 1);
  fill (&r, garbage, sizeof garbage);
  memset (garbage, 0xff, 8);
  quiet_errors = true;

  CHECK (compress_descriptor (&im.header, im.descriptors[1], &host, &bytes));
  CHECK (hostfile_read (im.file, good, sizeof good, host) == 0);
  CHECK (hostfile_write (im.file, garbage, sizeof garbage, host) == 0);
  CHECK (refused (c, &im, 1, 100));
  snprintf (text, sizeof text, "offset %" PRIu64 " ", host);
  CHECK (strstr (last_error (), text) != NULL);
  CHECK (strstr (last_error (), "beyond the end") == NULL);
  CHECK (refused (c, &im, 1, im.cs));
  CHECK (stats_of (c).bytes == 0);

  /* Its neighbours are as they were, and so is it when its bytes are. */
  CHECK (piece_is (c, &im, 0, 0, 100));
  CHECK (piece_is (c, &im, 2, 0, im.cs));
  CHECK (hostfile_write (im.file, good, sizeof good, host) == 0);
  CHECK (piece_is (c, &im, 1, 0, 100));

  /* Behind the end of the file; far behind it; where nothing can be. */
  CHECK (compress_descriptor (&im.header, im.descriptors[4], &host, &bytes));
  CHECK (piece_is (c, &im, 4, 0, im.cs));
  CHECK (hostfile_truncate (im.file, host) == 0);
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
  image_free (&im);
}

/* Does a read of this cluster find it there? */
static bool
is_cached (struct cluster_cache *c, struct image *im, unsigned cluster)
{
  const uint64_t hits = stats_of (c).hits;

  CHECK (piece_is (c, im, cluster, 0, 10));
  return stats_of (c).hits == hits + 1;
}

/* Does the second half of the cluster that D stands for read as that of CLUSTER? */
static bool
read_is (struct cluster_cache *c, struct image *im, uint64_t d,
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
  struct image im;
  struct cluster_cache *c = cluster_cache_new (64 << 20);
  struct reader rd = { 0 }, waiter;
  uint64_t host, len, d;

  CHECK (c != NULL);
  image_make (&im, bits, QCOW2_COMPRESSION_DEFLATE, n);
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
    CHECK (hostfile_read (im.file, copy, bytes, from) == 0);
    cluster_cache_forget (c, LAYER, host, host + bytes);
    CHECK (hostfile_write (im.file, copy, bytes, host) == 0);
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
  image_free (&im);
}

/* Everything at once. */
static void
test_stress (unsigned bits, unsigned type, unsigned rounds)
{
  struct reader rd[4] = { 0 };
  struct image im;
  struct cluster_cache *c;
  struct cluster_cache_stats s;
  struct rng r;
  uint64_t limit, bound, host, bytes;

  image_make (&im, bits, type, 24);
  limit = 6 * im.cs;
  c = cluster_cache_new (limit);
  CHECK (c != NULL);
  rng_init (&r, seed, 2);

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
  image_free (&im);
}

/* --- images of qemu-img's --- */

static void
run (const char *fmt, const char *a, unsigned b, const char *from, const char *to)
{
  char command[2 * PATH_MAX + 200];

  snprintf (command, sizeof command, fmt, a, b, from, to);
  CHECK (system (command) == 0);
}

/* Finds the compressed clusters of the disk RAW. */
static void
image_walk (struct image *im, const unsigned char *raw, uint64_t size)
{
  static unsigned char head[HEADER_READ_SIZE];
  const uint64_t file_size = hostfile_size (im->file);
  const size_t len = file_size < sizeof head ? file_size : sizeof head;
  struct be64 l1, l2;
  uint64_t at, index, table;

  CHECK (hostfile_read (im->file, head, len, 0) == 0);
  CHECK (header_parse (im->path, head, len, file_size, &im->header) == 0);
  im->parsed = true;
  im->cs = im->header.cluster_size;
  CHECK (im->header.size == size);

  for (at = 0; at < size; at += im->cs) {
    index = at >> im->header.cluster_bits;
    CHECK (hostfile_read (im->file, &l1, 8, im->header.l1_offset +
                          (index >> im->header.l2_bits) * 8) == 0);
    table = get64 (l1) & QCOW2_L1_OFFSET_MASK;
    if (table == 0)
      continue;
    index &= (UINT64_C (1) << im->header.l2_bits) - 1;
    CHECK (hostfile_read (im->file, &l2, 8, table + index * 8) == 0);
    if (!(get64 (l2) & QCOW2_OFLAG_COMPRESSED))
      continue;
    im->descriptors[im->n] = get64 (l2) & (QCOW2_OFLAG_COMPRESSED - 1);
    im->clusters[im->n] = malloc (im->cs);
    CHECK (im->clusters[im->n] != NULL);
    memcpy (im->clusters[im->n], raw + at, im->cs);
    im->n++;
  }
  pthread_mutex_lock (&im->gate.lock);
  im->gate.reads = 0;
  pthread_mutex_unlock (&im->gate.lock);
}

static void
test_qemu (const char *type, unsigned cluster_size)
{
  const uint64_t size = cluster_size > 65536 ? 8 << 20 : 2 << 20;
  unsigned char *raw = malloc (size);
  struct reader rd[4] = { 0 };
  struct cluster_cache *c = cluster_cache_new (8 * cluster_size);
  struct image im, source;
  struct rng r;
  int fd;

  CHECK (raw != NULL && c != NULL);
  rng_init (&r, seed, cluster_size);
  fill (&r, raw, size);
  memset (raw + size / 2, 0, size / 8);
  for (uint64_t i = size - size / 8; i < size; i++)
    raw[i] = rng_next (&r);

  image_init (&source, 1);
  fd = open (source.path, O_WRONLY);
  CHECK (fd >= 0);
  CHECK (write (fd, raw, size) == (ssize_t) size);
  close (fd);

  image_init (&im, size / cluster_size);
  run ("qemu-img convert -c -f raw -O qcow2 -o compression_type=%s,cluster_size=%u"
       " '%s' '%s'", type, cluster_size, source.path, im.path);
  image_open (&im);
  image_walk (&im, raw, size);
  printf ("qemu-img, %s, %u: %u compressed clusters\n", type, cluster_size, im.n);
  CHECK (im.n >= size / cluster_size / 2);

  sequential (c, &im);
  for (unsigned i = 0; i < 4; i++) {
    rd[i] = (struct reader) {
      .cache = c, .im = &im, .rounds = 100, .stream = 20 + i,
    };
    reader_start (&rd[i]);
  }
  for (unsigned i = 0; i < 4; i++)
    reader_join (&rd[i]);

  cluster_cache_free (c);
  image_free (&im);
  image_free (&source);
  free (raw);
}

int
main (void)
{
  const bool zstd = compress_supported (QCOW2_COMPRESSION_ZSTD);

  seed = seed_from_env ();

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
  for (unsigned fail = 0; fail <= EIO; fail += EIO) {
    test_single_flight (2, 0, false, fail);
    test_single_flight (8, 0, false, fail);
    test_single_flight (8, 3, false, fail);
    test_single_flight (8, 0, true, fail);
    test_single_flight (8, 7, true, fail);
  }
  test_parallel ();
  test_garbage (QCOW2_COMPRESSION_DEFLATE);
  if (zstd)
    test_garbage (QCOW2_COMPRESSION_ZSTD);
  test_forget (9, 300);
  test_forget (16, 12);
  test_forget (21, 3);
  for (unsigned bits = 9; bits <= 16; bits += 7) {
    test_stress (bits, QCOW2_COMPRESSION_DEFLATE, 1000);
    if (zstd)
      test_stress (bits, QCOW2_COMPRESSION_ZSTD, 1000);
  }

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    printf ("qemu-img is missing: its images were not tried\n");
    return 77;
  }
  for (int z = 0; z <= zstd; z++) {
    const char *type = z ? "zstd" : "zlib";

    test_qemu (type, 512);
    test_qemu (type, 4096);
    test_qemu (type, 65536);
    test_qemu (type, 2 << 20);
  }
  return 0;
}
