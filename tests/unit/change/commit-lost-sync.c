/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A commit makes the backing file durable every few seconds.  If that fails once, data
 * may be lost, and no later success says anything about it: the commit fails, and the
 * image keeps its data.
 */

#include <config.h>

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/changes.h"
#include "lib/hastyclock.h"
#include "lib/images.h"

#define SIZE (UINT64_C (16) << 20)

static char *base_path;
static sem_t synced;
static atomic_bool has_written, has_failed;

/* The first write of the backing file waits until a sync has failed. */
static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  if (strcmp (path, base_path) != 0)
    return 0;
  if (op == STORAGE_OP_WRITE && !atomic_exchange (&has_written, true))
    sem_wait (&synced);
  if (op != STORAGE_OP_SYNC || !has_written || atomic_exchange (&has_failed, true))
    return 0;
  sem_post (&synced);
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static void
test (bool raw)
{
  struct image_spec below = {
    .raw = raw, .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
  };
  struct image_spec spec = below;
  struct disk_options options;
  struct rng rng = { 1 };
  struct blob was, is;
  uint64_t copied;

  image_create ("base", &below);
  spec.raw = false;
  spec.backing = "base";
  spec.backing_raw = raw;
  image_create ("top.qcow2", &spec);
  image_fill ("top.qcow2", &spec, &rng, 8);
  blob_load ("top.qcow2", &was);

  has_written = has_failed = false;
  CHECK (sem_init (&synced, 0, 0) == 0);
  base_path = images_path ("base");
  options = (struct disk_options) {
    .path = images_path ("top.qcow2"), .l2_cache = 1 << 20, .l2_slice = 4096,
    .discard = true, .hooks = &hooks,
  };
  quiet_errors = true;
  CHECK (change_commit (&options, false, NULL, &copied) == -1);
  quiet_errors = false;
  CHECK (errno == EIO && has_failed);
  blob_load ("top.qcow2", &is);
  CHECK (blob_same (&was, &is));

  CHECK (change_commit (&options, false, NULL, &copied) == 0);
  blob_free (&is);
  blob_load ("top.qcow2", &is);
  CHECK (!blob_same (&was, &is));
  blob_free (&was);
  blob_free (&is);
  sem_destroy (&synced);
  free (base_path);
  free ((char *) options.path);
}

int
main (void)
{
  images_enter ("commit-lost-sync");
  test (true);
  test (false);
  images_leave ();
  return 0;
}
