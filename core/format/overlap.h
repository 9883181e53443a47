/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters contain metadata, and of which kind?  See overlap.c.
 */

#ifndef QCOW2_OVERLAP_H
#define QCOW2_OVERLAP_H

#include <stdint.h>

struct overlap;

enum overlap_kind {
  OVERLAP_NONE = 0,
  OVERLAP_HEADER,
  OVERLAP_L1,
  OVERLAP_L2,
  OVERLAP_REFTABLE,
  OVERLAP_REFBLOCK,
  OVERLAP_SNAPSHOT_TABLE,
  OVERLAP_INACTIVE_L1,
  OVERLAP_INACTIVE_L2,
  OVERLAP_BITMAP,
  OVERLAP_CRYPTO,
};

/* A new set contains only the header cluster.  NULL on ENOMEM. */
extern struct overlap *overlap_new (unsigned cluster_bits);
extern void overlap_free (struct overlap *);
/* From now on the hash table has at most MOST clusters: a call of overlap_add that needs
 * more returns -1 with errno E2BIG, not reported, and adds nothing. */
extern void overlap_limit (struct overlap *, uint64_t most);

/* Adds every cluster that [offset, offset+bytes) touches.  Offsets are less than 2^56.
 * Long ranges are kept as ranges, whose memory does not depend on their length; single
 * clusters are kept in a hash table, about 16 to 32 bytes each.  A cluster that is
 * already known as another kind keeps its first kind.  Returns 0 if all clusters are new
 * or of the same kind, such an earlier kind (> 0), so that the caller can judge it, or -1
 * on ENOMEM (reported), or at the limit of overlap_limit.  Takes a lock. */
extern int overlap_add (struct overlap *, uint64_t offset, uint64_t bytes,
                        enum overlap_kind);
/* Removes every cluster that [offset, offset+bytes) touches, of any kind, no matter in
 * how many calls they were added.  (Only the middle of a long range may stay, if there is
 * no memory to keep the rest of it in two parts.)  Takes a lock. */
extern void overlap_remove (struct overlap *, uint64_t offset, uint64_t bytes);

/* Returns the kind of the first metadata cluster that [offset, offset+bytes) touches, or
 * OVERLAP_NONE.  The time is proportional to the number of clusters.  Takes the lock,
 * which readers share, only if the filter finds that a cluster may be in the set. */
extern enum overlap_kind overlap_find (const struct overlap *,
                                       uint64_t offset, uint64_t bytes);
/* Returns the number of bytes before that cluster (0 if OFFSET is in it), or BYTES. */
extern uint64_t overlap_clear (const struct overlap *, uint64_t offset, uint64_t bytes);

/* For messages, such as "L2 table" or "refcount block". */
extern const char *overlap_name (enum overlap_kind);

#endif /* QCOW2_OVERLAP_H */
