/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a bitmap contain into which others are merged?  See bitmapmerge.c.
 */

#ifndef QCOW2_BITMAPMERGE_H
#define QCOW2_BITMAPMERGE_H

#include <stddef.h>
#include <stdint.h>

#include "image/bitmapdir.h"

/* A bitmap in a file, valid for a disk of the same size, whose marks count. */
struct bitmapmerge_part {
  struct storage *file;
  unsigned cluster_bits;        /* of the image in that file */
  const struct bitmapdir_entry *e;
  /* Its marks come through bitmaps with pieces of up to this size, at least its own. */
  unsigned granularity_bits;
};

/* One cluster of the new bitmap. */
struct bitmapmerge_cell {
  uint64_t disk_size;           /* bytes */
  unsigned granularity_bits;    /* of the new bitmap */
  uint64_t first;               /* the first bit; a multiple of 64 */
  uint64_t bytes;               /* a multiple of 8 */
  uint64_t *words;              /* receives the bits, as they are stored */
};

/* Computes the cell: what is marked in any of the N parts.  Returns 1 if a bit is set, 0
 * if none is, -1 on an error (reported). */
extern int bitmapmerge_compute (const struct bitmapmerge_part *, size_t n,
                                const struct bitmapmerge_cell *);

#endif /* QCOW2_BITMAPMERGE_H */
