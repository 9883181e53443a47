/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which partitions does a disk have?  See partitions.c.
 */

#ifndef QCOW2_IMG_PARTITIONS_H
#define QCOW2_IMG_PARTITIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "copy/copyend.h"

#define MOST_PARTITIONS 128

struct partition {
  unsigned number;              /* as Linux counts; 0: the whole disk */
  uint64_t offset, size;        /* bytes; of any value */
};

/* Sets LIST to the partitions of a disk (those within an extended one are from number 5
 * on), or to the whole disk if it has none.  Their number; -1: the disk cannot be read
 * (reported). */
extern int partitions_find (const struct copy_end *, struct partition list[MOST_PARTITIONS]);

/* Is this, of 512 bytes, the boot sector of a FAT filesystem? */
extern bool partitions_is_fat (const void *sector);

#endif /* QCOW2_IMG_PARTITIONS_H */
