/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the data of any image is.  See diskmap.c.
 */

#ifndef QCOW2_IMG_DISKMAP_H
#define QCOW2_IMG_DISKMAP_H

#include "disk/chainmap.h"
#include "img/imagefile.h"

/* As chainmap_each, for an image of any kind.  SNAPSHOT: its name or id, or NULL.  -1: FN
 * has returned it, or reported. */
extern int diskmap_each (const struct imagefile *, const char *snapshot,
                         int (*fn) (void *opaque, const struct map_entry *), void *opaque);

#endif /* QCOW2_IMG_DISKMAP_H */
