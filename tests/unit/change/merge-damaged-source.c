/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a merge refused if the bitmaps of the other image are damaged?  The message names
 * the other image, and this one is as before.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "top.qcow2"
#define OTHER "other.qcow2"

/* The directory entry of the only bitmap of the other image. */
static uint64_t
find_bitmap (const struct blob *b)
{
  uint64_t at = blob_get (b, 100, 4);

  while (blob_get (b, at, 4) != QCOW2_EXT_BITMAPS) {
    CHECK (blob_get (b, at, 4) != 0);
    at += 8 + round_up (blob_get (b, at + 4, 4), 8);
  }
  return blob_get (b, at + 8 + 16, 8);
}

int
main (void)
{
  static const struct bitmapedit merge = {
    .what = BITMAP_MERGE, .name = "b", .merged = "b",
  };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
  };
  struct disk_options options;
  struct blob before, now, other;
  char *source;

  images_enter ("merge-damaged-source");
  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", 9);
  image_create (OTHER, &spec);
  image_bitmap (OTHER, "b", 9);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
  };
  source = images_path (OTHER);
  blob_load (IMAGE, &before);
  blob_load (OTHER, &other);
  blob_put (&other, find_bitmap (&other), 12345, 8);    /* its table is nowhere */
  blob_save (OTHER, &other);

  CHECK (change_bitmaps (&options, &merge, 1, source) == -1 && errno == EINVAL);
  CHECK (strstr (last_error (), source) != NULL);
  blob_load (IMAGE, &now);
  CHECK (blob_same (&before, &now));
  blob_free (&before);
  blob_free (&now);
  blob_free (&other);
  free (source);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
