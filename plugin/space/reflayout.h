/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How large is a refcount structure that counts itself, too?  See reflayout.c.  Pure.
 */

#ifndef QCOW2_REFLAYOUT_H
#define QCOW2_REFLAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* What is given.  Clusters from FIRST on are to be countable: those of the structure,
 * unless it lies APART, and N others.  (N or BLOCKS is more than 0.) */
struct reflayout {
  unsigned cluster_bits;
  unsigned block_bits;          /* log2 of the clusters that a block counts */
  uint64_t first, n;
  bool apart;
  /* Is there a block with this index already?  Nothing is asked about blocks before
   * that of FIRST.  NULL: there is none. */
  bool (*has_block) (const void *opaque, uint64_t index);
  const void *opaque;
  uint64_t blocks;              /* that the structure has in any case */
  uint64_t entries;             /* of the table that there is, to be kept if it is long
                                   enough; 0: there will be a new one */
  uint64_t min_table;           /* clusters of a new table, at least */
};

/* What the structure takes, in clusters, and the index of its last block. */
struct reflayout_size {
  uint64_t table;               /* 0: no new one */
  uint64_t blocks;
  uint64_t last;
};

/* The smallest that will do.  -1 (not reported): ERANGE, a refcount table can't be so
 * long; EFBIG, host offsets would be too large. */
extern int reflayout_find (const struct reflayout *, struct reflayout_size *);

#endif /* QCOW2_REFLAYOUT_H */
