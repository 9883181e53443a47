/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The last client of an image in a directory leaves while the host is full: what it had
 * written is not lost.  The next client finds it, and when there is space, and that one
 * leaves, the image is closed.  If no client comes, it is closed when the server ends.
 * The bitmap is valid then, and has recorded the change.
 * All this is so without a timer, and with one that tries to write all the time.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "request/bitmap.h"
#include "disk/dir.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 4096
#define ROUNDS (long_suite () ? 20u : 6u)

static const struct fault full = {
  .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

static const struct fault no_growth = {
  .ops = 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

static struct dir *dir;
static struct simdisk *sim;

static struct export *
come (struct dir_image **image)
{
  const char *rest;
  struct export *e;

  CHECK ((*image = dir_enter (dir, IMAGE, &rest)));
  CHECK ((e = export_open (dir_disk (*image), rest, true)) && export_is_writable (e));
  return e;
}

static void
leave (struct export *e, struct dir_image *image)
{
  export_close (e);
  dir_leave (dir, image);
}

/* What the file has at the end. */
static void
must_contain (int byte)
{
  struct rng rng;
  struct blob b;

  rng_init (&rng, 1, 1);
  CHECK (simdisk_is_durable (sim, false));
  blob_save (IMAGE, simdisk_cut (sim, &rng, CUT_NOTHING));
  CHECK (image_check (IMAGE) == 0);
  image_contents (IMAGE, NULL, &b);
  for (unsigned i = 0; i < CLUSTER; i++)
    CHECK (b.data[i] == byte);
  blob_free (&b);
}

/* The image is the one that must_contain has left. */
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

static void
test (bool comes_again, bool flushes, unsigned interval_ms)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .checkpoint_interval_ms = interval_ms,
  };
  static char buf[CLUSTER], found[CLUSTER];
  struct dir_image *image;
  struct disk_stats stats;
  struct export *e;
  char *path, *directory;

  options.path = directory = images_path (".");
  path = images_path ("./" IMAGE);
  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", 0);
  sim = simdisk_new (path, 1);
  options.hooks = simdisk_hooks (sim);
  CHECK (dir_open (&options, &dir) == 0);

  e = come (&image);
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (e, buf, CLUSTER, 0, false) == 0);
  if (flushes) {                /* the bitmap is left, and no cluster for it */
    simdisk_fault (sim, &no_growth);
    for (unsigned i = 1; export_write (e, buf, CLUSTER, i * CLUSTER, false) == 0; i++)
      CHECK ((i + 1) * CLUSTER < SIZE);
    CHECK (export_flush (e) == 0);
  }
  else
    simdisk_fault (sim, &full);
  leave (e, image);
  dir_get_stats (dir, &stats);  /* (opens and closes images, too) */
  if (comes_again) {
    e = come (&image);
    CHECK (export_read (e, found, CLUSTER, 0) == 0 && memcmp (found, buf, CLUSTER) == 0);
    if (!flushes) {             /* (otherwise there may be a cluster for the bitmap
                                   now) */
      leave (e, image);
      e = come (&image);
    }
    simdisk_fault (sim, NULL);
    leave (e, image);
    must_contain ('a');
    must_have_recorded ();
    dir_get_stats (dir, &stats);
    CHECK (stats.alloc.allocated > 0);
  }
  simdisk_fault (sim, NULL);
  CHECK (dir_close (dir) == 0);
  must_contain ('a');
  must_have_recorded ();
  simdisk_free (sim);
  free (path);
  free (directory);
}

int
main (void)
{
  images_enter ("dir-full");
  quiet_errors = true;
  for (unsigned i = 0; i < 2 * ROUNDS; i++)
    test (i % 2 == 0, i / 4 % 2, i / 2 % 2);
  images_leave ();
  return 0;
}
