/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do bitmaps get the length of a disk that is resized?  See bitmapsize.c.
 */

#ifndef QCOW2_BITMAPSIZE_H
#define QCOW2_BITMAPSIZE_H

#include "offline/shadow.h"

/* Can the bitmaps of the image follow the disk to a size of SIZE (> 0) bytes?  Changes
 * nothing.  0, also where there are none; or -1 (reported). */
extern int bitmapsize_check (const struct image *, uint64_t size);

/* Writes what has to be different to new places, and has *SH name it.  The image's header
 * may get its extensions in another order, which means the same.  -1: reported. */
extern int bitmapsize_change (const struct image *, struct shadow *,
                              uint64_t size, struct shadow_header *sh);

#endif /* QCOW2_BITMAPSIZE_H */
