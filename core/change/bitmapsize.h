/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Adapts bitmaps to the new size of a disk that is resized.  See bitmapsize.c.
 */

#ifndef QCOW2_BITMAPSIZE_H
#define QCOW2_BITMAPSIZE_H

#include "change/shadow.h"

/* Can the bitmaps of the image be adapted to a disk of SIZE (> 0) bytes?  Changes
 * nothing.  Returns 0, also if there are no bitmaps; or -1 (reported). */
extern int bitmapsize_check (const struct image *, uint64_t size);

/* Writes changed tables, clusters and directory to new places, and has *SH refer to the
 * directory.  -1: reported. */
extern int bitmapsize_change (const struct image *, struct shadow *,
                              uint64_t size, struct shadow_header *sh);

#endif /* QCOW2_BITMAPSIZE_H */
