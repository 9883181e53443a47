/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bitmaps changed before an image is served?
 *
 * The image is opened as for a client that may write (so it is locked, and
 * repaired if need be), changed, brought to rest, and closed.  Serving it begins
 * with opening it anew: nothing that was known before has to be corrected.
 *
 * Locks: none; nobody else has the disk.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk-impl.h"
#include "report.h"

static int
edit_bitmaps (struct disk *d, const struct bitmapedit *edits, size_t n)
{
  static const struct bitmapdir none;
  const struct bitmapedit_image image = {
    .file = d->w.file, .header = layers_header (d->layers, 0),
    .overlap = layers_overlap (d->layers, 0), .alloc = d->w.alloc,
    .checkpoint = d->w.checkpoint, .health = d->health,
  };

  return bitmapedit_apply (&image,
                           d->bitmaps ? bitmap_directory (d->bitmaps) : &none,
                           edits, n);
}

int
disk_edit_bitmaps (const struct disk_options *options,
                   const struct bitmapedit *edits, size_t n)
{
  bool writable = true;
  struct disk *d;
  int r = -1;

  if (disk_open (options, &d) == -1)
    return -1;
  if (d->why_readonly) {
    nbdkit_error ("%s: bitmaps can't be changed: %s", options->path,
                  d->why_readonly);
    errno = EROFS;
  }
  else if (disk_connect (d, &writable) == 0 && writable) {
    r = edit_bitmaps (d, edits, n);
    if (disk_disconnect (d, true) == -1)
      r = -1;
  }
  return disk_close (d) == -1 ? -1 : r;
}
