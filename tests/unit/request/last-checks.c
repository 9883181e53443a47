/* SPDX-License-Identifier: BSD-3-Clause
 *
 * R5: just before anything is written to, or freed in, the place of metadata, it is
 * checked once more what is there.  If that is not what it should be, nothing is written
 * there, the image is marked corrupt, and changes end.
 *
 * Here it is the test that makes the set of metadata wrong; or a refcount: that of the
 * refcount table, which is to be freed after the table has moved.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "format/format.h"
#include "format/overlap.h"
#include "disk/disk.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 4096u
#define SIZE (64 * CLUSTER)

static struct disk *d;
static struct export *client;
static struct overlap *metadata;
static unsigned char buf[CLUSTER];

/* --- what is written, and a read that takes as long as we like --- */

static uint64_t forbidden;      /* no change of this cluster; 0: all are allowed */
static _Thread_local bool slow;
static sem_t held, released;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) dsync;
  if (op == STORAGE_OP_WRITE || op == STORAGE_OP_PUNCH)
    CHECK (forbidden == 0 || offset + count <= forbidden ||
           offset >= forbidden + CLUSTER);
  if (op == STORAGE_OP_READ && slow) {
    slow = false;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };

static void *
read_slowly (void *arg)
{
  static unsigned char other[CLUSTER];

  (void) arg;
  slow = true;
  CHECK (export_read (client, other, sizeof other, SIZE - CLUSTER) == 0);
  return NULL;
}

static pthread_t
begin_read (void)
{
  pthread_t t;

  CHECK (pthread_create (&t, NULL, read_slowly, NULL) == 0);
  while (sem_wait (&held) == -1)
    ;
  return t;
}

/* --- the disk --- */

static void
open_disk (bool bitmap)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
    .preallocation = "metadata",
  };
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = CLUSTER,
    .backing = BACKING_FOLLOW, .discard = true, .hooks = &hooks,
  };
  struct rng rng;

  image_create (IMAGE, &spec);
  if (bitmap) {
    image_bitmap (IMAGE, "b", 9);
    rng_init (&rng, 1, 0);
    image_fill (IMAGE, &spec, &rng, 3);
  }
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  metadata = disk_inside (d).view->image->overlap;
  free ((char *) options.path);
}

/* LEFT: the client has left already. */
static void
close_corrupt (bool left)
{
  struct blob b;

  if (!left)
    CHECK (export_close (client) == -1);
  forbidden = 0;
  disk_close (d);
  quiet_errors = false;
  blob_load (IMAGE, &b);
  CHECK (blob_get (&b, 72, 8) & QCOW2_INCOMPAT_CORRUPT);
  blob_free (&b);
}

/* The host cluster of guest cluster I. */
static uint64_t
host_of (unsigned i)
{
  struct run run;

  CHECK (l2_lookup (disk_inside (d).view->w->l2, i * CLUSTER, CLUSTER, &run) == 0);
  CHECK (run.kind == RUN_NORMAL);
  return run.host;
}

/* The last cluster of it must not be changed. */
static void
forget_metadata (enum overlap_kind kind)
{
  for (uint64_t at = CLUSTER; at < 4 * SIZE; at += CLUSTER)
    if (overlap_find (metadata, at, CLUSTER) == kind) {
      overlap_remove (metadata, at, CLUSTER);
      forbidden = at;
    }
  CHECK (forbidden > 0);
}

static void
changes_have_ended (void)
{
  CHECK (export_write (client, buf, sizeof buf, 0, false) == -1 && errno == EIO);
  CHECK (export_zero (client, sizeof buf, 0, REQUEST_FAST, false) == -1 && errno == EIO);
  CHECK (export_read (client, buf, sizeof buf, 0) == 0);
}

/* --- tests --- */

static void
test_table (void)
{
  open_disk (false);
  CHECK (export_trim (client, CLUSTER, 0, false) == 0);
  forget_metadata (OVERLAP_L2);
  quiet_errors = true;
  CHECK (export_flush (client) == -1 && errno == EIO);
  CHECK (strstr (last_error (), "corrupt"));
  changes_have_ended ();
  close_corrupt (false);
}

static void
test_bitmap (void)
{
  open_disk (true);
  CHECK (export_write (client, buf, sizeof buf, 0, false) == 0);
  forget_metadata (OVERLAP_BITMAP);
  quiet_errors = true;
  close_corrupt (false);
}

/* A reader may still use what was freed.  LEAVING: the last client leaves meanwhile. */
static void *
leave (void *result)
{
  *(int *) result = export_close (client);
  return NULL;
}

static void
test_freed_cluster (bool leaving)
{
  const struct timespec moment = { .tv_nsec = 20000000 };
  pthread_t reader, leaver;
  int r = 0;

  open_disk (false);
  forbidden = host_of (3);
  reader = begin_read ();
  CHECK (export_trim (client, CLUSTER, 3 * CLUSTER, false) == 0);
  CHECK (export_flush (client) == 0);
  CHECK (overlap_add (metadata, forbidden, CLUSTER, OVERLAP_L1) == 0);
  quiet_errors = true;
  if (leaving) {
    CHECK (pthread_create (&leaver, NULL, leave, &r) == 0);
    /* (Until it waits for the reader, most likely.) */
    nanosleep (&moment, NULL);
  }
  sem_post (&released);
  CHECK (pthread_join (reader, NULL) == 0);
  if (leaving)
    CHECK (pthread_join (leaver, NULL) == 0 && r == -1);
  else {
    CHECK (export_flush (client) == -1 && errno == EIO);
    changes_have_ended ();
  }
  close_corrupt (leaving);
}

static void
test_old_table (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 64, .size = 8 << 20,
  };
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 512,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  static unsigned char data[64 << 10];
  const struct view *view;
  uint64_t table, at = 0;
  int r;

  image_create (IMAGE, &spec);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  memset (data, 'x', sizeof data);
  CHECK (export_write (client, data, sizeof data, at, true) == 0);
  view = disk_inside (d).view;
  table = view->image->header.reftable_offset;
  CHECK (refcount_dec (view->w->refcounts, table / 512, 1, NULL, NULL) == 0);
  quiet_errors = true;
  do {
    r = export_write (client, data, sizeof data, at, true);
    at += sizeof data;
  } while (r == 0 && at < spec.size);
  CHECK (r == -1 && errno == EIO && view->image->header.reftable_offset != table);
  close_corrupt (false);
  free ((char *) options.path);
}

int
main (void)
{
  sem_init (&held, 0, 0);
  sem_init (&released, 0, 0);
  images_enter ("last-checks");
  test_table ();
  test_bitmap ();
  test_freed_cluster (false);
  test_freed_cluster (true);
  test_old_table ();
  images_leave ();
  return 0;
}
