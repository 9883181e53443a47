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

/* Opens the image, makes these N changes of its bitmaps in this order, all or none of
 * them, and closes it.  -1: reported; nothing has changed, unless the image has failed
 * (R9). */
extern int bitmapedit_image (const struct disk_options *,
                             const struct bitmapedit *, size_t n);

#endif /* QCOW2_BITMAPEDIT_H */
