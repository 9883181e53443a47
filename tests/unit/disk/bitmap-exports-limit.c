/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The bitmaps that clients read at the same time need no more than 512M of memory: who
 * asks for one more is refused, until another client has left.  A single bitmap always
 * fits, and clients of the same bitmap share it.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "large.qcow2"

/* Each bitmap has a bit for 512 bytes: 300M. */
static const struct image_spec spec = {
  .version = 3, .cluster_size = 65536, .refcount_bits = 16,
  .size = (UINT64_C (300) << 20) * 8 * 512,
};

static struct export *
come (struct disk *d, const char *name)
{
  struct export *e = export_open (d, name, false);

  CHECK (e != NULL);
  return e;
}

static void
is_refused (struct disk *d, const char *name)
{
  quiet_errors = true;
  errno = 0;
  CHECK (export_open (d, name, false) == NULL && errno == ENOMEM);
  CHECK (strstr (last_error (), "need more than 536870912 bytes") != NULL);
  quiet_errors = false;
}

int
main (void)
{
  struct export *one, *same, *other;
  struct disk_options options = { .l2_slice = 4096, .backing = BACKING_FOLLOW };
  struct disk *d;

  images_enter ("bitmap-exports-limit");
  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "a", 9);
  image_bitmap_disable (IMAGE, "a");
  image_bitmap (IMAGE, "b", 9);
  image_bitmap_disable (IMAGE, "b");
  options.path = images_path (IMAGE);
  CHECK (disk_open (&options, &d) == 0);
  one = come (d, "bitmap:a");
  is_refused (d, "bitmap:b");
  same = come (d, "bitmap:a");
  CHECK (export_close (one) == 0);
  is_refused (d, "bitmap:b");
  CHECK (export_close (same) == 0);
  other = come (d, "bitmap:b");
  is_refused (d, "bitmap:a");
  CHECK (export_close (other) == 0);
  CHECK (disk_close (d) == 0);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
