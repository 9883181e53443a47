/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an L2 entry mean, and how is it written?  See entry.c.  Pure.
 */

#ifndef QCOW2_ENTRY_H
#define QCOW2_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "format.h"
#include "header.h"
#include "overlap.h"
#include "run.h"

/* A unit is what one state applies to: a cluster (with extended L2 it would be
 * a subcluster).  log2 of its guest bytes, and how many one entry describes. */
static inline unsigned
entry_unit_bits (const struct header *h)
{
  return h->cluster_bits;
}

/* Reads the run that begins at unit UNIT of RAW, an array of L2 entries as in
 * the file, and goes on for at most MAX units.  Returns its length in units (>= 1)
 * and sets kind, copied, layer (0) and host of *RUN.  Entries that must not
 * be followed (unaligned, pointing at metadata in OVERLAP, a zero flag in
 * version 2) become RUN_CORRUPT.  OVERLAP may be NULL.
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

/* Entries to write, host byte order. */
#define ENTRY_UNALLOCATED UINT64_C (0)
#define ENTRY_ZERO        QCOW2_OFLAG_ZERO      /* version 3 */

static inline uint64_t
entry_normal (uint64_t host)
{
  return host | QCOW2_OFLAG_COPIED;
}

/* Version 3. */
static inline uint64_t
entry_zero_alloc (uint64_t host, bool copied)
{
  return host | QCOW2_OFLAG_ZERO | (copied ? QCOW2_OFLAG_COPIED : 0);
}

#endif /* QCOW2_ENTRY_H */
