/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Zeros for a part of a cluster that the backing file has: they are written in pieces,
 * but not where there are zeros already.  Each piece counts for itself.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/images.h"

#define SIZE (2u << 20)         /* of the disk, and of a cluster */
#define EDGE 4096u

static unsigned char data[SIZE];

/* Of the image that is open. */
static char *path;

static struct export *
open_image (const char *name, struct disk **d)
{
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
  };
  struct export *e;

  options.path = path = images_path (name);
  CHECK (disk_open (&options, d) == 0 && (e = export_open (*d, "", true)));
  return e;
}

static void
close_image (struct export *e, struct disk *d)
{
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  free (path);
}

/* Small clusters: some without data, some with data, and some without. */
static void
make_below (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
  };
  struct export *e;
  struct disk *d;

  image_create ("below.qcow2", &spec);
  e = open_image ("below.qcow2", &d);
  memset (data, 1, SIZE / 4);
  CHECK (export_write (e, data, SIZE / 4, SIZE / 2, false) == 0);
  close_image (e, d);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = SIZE, .refcount_bits = 16, .size = SIZE,
    .backing = "below.qcow2",
  };
  struct export *e;
  struct disk *d;

  images_enter ("zeros-in-a-cluster");
  make_below ();
  image_create ("a.qcow2", &spec);
  e = open_image ("a.qcow2", &d);
  CHECK (export_read (e, data, SIZE, 0) == 0 && !bytes_are_zero (data, SIZE));
  CHECK (export_zero (e, SIZE - 2 * EDGE, EDGE, 0, false) == 0);
  CHECK (export_read (e, data, SIZE, 0) == 0 && bytes_are_zero (data, SIZE));
  close_image (e, d);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
