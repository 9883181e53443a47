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

/* The number of 64-bit words of an L2 entry.  The first word is a standard entry. */
static inline unsigned
entry_words (const struct header *h)
{
  return h->l2_entry_size / sizeof (struct be64);
}

/* A unit is what a state applies to: a cluster, or with extended L2 entries a subcluster.
 * Returns log2 of its guest bytes. */
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

/* Is the guest data in an external data file?  Then host offsets are offsets in that
 * file, and each must equal the guest offset: callers that know the guest offset check
 * that. */
static inline bool
entry_is_external (const struct header *h)
{
  return (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
}

/* Reads the run that begins at unit UNIT of RAW, an array of L2 entries as in the file,
 * and extends it to at most MAX units.  Returns its length in units (>= 1) and sets kind,
 * copied, layer (0) and host of *RUN.  Entries that must not be followed (unaligned,
 * pointing to metadata in OVERLAP, a zero flag in version 2, subclusters in an invalid
 * state) become RUN_CORRUPT.  OVERLAP may be NULL, and is not used with an external data
 * file. */
extern unsigned entry_decode (const struct header *, const struct overlap *,
                              const void *raw, unsigned unit, unsigned max,
                              struct run *run);

/* Why is this entry (the host field of a RUN_CORRUPT run) invalid?  Returns a static text
 * for messages. */
extern const char *entry_fault (const struct header *, const struct overlap *,
                                uint64_t entry);

/* Can this L1 entry be followed?  Returns NULL, or a static text that says why not.
 * Entries that are zero are valid.  FILE_SIZE is in bytes. */
extern const char *entry_l1_fault (const struct header *, uint64_t file_size,
                                   uint64_t entry);

/* Changes N units of RAW from UNIT on to KIND:
 *
 *   NORMAL       data, in a host cluster without other references (COPIED).  HOST is the
 *                host offset of the first unit; the others follow.  Other units of the
 *                same clusters keep their state, but are then in the new host clusters,
 *                too.  So the range must include all units of a compressed cluster.
 *   ZERO_ALLOC   zeros (version 3).  Keeps the host cluster, if there is one.  Not for
 *                compressed clusters.
 *   ZERO, UNALLOCATED, COMPRESSED
 *                whole clusters, even if the range has only one of their units: zeros
 *                (version 3), nothing, or the compressed data of descriptor HOST.  They
 *                have no host cluster.
 */
extern void entry_encode (const struct header *, void *raw, unsigned unit,
                          unsigned n, enum run_kind kind, uint64_t host);

#endif /* QCOW2_ENTRY_H */
