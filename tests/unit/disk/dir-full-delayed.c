/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The last writer of an image in a directory leaves while the host has no space for what
 * its bitmaps have recorded, and a reader's request delays the release of freed clusters.
 * When that reader leaves, too, the image stays open for the bitmaps.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/epoch.h"
#include "request/bitmap.h"
#include "disk/dir.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 4096

static const struct fault no_growth = {
  .ops = 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

static struct dir *dir;

static struct export *
come (struct dir_image **image, bool writer)
{
  const char *rest;
  struct export *e;

  CHECK ((*image = dir_enter (dir, IMAGE, &rest)));
  CHECK ((e = export_open (dir_disk (*image), rest, writer)));
  return e;
}

static void
leave (struct export *e, struct dir_image *image)
{
  export_close (e);
  dir_leave (dir, image);
}

static void
must_have_recorded (void)
{
  struct disk_options options = { .l2_cache = 1 << 20, .l2_slice = 4096 };
  struct dirtyset *set;
  uint64_t len = CLUSTER;
  struct disk *d;
  char *path;

  options.path = path = images_path (IMAGE);
  CHECK (disk_open (&options, &d) == 0);
  CHECK (bitmap_freeze (disk_bitmaps (d), 0, &set) == 0);
  CHECK (dirtyset_find (set, 0, &len));
  dirtyset_free (set);
  CHECK (disk_close (d) == 0);
  free (path);
}

int
main (void)
{
  static const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
  };
  static char buf[CLUSTER];
  struct dir_image *image, *again;
  struct export *writer, *reader;
  struct simdisk *sim;
  struct epoch_section section;
  struct epoch *epoch;
  struct rng rng;
  char *path, *directory;

  images_enter ("dir-full-delayed");
  quiet_errors = true;
  options.path = directory = images_path (".");
  path = images_path ("./" IMAGE);
  image_create (IMAGE, &spec);
  /* More than the cluster that is about to be freed has space for. */
  image_bitmap (IMAGE, "b", 0);
  image_bitmap (IMAGE, "c", 0);
  image_bitmap (IMAGE, "d", 0);
  sim = simdisk_new (path, 1);
  options.hooks = simdisk_hooks (sim);
  CHECK (dir_open (&options, &dir) == 0);

  writer = come (&image, true);
  reader = come (&again, false);
  CHECK (again == image);
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (writer, buf, CLUSTER, 0, false) == 0);
  CHECK (export_write (writer, buf, CLUSTER, CLUSTER, false) == 0);
  CHECK (export_flush (writer) == 0);
  simdisk_fault (sim, &no_growth);
  for (unsigned i = 2; export_write (writer, buf, CLUSTER, i * CLUSTER, false) == 0; i++)
    CHECK ((i + 1) * CLUSTER < SIZE);
  CHECK (export_flush (writer) == 0);

  epoch = disk_inside (dir_disk (image)).epoch;
  section = epoch_enter (epoch);  /* a request of the reader */
  CHECK (export_trim (writer, CLUSTER, CLUSTER, false) == 0);
  leave (writer, image);
  epoch_leave (epoch, section);
  leave (reader, image);

  simdisk_fault (sim, NULL);
  CHECK (dir_close (dir) == 0);
  rng_init (&rng, 1, 1);
  blob_save (IMAGE, simdisk_cut (sim, &rng, CUT_NOTHING));
  CHECK (image_check (IMAGE) == 0);
  must_have_recorded ();
  simdisk_free (sim);
  free (path);
  free (directory);
  images_leave ();
  return 0;
}
