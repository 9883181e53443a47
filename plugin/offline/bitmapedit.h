/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do bitmaps come and go, and how are they emptied?  See bitmapedit.c.
 */

#ifndef QCOW2_BITMAPEDIT_H
#define QCOW2_BITMAPEDIT_H

#include <stddef.h>

#include "disk/disk.h"

enum bitmapedit_what { BITMAP_REMOVE, BITMAP_CLEAR, BITMAP_ADD };

struct bitmapedit {
  enum bitmapedit_what what;
  const char *name;
  unsigned granularity_bits;    /* of what is added; 0: as QEMU would choose */
};

/* Makes these N changes of the bitmaps of an image, which was opened with the same
 * options (disk_open_image), in this order, all or none of them.  -1: reported; nothing
 * has changed, unless the image has failed (R9).  What is known of it is out of date. */
extern int bitmapedit_image (struct image *, const struct disk_options *,
                             const struct bitmapedit *, size_t n);

#endif /* QCOW2_BITMAPEDIT_H */
