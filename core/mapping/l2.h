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

/* Reads the L1 table and registers all L2 tables with the image's overlap.  SLICE_SIZE is
 * in bytes (a power of two, 512 .. cluster size).  All pointers must outlive the result.
 * Returns NULL on error (reported). */
extern struct l2 *l2_open (struct image *, struct alloc *, struct map *,
                           uint64_t slice_size);
extern void l2_close (struct l2 *);  /* may be NULL */

/* Finds the run at guest OFFSET, at most LEN bytes (both within the disk).  Kinds are
 * UNALLOCATED, ZERO, ZERO_ALLOC, NORMAL, COMPRESSED, and with extended L2 entries
 * RESERVED.  Returns 0, or -1 with errno; a corrupt table or entry is EIO, and has been
 * reported and recorded. */
extern int l2_lookup (struct l2 *, uint64_t offset, uint64_t len,
                      struct run *);

/* Will that have to read a table? */
extern bool l2_lookup_reads (struct l2 *, uint64_t offset);

/* The same as l2_lookup if no table has to be read and nothing is wrong.  Otherwise
 * returns false, and a corrupt entry is neither reported nor recorded. */
extern bool l2_lookup_here (struct l2 *, uint64_t offset, uint64_t len, struct run *);

/* The largest number of guest bytes for an edit that starts at OFFSET. */
extern uint64_t l2_edit_limit (const struct l2 *, uint64_t offset);

/* An edit: the slices of a guest range, pinned, in tables that no snapshot shares.  The
 * caller holds an in-flight claim on the clusters. */
#define L2_EDIT_MAX 64
struct l2_edit {
  struct l2 *l2;
  uint64_t first_slice;
  unsigned n;
  struct map_slice *slices[L2_EDIT_MAX];
};

/* Acquires everything that a change of [offset, offset+len) needs: allocates L2 tables,
 * and copies shared ones.  Returns -1 on error (reported); then nothing is held. */
extern int l2_edit_begin (struct l2 *, uint64_t offset, uint64_t len,
                          struct l2_edit *);
/* Sets the units of guest range [offset, offset+len) to KIND, with data at HOST if NORMAL
 * (see entry_encode).  OFFSET is a multiple of the unit (entry_unit_size), and so is LEN
 * except at the end of the disk.  BARRIER: the clusters that the entries name are not
 * durable yet, and must be before the entries reach the file.  Cannot fail. */
extern void l2_set (struct l2_edit *, uint64_t offset, uint64_t len,
                    enum run_kind kind, uint64_t host, bool barrier);
extern void l2_edit_end (struct l2_edit *);

/* Returns true if more than LIMIT bytes of slices wait to be written, including those of
 * other images that share the memory.  See map_dirty_beyond. */
extern bool l2_dirty_beyond (struct l2 *, uint64_t limit);

/* --- for a change of the whole disk, one thread at a time --- */

/* From now on, notes which parts of L2 tables are written.  -1: ENOMEM (reported). */
extern int l2_note_writes (struct l2 *);
/* Calls FN for each part of L2 table number TABLE, at AT bytes in it, that may have been
 * written since the last call for this table, or since the notes began.  What FN reads in
 * the file is newer than that, or the part is noted again.  Returns 0, or what FN has
 * returned if that is not 0. */
extern int l2_each_written (struct l2 *, uint64_t table,
                            int (*fn) (void *opaque, uint64_t at, uint64_t bytes),
                            void *opaque);

/* --- for the checkpoint, one thread at a time --- */

struct l2_batch {
  struct map_dirty *slices;
  int nr_slices;
  struct l1_change { uint32_t index; uint64_t value; bool barrier; } *l1;
  unsigned nr_l1;
  bool barrier;                 /* of any change in the batch */
  bool l1_barrier;              /* of the L1 entries: new tables, or their counts */
};

/* Copies all changes into the batch.  Returns -1 on ENOMEM; then nothing has changed. */
extern int l2_take (struct l2 *, struct l2_batch *);
/* Writes the copies: slices, then L1 entries.  Does not sync.  Returns 0 or -1
 * (reported). */
extern int l2_write (struct l2 *, struct l2_batch *);
/* OK: the copies are durable.  !OK: all changes wait to be written again. */
extern void l2_done (struct l2 *, struct l2_batch *, bool ok);

#endif /* QCOW2_L2_H */
