/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While layers are committed, what the base frees is not used again: readers may know it
 * still.  A client has looked up compressed clusters of the base, parts of which the
 * layer above hides, and is about to read them.  The commit rewrites them, makes durable
 * that they are free, and allocates others.  The client reads what was there before.
 */

#include <config.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk/export.h"
#include "change/commit.h"
#include "lib/images.h"

#define SIZE (UINT64_C (96) << 20)
#define CLUSTER 4096
/* What one slice of the base describes, so a cluster that is committed there changes
 * it. */
#define STEP (UINT64_C (256) << 10)
/* So much of changed slices in memory has the base make a checkpoint: it is the least. */
#define CACHE (3 * (UINT64_C (64) << 10))

/* The tables of the base are before this. */
#define DATA 65536

static char *base_path;
static atomic_uint syncs;       /* of the base */
static _Thread_local bool is_reader;
static sem_t looked_up, committed;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) count, (void) dsync;
  if (strcmp (path, base_path) != 0)
    return 0;
  syncs += op == STORAGE_OP_SYNC;
  if (is_reader && op == STORAGE_OP_READ && offset >= DATA) {
    is_reader = false;
    sem_post (&looked_up);
    sem_wait (&committed);
  }
  return 0;
}

static const struct storage_hooks hooks = { .before = before };

/* Data in [0, END), the first LEN bytes of each STEP. */
static void
fill (const char *name, enum compress compress, uint64_t end, uint64_t step, uint64_t len)
{
  struct disk_options options = {
    .path = images_path (name), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .compress = compress,
  };
  struct rng rng = { end + len };
  struct export *e;
  struct disk *d;
  unsigned char *buf = malloc (len);

  CHECK (buf && disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) != NULL && export_is_writable (e));
  for (uint64_t at = 0; at < end; at += step) {
    for (uint64_t i = 0; i < len; i++)
      buf[i] = rng_below (&rng, 8);
    CHECK (export_write (e, buf, len, at, false) == 0);
  }
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  free (buf);
  free ((char *) options.path);
}

static void
make_chain (void)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };

  image_create ("base", &spec);
  fill ("base", COMPRESS_ON, STEP, CLUSTER, CLUSTER);
  spec.cluster_size = 512;
  spec.backing = "base";
  image_create ("middle", &spec);
  fill ("middle", COMPRESS_OFF, STEP, CLUSTER, 512);
  fill ("middle", COMPRESS_OFF, SIZE, STEP, 512);
  spec.backing = "middle";
  image_create ("top", &spec);
}

struct reader { struct export *e; const struct blob *shown; };

static void *
read_all (void *opaque)
{
  const struct reader *r = opaque;
  unsigned char *buf = malloc (STEP);

  is_reader = true;
  CHECK (buf && export_read (r->e, buf, STEP, 0) == 0);
  CHECK (memcmp (buf, r->shown->data, STEP) == 0);
  free (buf);
  return NULL;
}

int
main (void)
{
  const struct commit_layers layers = { .top = 1, .base = 2 };
  struct disk_options options = {
    .l2_cache = CACHE, .l2_slice = 512, .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  uint64_t copied = 0;
  struct reader reader;
  pthread_t thread;
  struct commit *c;
  struct export *e;
  struct blob shown;
  struct disk *d;

  images_enter ("commit-freed");
  make_chain ();
  image_contents ("top", NULL, &shown);
  options.path = images_path ("top");
  base_path = images_path ("base");
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", false)) != NULL);
  reader = (struct reader) { e, &shown };
  CHECK (sem_init (&looked_up, 0, 0) == 0 && sem_init (&committed, 0, 0) == 0);
  CHECK (pthread_create (&thread, NULL, read_all, &reader) == 0);
  sem_wait (&looked_up);

  CHECK ((c = commit_new (d, &layers)) != NULL);
  syncs = 0;
  for (uint64_t at = 0; at < SIZE; at += STEP)
    CHECK (commit_range (c, at, at + STEP, &copied, NULL) == 0);
  CHECK (syncs > 0);
  sem_post (&committed);
  pthread_join (thread, NULL);
  CHECK (commit_finish (c) == 0);
  commit_free (c);
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  unlink ("middle");
  CHECK (image_check ("base") == 0 && image_check ("top") == 0);
  CHECK (image_shows ("top", NULL, &shown));
  blob_free (&shown);
  free ((char *) options.path);
  free (base_path);
  sem_destroy (&looked_up);
  sem_destroy (&committed);
  images_leave ();
  return 0;
}
