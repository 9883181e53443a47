/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters hold metadata, and of which kind?  See overlap.c.
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

/* The set knows the header cluster from the start.  NULL on ENOMEM. */
extern struct overlap *overlap_new (unsigned cluster_bits);
extern void overlap_free (struct overlap *);

/* Adds every cluster that [offset, offset+bytes) touches.  Ranges of any length
 * cost the same (they are kept as ranges); single clusters go to a hash set,
 * memory about 16..32 bytes each.  Offsets < 2^56.
 * A cluster that is known already as another kind keeps its first kind; the
 * function then returns that kind, so that the caller can judge.  0 if all is new or
 * the same kind, > 0 the earlier kind, -1 on ENOMEM (reported).
 */
extern int overlap_add (struct overlap *, uint64_t offset, uint64_t bytes,
                        enum overlap_kind);
/* Forgets every cluster that [offset, offset+bytes) touches, in as many calls, and as
 * whatever kind, they were added.  (Only a part out of the middle of a long range may
 * stay known, if there is no memory to keep what is left of it in two.)
 */
extern void overlap_remove (struct overlap *, uint64_t offset, uint64_t bytes);

/* The kind of the first metadata cluster that [offset, offset+bytes) touches, or
 * OVERLAP_NONE.  Constant time for one cluster; proportional to the clusters otherwise.
 */
extern enum overlap_kind overlap_find (const struct overlap *,
                                       uint64_t offset, uint64_t bytes);

/* For messages: "L2 table", "refcount block", ... */
extern const char *overlap_name (enum overlap_kind);

/* Thread safety: add and remove take a lock inside; find takes it too (readers
 * share it).  */

#endif /* QCOW2_OVERLAP_H */
