/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How large is a refcount structure that also counts itself?  See reflayout.c.  Pure.
 */

#ifndef QCOW2_REFLAYOUT_H
#define QCOW2_REFLAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* The input.  The clusters from FIRST on shall be countable: those of the structure,
 * unless it lies APART, and N others.  (N or BLOCKS is more than 0.) */
struct reflayout {
  unsigned cluster_bits;
  unsigned block_bits;          /* log2 of the clusters that a block counts */
  uint64_t first, n;
  bool apart;
  /* Is there already a block with this index?  It is not called for blocks before that of
   * FIRST.  NULL: there are no blocks. */
  bool (*has_block) (const void *opaque, uint64_t index);
  const void *opaque;
  uint64_t blocks;              /* that the structure has in any case */
  uint64_t entries;             /* of the existing table, which is kept if it is long
                                   enough; 0: a new one is needed */
  uint64_t min_table;           /* minimum length of a new table, in clusters */
  bool unlimited;               /* what would be needed, even if the format forbids it */
};

/* The size of the structure, in clusters, and the index of its last block. */
struct reflayout_size {
  uint64_t table;               /* 0: no new table */
  uint64_t blocks;
  uint64_t last;
};

/* Computes the smallest size that is enough.  Returns -1 (not reported) with ERANGE, a
 * refcount table cannot be so long, or EFBIG, host offsets would be too large. */
extern int reflayout_find (const struct reflayout *, struct reflayout_size *);

#endif /* QCOW2_REFLAYOUT_H */
