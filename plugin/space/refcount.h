/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does a host cluster have?  See refcount.c.
 *
 * Cluster numbers are host offset >> cluster_bits.  All functions take the room's own
 * lock inside; they may read refcount blocks from the file, never write.  Only
 * refcount_write writes, and only the checkpoint calls it.
 * int results: 0, or -1 with errno set and reported (EUCLEAN: corrupt structures).
 */

#ifndef QCOW2_REFCOUNT_H
#define QCOW2_REFCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"

struct refcounts;

/* Reads and checks the refcount table.  Registers it and the blocks with OVERLAP.
 * All pointers must outlive the result.  HEADER's reftable_offset and
 * reftable_clusters are updated when the table has moved in the file. */
extern struct refcounts *refcount_open (struct storage *, struct header *,
                                        struct overlap *);
extern void refcount_close (struct refcounts *);  /* NULL is fine */

extern uint64_t refcount_max (const struct refcounts *);
/* How many clusters a refcount block counts. */
extern uint64_t refcount_block_clusters (const struct refcounts *);
extern int refcount_get (struct refcounts *, uint64_t cluster, uint64_t *value);

/* Counts of N clusters from FIRST up or down by one, in memory.  All or nothing.
 * inc: ENOSPC-free; a count at its maximum is EOVERFLOW (reported); a cluster without a
 * refcount block is an error (EUCLEAN; call refcount_extend first).
 * claim: from 0 to 1, for clusters that we are about to use; any other count is
 * corruption (EUCLEAN).
 * dec: a count of 0 is corruption (EUCLEAN).
 * dec calls back (if not NULL) for each maximal sub-range that reached zero, with
 * the room's lock held: FREED must not call this room. */
extern int refcount_inc (struct refcounts *, uint64_t first, uint64_t n);
extern int refcount_claim (struct refcounts *, uint64_t first, uint64_t n);
extern int refcount_dec (struct refcounts *, uint64_t first, uint64_t n,
                         void (*freed) (void *opaque, uint64_t first,
                                        uint64_t n),
                         void *opaque);

/* The first free run (count 0, and not metadata) at or after FROM and before
 * LIMIT: sets *FIRST and *N (1 .. MAX_N) and returns 1, or returns 0 if there is none
 * among the clusters looked at.  Looks at no more than one refcount block's worth of
 * clusters; *NEXT is where to go on (LIMIT when all has been looked at).
 * Clusters without a refcount block are skipped. */
extern int refcount_find_free (struct refcounts *, uint64_t from,
                               uint64_t limit, uint64_t max_n,
                               uint64_t *first, uint64_t *n, uint64_t *next);

/* One past the last cluster with a count > 0 (reads refcount blocks from the end). */
extern int refcount_end (struct refcounts *, uint64_t *end);

/* Makes clusters from FIRST on countable, where FIRST and all after it are unused so far:
 * where refcount blocks or room in the refcount table are missing, new ones are laid
 * out at PLACE, in memory, and registered with overlap.  *USED: how many clusters they
 * take there (0 or more).  PLACE is either
 *   FIRST: their own counts are raised, and [first+used, first+used+n) is countable then;
 *   before FIRST, where the caller has claimed as many clusters as they take: these are
 *   theirs now, and [first, first+n) is countable.
 * All or nothing; ENOSPC: the image can't get that much larger (not reported: fewer
 * clusters may do).  */
extern int refcount_extend (struct refcounts *, uint64_t place, uint64_t first,
                            uint64_t n, uint64_t *used);

/* How many clusters would refcount_extend take (*USED)?  Changes nothing; fails as that
 * does. */
extern int refcount_extend_cost (struct refcounts *, uint64_t place,
                                 uint64_t first, uint64_t n, uint64_t *used);

/* Is anything to be written? */
extern bool refcount_is_dirty (struct refcounts *);

/* Writes all changed counts.  If there are new blocks or a new table: writes them, syncs
 * (so that they are durable), then writes the table entries or the header fields
 * that point to them.  The caller's next sync makes the rest durable.
 * *MOVED: set (n > 0) if the table moved.  The old one may go only when the caller has
 * synced: then overlap_remove and refcount_dec it.
 * Only one caller at a time.  On ENOSPC everything stays dirty and can be
 * tried again; a failed sync inside is always EIO. */
struct refcount_moved { uint64_t first, n; };
extern int refcount_write (struct refcounts *, struct refcount_moved *moved);

#endif /* QCOW2_REFCOUNT_H */
