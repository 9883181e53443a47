/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What refcount.c, refgrow.c and refwrite.c share.  No other file includes this.
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
  struct header *header;        /* reftable_*: what the file's header says;
                                   written under the lock */
  struct overlap *overlap;
  unsigned cluster_bits;
  unsigned order;               /* log2 of the bits of a count */
  unsigned block_bits;          /* log2 of the clusters that a block counts */
  uint64_t max;

  pthread_mutex_t lock;         /* guards everything below; held for reads of
                                   blocks, never for writes and syncs */
  uint64_t *table;              /* entries, CPU order; 0 = no block */
  uint64_t entries;
  uint64_t room;                /* entries that the array has place for */
  struct refblock_cache cache;

  /* Where the table will be, if that is not where the header says. */
  uint64_t new_offset;          /* 0: it does not move */
  uint64_t new_clusters;
  bool writing;                 /* refcount_write is at work */
};

enum refcount_change { REFCOUNT_CLAIM, REFCOUNT_UP, REFCOUNT_DOWN };

/* What refcount_claim, inc and dec do, with the lock held.  All or nothing. */
extern int refcount_change (struct refcounts *, uint64_t first, uint64_t n,
                            enum refcount_change);

/* Gives up a place for the table that no header in the file names: drops its
 * counts.  Called with the lock held.  Cannot fail: at worst it is leaked. */
extern void refcount_abandon_table (struct refcounts *, uint64_t offset,
                                    uint64_t clusters);

#endif /* QCOW2_REFCOUNT_IMPL_H */
