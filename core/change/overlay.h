/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Puts a new image on top of a disk: an external snapshot.  See overlay.c.
 */

#ifndef QCOW2_OVERLAY_H
#define QCOW2_OVERLAY_H

#include <stdbool.h>

#include "disk/disk.h"

struct overlay {
  const char *path;             /* absolute, of the new image */
  bool create;                  /* there must be no file yet; else the image is there, and
                                   is empty */
  struct image *image;          /* NULL, or: it is open already, and loaded */
};

/* From now on the disk writes the new image, and what was its image is the backing file,
 * which is not written any more.  What the disk shows does not change.  Internal
 * snapshots and bitmaps stay in the backing file.  0: done; to use the disk later, open
 * the new image.  -1 (reported): as before; an image that was created is removed. */
extern int overlay_disk (struct disk *, const struct overlay *);

/* Has the loaded image no cluster of its own, so that it shows what is below it?  1, 0, or
 * -1 (reported). */
extern int overlay_is_empty (const struct image *);

#endif /* QCOW2_OVERLAY_H */
