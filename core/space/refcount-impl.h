/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that refcount.c, refgrow.c and refwrite.c share.  No other file includes
 * this.
 */

#ifndef QCOW2_REFCOUNT_IMPL_H
#define QCOW2_REFCOUNT_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "space/refblock.h"
#include "space/refcount.h"

struct refcounts {
  struct storage *file;
  struct header *header;        /* reftable_*: as in the file's header; written under the
                                   lock */
  struct overlap *overlap;
  unsigned cluster_bits;
  unsigned order;               /* log2 of the bits per count */
  unsigned block_bits;          /* log2 of the clusters that a block counts */
  uint64_t max;

  pthread_mutex_t lock;         /* guards all fields below; held while blocks are read,
                                   never during writes and syncs */
  uint64_t *table;              /* entries, CPU order; 0 = no block */
  uint64_t entries;
  uint64_t room;                /* allocated entries of the array */
  struct refblock_cache cache;

  /* The place of the table, if it is not yet the one in the header. */
  uint64_t new_offset;          /* 0: it does not move */
  uint64_t new_clusters;
  bool writing;                 /* refcount_write is running */
  uint64_t writing_table;       /* the new_offset that it has taken; 0: none, or it is
                                   known whether the header names it */
};

enum refcount_change { REFCOUNT_CLAIM, REFCOUNT_UP, REFCOUNT_DOWN };

/* Does what refcount_claim, inc and dec do, all or nothing.  The caller holds the
 * lock. */
extern int refcount_change (struct refcounts *, uint64_t first, uint64_t n,
                            enum refcount_change);

/* Gives up a place for the table that no header in the file names, and decrements its
 * counts.  The caller holds the lock.  Cannot fail: at worst the clusters are leaked. */
extern void refcount_abandon_table (struct refcounts *, uint64_t offset,
                                    uint64_t clusters);

#endif /* QCOW2_REFCOUNT_IMPL_H */
