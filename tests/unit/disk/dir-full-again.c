/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The last writer of an image in a directory leaves while the host is full.  Then there
 * is space for what it had written, but soon none any more: a reader that leaves now does
 * not close the image, which would have leaks, in version 2 for good.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk/dir.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 4096

static const struct fault full = {
  .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

static void
test (int version)
{
  const struct image_spec spec = {
    .version = version, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .checkpoint_interval_ms = 1,
  };
  static char buf[CLUSTER];
  struct dir_image *image;
  struct checkpoint *ck;
  struct simdisk *sim;
  struct export *e;
  struct rng rng;
  struct dir *dir;
  const char *rest;
  char *path, *directory;

  options.path = directory = images_path (".");
  path = images_path ("./" IMAGE);
  image_create (IMAGE, &spec);
  sim = simdisk_new (path, 1);
  options.hooks = simdisk_hooks (sim);
  CHECK (dir_open (&options, &dir) == 0);
  CHECK ((image = dir_enter (dir, IMAGE, &rest)));
  CHECK ((e = export_open (dir_disk (image), rest, true)));
  ck = disk_inside (dir_disk (image)).view->w->checkpoint;
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (e, buf, CLUSTER, 0, false) == 0);
  simdisk_fault (sim, &full);
  export_close (e);
  dir_leave (dir, image);

  simdisk_fault (sim, NULL);
  while (checkpoint_has_changes (ck))
    usleep (1000);
  simdisk_fault (sim, &full);
  CHECK (dir_enter (dir, IMAGE, &rest) == image);
  CHECK ((e = export_open (dir_disk (image), rest, false)));
  CHECK (export_close (e) == 0);
  dir_leave (dir, image);

  simdisk_fault (sim, NULL);
  CHECK (dir_close (dir) == 0);
  rng_init (&rng, 1, 1);
  blob_save (IMAGE, simdisk_cut (sim, &rng, CUT_NOTHING));
  CHECK (image_check (IMAGE) == 0);
  simdisk_free (sim);
  free (path);
  free (directory);
}

int
main (void)
{
  images_enter ("dir-full-again");
  quiet_errors = true;
  test (2);
  test (3);
  images_leave ();
  return 0;
}
