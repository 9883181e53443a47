/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an L2 entry mean, and how is it written?  See entry.c.  Pure.
 */

#ifndef QCOW2_ENTRY_H
#define QCOW2_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "format/format.h"
#include "format/header.h"
#include "format/overlap.h"
#include "format/run.h"

/* Does an entry describe the 32 subclusters of its cluster one by one? */
static inline bool
entry_is_extended (const struct header *h)
{
  return h->l2_entry_size == sizeof (struct qcow2_extended_entry);
}

/* The 64-bit words of an entry in an L2 table.  The first is a standard entry. */
static inline unsigned
entry_words (const struct header *h)
{
  return h->l2_entry_size / sizeof (struct be64);
}

/* A unit is what one state applies to: a cluster, or with extended L2 entries a
 * subcluster.  log2 of its guest bytes. */
static inline unsigned
entry_unit_bits (const struct header *h)
{
  return h->cluster_bits - (entry_is_extended (h) ? QCOW2_SUBCLUSTER_BITS : 0);
}

static inline uint64_t
entry_unit_size (const struct header *h)
{
  return UINT64_C (1) << entry_unit_bits (h);
}

/* Are the guest data in an external data file?  Then host offsets are places there, and
 * each must be the guest's own: that is for those to check who know it. */
static inline bool
entry_is_external (const struct header *h)
{
  return (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
}

/* Reads the run that begins at unit UNIT of RAW, an array of L2 entries as in
 * the file, and goes on for at most MAX units.  Returns its length in units (>= 1)
 * and sets kind, copied, layer (0) and host of *RUN.  Entries that must not
 * be followed (unaligned, pointing at metadata in OVERLAP, a zero flag in
 * version 2, subclusters with a state that can't be) become RUN_CORRUPT.
 * OVERLAP may be NULL, and does not count with an external data file.
 */
extern unsigned entry_decode (const struct header *, const struct overlap *,
                              const void *raw, unsigned unit, unsigned max,
                              struct run *run);

/* Why is this entry (the host field of a RUN_CORRUPT run) no good?  A static
 * text for messages. */
extern const char *entry_fault (const struct header *, const struct overlap *,
                                uint64_t entry);

/* Is this L1 entry fit to be followed?  NULL, or a static text that says
 * why not.  Zero entries are fine.  FILE_SIZE in bytes. */
extern const char *entry_l1_fault (const struct header *, uint64_t file_size,
                                   uint64_t entry);

/* Changes N units of RAW from UNIT on; each becomes of KIND:
 *
 *   NORMAL       data, in a host cluster that is ours alone (COPIED).  HOST is the
 *                place of the first unit, the others follow.  Units of the
 *                same clusters that are not named keep their state, but
 *                are in the new host clusters as well; so all of a compressed
 *                cluster must be named.
 *   ZERO_ALLOC   zeros (version 3).  What host cluster there is is kept.  Not for
 *                compressed clusters.
 *   ZERO, UNALLOCATED, COMPRESSED
 *                whole clusters, even if only one of their units is named: zeros
 *                (version 3), nothing, or the compressed data of descriptor
 *                HOST.  They have no host cluster.
 */
extern void entry_encode (const struct header *, void *raw, unsigned unit,
                          unsigned n, enum run_kind kind, uint64_t host);

#endif /* QCOW2_ENTRY_H */
