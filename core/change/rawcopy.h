/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies a disk to a raw file.  See rawcopy.c.
 */

#ifndef QCOW2_RAWCOPY_H
#define QCOW2_RAWCOPY_H

#include <stdint.h>

#include "disk/disk.h"
#include "copy/chunks.h"

/* Is there nothing at PATH (absolute) yet?  0, or -1 (reported). */
extern int rawcopy_check (const char *path);

/* Writes what clients see of the disk (with snapshot=, of the snapshot) to a new file at
 * PATH.  OPTIONS are those of the disk.  *COPIED: bytes of data written.  -1: reported;
 * there is no file. */
extern int rawcopy_disk (struct disk *, const struct disk_options *, const char *path,
                         const struct chunks_watch *, uint64_t *copied);

#endif /* QCOW2_RAWCOPY_H */
