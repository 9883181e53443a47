/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An entry of a layer below that makes no sense: who reads through it gets EIO, the
 * message names that layer's file, the rest of the disk can be read and written, and
 * neither image is marked corrupt, because the layer does not belong to this disk alone.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "format/format.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define BELOW "below.qcow2"
#define TOP "top.qcow2"
#define CLUSTER 4096u
#define SIZE (16 * CLUSTER)

static uint64_t
feature_bits (const char *name)
{
  struct blob b;
  uint64_t bits;

  blob_load (name, &b);
  bits = blob_get (&b, 72, 8);
  blob_free (&b);
  return bits;
}

/* The offset in the entry of guest cluster 2 is not aligned. */
static void
damage (void)
{
  struct blob b;
  uint64_t table;

  blob_load (BELOW, &b);
  table = blob_get (&b, blob_get (&b, 40, 8), 8) & QCOW2_L1_OFFSET_MASK;
  CHECK (table > 0);
  blob_put (&b, table + 2 * 8, QCOW2_OFLAG_COPIED | 0x12200, 8);
  blob_save (BELOW, &b);
  blob_free (&b);
}

static void
test (bool writable)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
    .preallocation = "metadata",
  };
  struct disk_options options = {
    .path = images_path (TOP), .l2_slice = CLUSTER, .backing = BACKING_FOLLOW,
    .copy_on_read = true, .hooks = &without_sync,
  };
  static unsigned char buf[SIZE];
  unsigned long errors;
  struct export *e;
  struct disk *d;

  image_create (BELOW, &spec);
  damage ();
  spec.preallocation = NULL;
  spec.backing = BELOW;
  image_create (TOP, &spec);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", writable)) && export_is_writable (e) == writable);
  errors = error_count ();
  quiet_errors = true;
  errno = 0;
  CHECK (export_read (e, buf, SIZE, 0) == -1 && errno == EIO && error_count () > errors);
  CHECK (strstr (last_error (), "/" BELOW) && strstr (last_error (), "is invalid"));
  quiet_errors = false;
  CHECK (export_read (e, buf, 2 * CLUSTER, 0) == 0);
  CHECK (export_read (e, buf, 13 * CLUSTER, 3 * CLUSTER) == 0);
  if (writable) {
    CHECK (export_write (e, buf, CLUSTER, 2 * CLUSTER, false) == 0);
    CHECK (export_read (e, buf, SIZE, 0) == 0);
  }
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  CHECK ((feature_bits (TOP) & QCOW2_INCOMPAT_CORRUPT) == 0);
  CHECK ((feature_bits (BELOW) & QCOW2_INCOMPAT_CORRUPT) == 0);
  free ((char *) options.path);
}

int
main (void)
{
  images_enter ("corrupt-layer");
  test (false);
  test (true);
  images_leave ();
  return 0;
}
