/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The disks in raw files.  See rawdisk.c.
 */

#ifndef QCOW2_IMG_RAWDISK_H
#define QCOW2_IMG_RAWDISK_H

#include "storage/storage.h"
#include "disk/chainmap.h"
#include "img/imagefile.h"

/* Opens the file to read it, locked as QEMU does.  NULL: reported. */
extern struct storage *rawdisk_open (const struct imagefile *);
/* As chainmap_each: parts with data and holes, in turn.  The size of the disk is a
 * multiple of 512. */
extern int rawdisk_each (struct storage *, int (*fn) (void *, const struct map_entry *),
                         void *opaque);

#endif /* QCOW2_IMG_RAWDISK_H */
