/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A server ends while the host is full.  It says that what its client has written since
 * the last flush is lost, and only then: what was flushed is there.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk/dir.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 4096
#define LOST ": the changes since the last flush are lost: there was no space"

static const struct fault full = {
  .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

static void
test (bool writes_again)
{
  static const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = { .l2_cache = 1 << 20, .l2_slice = 4096 };
  static char buf[CLUSTER];
  struct dir_image *image;
  struct simdisk *sim;
  struct export *e;
  struct rng rng;
  struct dir *dir;
  struct blob b;
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
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (e, buf, CLUSTER, 0, false) == 0);
  CHECK (export_flush (e) == 0);
  /* (These clusters were allocated ahead.) */
  if (writes_again)
    CHECK (export_write (e, buf, CLUSTER, SIZE / 2, false) == 0);
  simdisk_fault (sim, &full);
  export_close (e);
  dir_leave (dir, image);
  clear_last_error ();
  CHECK (dir_close (dir) == -1);        /* (perhaps only for counts) */
  CHECK ((strstr (last_error (), IMAGE LOST) != NULL) == writes_again);

  simdisk_fault (sim, NULL);
  rng_init (&rng, 1, 1);
  blob_save (IMAGE, simdisk_cut (sim, &rng, CUT_NOTHING));
  CHECK (image_check (IMAGE) != 2);
  image_contents (IMAGE, NULL, &b);
  for (unsigned i = 0; i < CLUSTER; i++)
    CHECK (b.data[i] == 'a');
  blob_free (&b);
  simdisk_free (sim);
  free (path);
  free (directory);
}

int
main (void)
{
  images_enter ("dir-ends-full");
  quiet_errors = true;
  test (true);
  test (false);
  images_leave ();
  return 0;
}
