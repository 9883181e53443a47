/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The L1 and L2 tables of the writable image.  See l2.c.
 */

#ifndef QCOW2_L2_H
#define QCOW2_L2_H

#include <stdbool.h>
#include <stdint.h>

#include "format/run.h"
#include "image/image.h"
#include "space/alloc.h"
#include "mapping/map.h"

struct l2;

/* Reads the L1 table and registers all L2 tables with the image's overlap.  SLICE_SIZE in
 * bytes (a power of two, 512 .. cluster size).  All pointers must outlive it.
 * NULL on error (reported). */
extern struct l2 *l2_open (struct image *, struct alloc *, struct map *,
                           uint64_t slice_size);
extern void l2_close (struct l2 *);  /* NULL is fine */

/* The run at guest OFFSET, at most LEN bytes (both within the disk).  Kinds
 * UNALLOCATED, ZERO, ZERO_ALLOC, NORMAL, COMPRESSED, and with extended L2 entries
 * RESERVED.  Returns 0, or -1 with errno; a corrupt table or entry is EIO and has been
 * dealt with. */
extern int l2_lookup (struct l2 *, uint64_t offset, uint64_t len,
                      struct run *);

/* Guest bytes that one edit may span at most when it starts at OFFSET. */
extern uint64_t l2_edit_limit (const struct l2 *, uint64_t offset);

/* An edit: the slices of a guest range, pinned, in tables that are ours to
 * change.  The caller holds an in-flight claim on the clusters. */
#define L2_EDIT_MAX 64
struct l2_edit {
  struct l2 *l2;
  uint64_t first_slice;
  unsigned n;
  struct map_slice *slices[L2_EDIT_MAX];
};

/* Acquires everything that a change of [offset, offset+len) needs (allocates L2
 * tables, copies shared ones).  -1: nothing is held (reported). */
extern int l2_edit_begin (struct l2 *, uint64_t offset, uint64_t len,
                          struct l2_edit *);
/* Makes the units of guest range [offset, offset+len) of KIND, with data at HOST if
 * NORMAL (see entry_encode).  OFFSET is a multiple of the unit (entry_unit_size), LEN
 * too but for the end of the disk.  BARRIER: what the entries name is not yet durable
 * and must be before they reach the file.  Cannot fail. */
extern void l2_set (struct l2_edit *, uint64_t offset, uint64_t len,
                    enum run_kind kind, uint64_t host, bool barrier);
extern void l2_edit_end (struct l2_edit *);

/* Are there too many bytes of slices that wait to be written, also of other images that
 * share the memory?  See map.h. */
extern bool l2_dirty_beyond (struct l2 *, uint64_t limit);

/* --- for the checkpoint, one caller at a time --- */

struct l2_batch {
  struct map_dirty *slices;
  int nr_slices;
  struct l1_change { uint32_t index; uint64_t value; bool barrier; } *l1;
  unsigned nr_l1;
  bool barrier;                 /* of anything in it */
  bool l1_barrier;              /* of the L1 entries: new tables, or their counts */
};

/* Copies all that has changed.  -1: ENOMEM, nothing has changed. */
extern int l2_take (struct l2 *, struct l2_batch *);
/* Writes the copies: slices and L1 entries.  Does not sync. */
extern int l2_write (struct l2 *, struct l2_batch *);
/* OK: they are durable.  Not OK: all are waiting to be written again. */
extern void l2_done (struct l2 *, struct l2_batch *, bool ok);

#endif /* QCOW2_L2_H */
