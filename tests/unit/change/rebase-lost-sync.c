/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens if the host loses what a rebase has written, and says so when the copied
 * data becomes durable for the first time, while it goes on?
 *
 * The rebase fails, also when later syncs succeed; the disk shows what it did.  The next
 * one does all of it.
 */

#include <config.h>

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/changes.h"
#include "lib/hastyclock.h"
#include "lib/images.h"

#define SIZE (16u << 20)

static char *image_path;
static sem_t synced;
static atomic_uint writes;
static atomic_bool has_failed;

/* A write waits, when there are some before it, until a sync has failed. */
static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) dsync;
  if (strcmp (path, image_path) != 0)
    return 0;
  if (op == STORAGE_OP_WRITE && count >= 65536 && ++writes == 3)
    sem_wait (&synced);
  if (op != STORAGE_OP_SYNC || writes < 3 || atomic_exchange (&has_failed, true))
    return 0;
  sem_post (&synced);
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

int
main (void)
{
  const struct image_spec below = { .raw = true, .size = SIZE };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .backing = "base", .backing_raw = true,
  };
  struct blob contents = { malloc (SIZE), SIZE };
  struct disk_options options;
  uint64_t copied;

  images_enter ("rebase-lost-sync");
  CHECK (contents.data != NULL && sem_init (&synced, 0, 0) == 0);
  memset (contents.data, 0x55, SIZE);
  image_create ("base", &below);
  blob_save ("base", &contents);
  image_create ("top.qcow2", &spec);
  image_path = images_path ("top.qcow2");
  options = (struct disk_options) {
    .path = image_path, .l2_cache = 1 << 20, .l2_slice = 4096, .hooks = &hooks,
  };
  quiet_errors = true;
  CHECK (change_flatten (&options, NULL, &copied) == -1);
  quiet_errors = false;
  CHECK (errno == EIO && has_failed);
  CHECK (image_check ("top.qcow2") == 0 || image_check ("top.qcow2") == 3);
  CHECK (image_shows ("top.qcow2", NULL, &contents));

  CHECK (change_flatten (&options, NULL, &copied) == 0);
  CHECK (image_check ("top.qcow2") == 0);
  unlink ("base");
  CHECK (image_shows ("top.qcow2", NULL, &contents));
  blob_free (&contents);
  sem_destroy (&synced);
  free (image_path);
  images_leave ();
  return 0;
}
