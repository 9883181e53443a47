/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a disk made smaller if refcounts say that a cluster of a bitmap is free, which then
 * would be freed?  The change is refused, and the image is as before.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 512

/* Of the second cluster of the only bitmap. */
static uint64_t
find_cluster (const struct blob *b)
{
  uint64_t at = blob_get (b, 100, 4), entry;

  while (blob_get (b, at, 4) != QCOW2_EXT_BITMAPS) {
    CHECK (blob_get (b, at, 4) != 0);
    at += 8 + round_up (blob_get (b, at + 4, 4), 8);
  }
  entry = blob_get (b, at + 8 + 16, 8);
  CHECK (blob_get (b, entry + 8, 4) == 2);
  return blob_get (b, blob_get (b, entry, 8) + 8, 8) & QCOW2_BITMAP_OFFSET_MASK;
}

/* Of the refcount, which has 16 bits, of the cluster at HOST. */
static uint64_t
find_count (const struct blob *b, uint64_t host)
{
  const uint64_t cluster = host / CLUSTER, per_block = CLUSTER / 2;

  return blob_get (b, blob_get (b, 48, 8) + cluster / per_block * 8, 8) +
    cluster % per_block * 2;
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 4 << 20,
  };
  const struct edit_options edit_options = { .shrink = true };
  const struct edit edit = { .kind = EDIT_RESIZE, .size = 1 << 20 };
  struct disk_options options;
  struct blob before, damaged, now;
  struct command c = { .n = 0 };
  uint64_t cluster, count;

  images_enter ("resize-uncounted-bitmap");
  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", 9);
  command_words (&c, "qemu-io -t unsafe -f qcow2 -c");
  command_add (&c, "write 3M 4k");
  command_add (&c, IMAGE);
  command_must (&c);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 512,
    .hooks = &without_sync,
  };
  blob_load (IMAGE, &before);
  cluster = find_cluster (&before);
  count = find_count (&before, cluster);
  CHECK (cluster != 0 && blob_get (&before, count, 2) == 1);
  damaged = blob_copy (&before);
  blob_put (&damaged, count, 0, 2);
  blob_save (IMAGE, &damaged);

  errno = 0;
  quiet_errors = true;
  CHECK (change_edit (&options, &edit_options, &edit) == -1 && errno == EUCLEAN);
  quiet_errors = false;
  CHECK (error_count () == 1);
  CHECK (strstr (last_error (), "in use but its reference count is 0") != NULL);
  blob_load (IMAGE, &now);
  CHECK (blob_same (&damaged, &now));
  blob_free (&now);

  blob_save (IMAGE, &before);
  CHECK (change_edit (&options, &edit_options, &edit) == 0 && image_check (IMAGE) == 0);
  blob_free (&before);
  blob_free (&damaged);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
