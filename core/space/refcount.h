/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does a host cluster have?  See refcount.c.
 *
 * Cluster numbers are host offset >> cluster_bits.  All functions take this module's own
 * lock; they may read refcount blocks from the file, but never write.  Only
 * refcount_write writes, and only the checkpoint calls it.  Functions that return int
 * return 0, or -1 with errno set and the error reported (EUCLEAN: corrupt structures).
 */

#ifndef QCOW2_REFCOUNT_H
#define QCOW2_REFCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"

struct refcounts;

/* Reads and checks the refcount table, and registers it and the blocks with OVERLAP.  All
 * pointers must outlive the result.  When the table has moved in the file, HEADER's
 * reftable_offset and reftable_clusters are updated. */
extern struct refcounts *refcount_open (struct storage *, struct header *,
                                        struct overlap *);
extern void refcount_close (struct refcounts *);  /* may be NULL */

extern uint64_t refcount_max (const struct refcounts *);
/* The number of clusters that a refcount block counts. */
extern uint64_t refcount_block_clusters (const struct refcounts *);
extern int refcount_get (struct refcounts *, uint64_t cluster, uint64_t *value);

/* Change the counts of N clusters from FIRST by one, in memory, all or nothing.
 * inc: increments.  Never fails with ENOSPC.  A count at its maximum is EOVERFLOW
 *   (reported); a cluster without a refcount block is an error (EUCLEAN; call
 *   refcount_extend first).
 * claim: from 0 to 1, for clusters that the caller is about to use; any other count is
 *   corruption (EUCLEAN).
 * dec: decrements; a count of 0 is corruption (EUCLEAN).  Calls FREED (if not NULL) for
 *   each maximal sub-range that reached zero, with this module's lock held: FREED must
 *   not call this module. */
extern int refcount_inc (struct refcounts *, uint64_t first, uint64_t n);
extern int refcount_claim (struct refcounts *, uint64_t first, uint64_t n);
extern int refcount_dec (struct refcounts *, uint64_t first, uint64_t n,
                         void (*freed) (void *opaque, uint64_t first,
                                        uint64_t n),
                         void *opaque);

/* Finds the first free run (count 0, and no metadata) at or after FROM and before LIMIT.
 * Sets *FIRST and *N (1 .. MAX_N) and returns 1, or returns 0 if there is none among the
 * clusters that it looked at.  It looks at no more than one refcount block's worth of
 * clusters, and sets *NEXT to where the caller should continue (LIMIT when it has looked
 * at all).  Clusters without a refcount block are skipped. */
extern int refcount_find_free (struct refcounts *, uint64_t from,
                               uint64_t limit, uint64_t max_n,
                               uint64_t *first, uint64_t *n, uint64_t *next);

/* Sets *END to one past the last cluster with a count > 0 (reads refcount blocks from the
 * end). */
extern int refcount_end (struct refcounts *, uint64_t *end);

/* Makes clusters from FIRST on countable; FIRST and all clusters after it must be unused.
 * If refcount blocks or entries in the refcount table are missing, new ones are placed
 * at PLACE, in memory, and registered with overlap.  *USED is the number of clusters
 * that they take there (0 or more).  PLACE is either
 *   FIRST: their own counts are incremented, and [first+used, first+used+n) is
 *   countable;
 *   before FIRST, where the caller has claimed as many clusters as they need: the new
 *   blocks and table own these now, and [first, first+n) is countable.
 * All or nothing.  ENOSPC: the image cannot grow by that much (not reported: fewer
 * clusters may fit). */
extern int refcount_extend (struct refcounts *, uint64_t place, uint64_t first,
                            uint64_t n, uint64_t *used);

/* Sets *USED to the number of clusters that refcount_extend would take.  Changes nothing,
 * and fails as refcount_extend would. */
extern int refcount_extend_cost (struct refcounts *, uint64_t place,
                                 uint64_t first, uint64_t n, uint64_t *used);

/* Is there anything to write? */
extern bool refcount_is_dirty (struct refcounts *);

/* Writes all changed counts.  If there are new blocks or a new table: writes them, syncs
 * (so that they are durable), then writes the table entries or the header fields that
 * point to them.  The caller's next sync makes the rest durable.  If the table moved,
 * *MOVED is its old place (n > 0).  After the caller has synced, it must remove the old
 * table with overlap_remove and refcount_dec.  Only one thread may call this at a time.
 * On ENOSPC and ENOMEM everything stays dirty, and the caller can try again. */
struct refcount_moved { uint64_t first, n; };
extern int refcount_write (struct refcounts *, struct refcount_moved *moved);

#endif /* QCOW2_REFCOUNT_H */
