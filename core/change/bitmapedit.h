/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes which persistent bitmaps there are, and what they contain.  See bitmapedit.c.
 */

#ifndef QCOW2_BITMAPEDIT_H
#define QCOW2_BITMAPEDIT_H

#include <stddef.h>

#include "disk/disk.h"

enum bitmapedit_what {
  BITMAP_REMOVE, BITMAP_CLEAR, BITMAP_ADD, BITMAP_ENABLE, BITMAP_DISABLE, BITMAP_MERGE
};

struct bitmapedit {
  enum bitmapedit_what what;
  const char *name;
  unsigned granularity_bits;    /* of an added bitmap; 0: QEMU's default */
  const char *merged;           /* the bitmap that is merged into this one */
};

/* Makes these N changes of the bitmaps of a disk, in this order, all or none of them.
 * SOURCE: the qcow2 image (absolute path, or URI) that has the bitmaps that are merged;
 * NULL: the image itself.  -1: reported; nothing has changed, unless the image has failed
 * (R9). */
extern int bitmapedit_disk (struct disk *, const struct bitmapedit *, size_t n,
                            const char *source);
/* The same, and takes an internal snapshot of the disk (NULL: none) in the same step. */
extern int bitmapedit_with_snapshot (struct disk *, const char *snapshot,
                                     const struct bitmapedit *, size_t n,
                                     const char *source);
/* Would that be refused?  Writes nothing.  TOP: the changes are for this image, which
 * will be on top of the disk then; bitmaps of the disk's image that are merged then are
 * not looked at.  NULL: for the disk's image.  0, or -1 (reported). */
extern int bitmapedit_check (struct disk *, const struct image *top, const char *snapshot,
                             const struct bitmapedit *, size_t n, const char *source);

#endif /* QCOW2_BITMAPEDIT_H */
