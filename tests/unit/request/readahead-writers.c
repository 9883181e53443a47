/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While clients read a disk in order, others overwrite and trim its compressed clusters,
 * and flush, so that host clusters are reused.  Readers must see what was written last,
 * or is being written: each sector says which cluster and which version it belongs to.
 * Writes take long, and so does it to use what was looked up ahead.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "request/readahead.h"
#include "disk/export.h"
#include "change/create.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define CS (UINT64_C (64) << 10)
#define CLUSTERS 48u
#define SIZE (CLUSTERS * CS)
#define WRITERS 2
#define ROUNDS 600u
#define READERS 2

static uint64_t seed;
static struct disk *d;
static atomic_uint begun[CLUSTERS], done[CLUSTERS];     /* versions */
static atomic_bool ending;
static _Thread_local bool is_client;

static int
at_gate (void *opaque, const char *name, enum storage_op op, const struct iovec *iov,
         int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque; (void) name; (void) iov; (void) niov; (void) offset; (void) count;
  (void) dsync;
  if (op == STORAGE_OP_WRITE)
    usleep (3000);
  return op == STORAGE_OP_SYNC;         /* these are left out */
}

static const struct storage_hooks hooks = { .before = at_gate };

/* Each third version is a trim: zeros. */
static bool
is_trim (unsigned version)
{
  return version % 3 == 0;
}

struct stamp {
  uint32_t cluster, version, salt;
};

/* Between a lookup ahead of a reader and its use, much may happen, too. */
extern void __real_cluster_cache_ahead (struct cluster_cache *, struct storage *,
                                        const struct header *, unsigned, uint64_t);
extern void __wrap_cluster_cache_ahead (struct cluster_cache *, struct storage *,
                                        const struct header *, unsigned, uint64_t);

void
__wrap_cluster_cache_ahead (struct cluster_cache *c, struct storage *file,
                            const struct header *h, unsigned layer, uint64_t descriptor)
{
  usleep (5000);
  __real_cluster_cache_ahead (c, file, h, layer, descriptor);
}

/* What can be compressed, and what not: so that each needs a host cluster of its own, and
 * what is stored there next often has the same descriptor. */
#define TEXT 100
#define NOISE 300

static void
fill (unsigned char *buf, unsigned cluster, unsigned version, struct rng *r)
{
  memset (buf, 0, CS);
  for (uint64_t at = 0; at < CS; at += 512) {
    const struct stamp s = { cluster, version, rng_next (r) };

    memcpy (buf + at, &s, sizeof s);
    memset (buf + at + sizeof s, version, TEXT);
    for (unsigned i = 0; i < NOISE; i++)
      buf[at + sizeof s + TEXT + i] = rng_next (r);
  }
}

static void
judge (const unsigned char *sector, unsigned cluster, unsigned from, unsigned to)
{
  struct stamp s;

  memcpy (&s, sector, sizeof s);
  if (s.cluster == 0 && s.version == 0 && s.salt == 0) {
    while (from <= to && !is_trim (from))
      from++;
    CHECK (from <= to);
    return;
  }
  if (s.cluster != cluster || s.version < from || s.version > to || is_trim (s.version)) {
    fprintf (stderr, "cluster %u has version %u of cluster %u, not %u to %u\n", cluster,
             s.version, s.cluster, from, to);
    abort ();
  }
  for (unsigned i = 0; i < TEXT; i++)
    CHECK (sector[sizeof s + i] == (unsigned char) s.version);
}

static void *
read_in_order (void *arg)
{
  const unsigned clusters = *(const unsigned *) arg;    /* per request */
  struct export *e;
  unsigned char *buf = malloc (clusters * CS);
  unsigned from[CLUSTERS];

  is_client = true;
  CHECK (buf != NULL && (e = export_open (d, "", false)) != NULL);
  while (!ending)
    for (unsigned i = 0; i < CLUSTERS; i += clusters) {
      for (unsigned j = 0; j < clusters; j++)
        from[j] = done[i + j];
      CHECK (export_read (e, buf, clusters * CS, i * CS) == 0);
      for (unsigned j = 0; j < clusters; j++)
        for (uint64_t at = 0; at < CS; at += 512)
          judge (buf + j * CS + at, i + j, from[j], begun[i + j]);
    }
  CHECK (export_close (e) == 0);
  free (buf);
  return NULL;
}

/* A writer has every WRITERS-th cluster.  What was trimmed can be stored compressed. */
static void *
write_and_trim (void *arg)
{
  const unsigned mine = *(const unsigned *) arg;
  unsigned char *buf = malloc (CS);
  struct export *e;
  struct rng r;

  is_client = true;
  rng_init (&r, seed, mine);
  CHECK (buf != NULL && (e = export_open (d, "", true)) != NULL);
  for (unsigned i = 0; i < ROUNDS; i++) {
    const unsigned c = rng_below (&r, CLUSTERS / WRITERS) * WRITERS + mine;
    const unsigned version = done[c] + 1;

    begun[c] = version;
    if (is_trim (version))
      CHECK (export_trim (e, CS, c * CS, false) == 0);
    else {
      fill (buf, c, version, &r);
      CHECK (export_write (e, buf, CS, c * CS, false) == 0);
    }
    done[c] = version;
    if (rng_below (&r, 4) == 0)
      CHECK (export_flush (e) == 0);
  }
  CHECK (export_close (e) == 0);
  free (buf);
  return NULL;
}

static void
create (const char *path)
{
  const struct create_options options = {
    .path = path,
    .image = { .size = SIZE, .cluster_size = CS, .version = 3, .refcount_bits = 16 },
  };
  struct created *created;

  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
}

int
main (void)
{
  static unsigned sizes[READERS] = { 1, 4 }, numbers[WRITERS] = { 0, 1 };
  pthread_t readers[READERS], writers[WRITERS];
  struct readahead_load load;
  struct disk_stats stats;
  char *path;

  seed = seed_from_env ();
  is_client = true;
  images_enter ("readahead-writers");
  path = images_path ("a.qcow2");
  create (path);
  readahead_load_init (&load);
  load.processors = READERS + WRITERS + 3;
  const struct disk_options serve = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true, .lock = true,
    .compress = true, .hooks = &hooks, .load = &load,
  };
  CHECK (disk_open (&serve, &d) == 0);
  disk_allow_ahead (d);
  for (unsigned i = 0; i < WRITERS; i++)
    CHECK (pthread_create (&writers[i], NULL, write_and_trim, &numbers[i]) == 0);
  for (unsigned i = 0; i < READERS; i++)
    CHECK (pthread_create (&readers[i], NULL, read_in_order, &sizes[i]) == 0);
  for (unsigned i = 0; i < WRITERS; i++)
    CHECK (pthread_join (writers[i], NULL) == 0);
  ending = true;
  for (unsigned i = 0; i < READERS; i++)
    CHECK (pthread_join (readers[i], NULL) == 0);
  disk_get_stats (d, &stats);
  printf ("%" PRIu64 " clusters ahead, %" PRIu64 " of them read; %" PRIu64
          " host clusters freed\n", stats.cluster_cache.ahead,
          stats.cluster_cache.ahead_hits, stats.alloc.freed);
  CHECK (stats.cluster_cache.ahead > 0);
  CHECK (disk_close (d) == 0);
  CHECK (error_count () == 0);
  CHECK (image_check ("a.qcow2") == 0);
  free (path);
  images_leave ();
  return 0;
}
