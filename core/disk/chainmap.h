/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What qemu-img map says about a disk.  See chainmap.c.
 */

#ifndef QCOW2_CHAINMAP_H
#define QCOW2_CHAINMAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "mapping/layers.h"

/* How a range of a disk is stored, as qemu-img map says it: see chainmap.c. */
struct map_entry {
  uint64_t start, length;       /* bytes */
  unsigned depth;
  bool present, zero, data, compressed;
  bool has_offset;
  uint64_t offset;              /* bytes, in the file with the data */
};

/* Calls FN for each entry, in order, of the active disk of the top image, or of this
 * SNAPSHOT; one that continues the one before is part of it.  FN returns 0, or -1 to
 * stop.  Guest data is not read.  Takes as long as reading all L2 tables, and little
 * memory.  -1: FN has returned it, or reported. */
extern int chainmap_each (struct layers *, const struct snapshot *,
                          int (*fn) (void *opaque, const struct map_entry *),
                          void *opaque);
/* Writes an entry as an object on one line, without a newline.  (The caller asks for
 * errors.) */
extern void chainmap_print (FILE *, const struct map_entry *);

#endif /* QCOW2_CHAINMAP_H */
