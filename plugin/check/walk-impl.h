/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What walk.c, walktables.c, walksnapshots.c, walkbitmaps.c and walkentries.c share.
 * No other file includes this.
 */

#ifndef QCOW2_WALK_IMPL_H
#define QCOW2_WALK_IMPL_H

#include "util/bytes.h"
#include "check/walk.h"

/* L2 tables that are gathered before they are walked: 16 MiB. */
#define WALK_TABLES (1u << 20)

/* Where the L1 table of a snapshot is. */
struct walk_place {
  struct walk_l1 l1;
  bool too_large;
  bool shared;                  /* another L1 table with some of its bytes is walked */
};

struct walk {
  struct storage *file;
  const struct header *h;
  bool data_file;               /* L2 entries name nothing in this file */
  bool sparse;                  /* tables may lie in holes: skip these */
  struct tally tally;

  /* Of the window at hand. */
  const struct walk_visitor *visitor;
  void *opaque;                 /* the visitor's */

  /* The refcount table.  Constant. */
  struct be64 *reftable;
  uint64_t reftable_entries;

  /* What the snapshot table says, by snapshot; constant after the first window. */
  struct walk_place *snapshots;
  uint32_t nr_snapshots;
  uint64_t snapshots_end;       /* of the table in the file */

  /* L2 tables that were gathered.  One thread; while they are walked each belongs to one
   * thread. */
  struct walk_l2 *tables;
  uint32_t nr_tables;
};

/* --- walkentries.c --- */

/* Calls FN for all entries of a table that are not 0.  -1: as from FN, or reported. */
extern int walk_entries (struct walk *, uint64_t offset, uint64_t entries,
                         int (*fn) (struct walk *, uint64_t index, uint64_t entry,
                                    const void *opaque),
                         const void *opaque);

/* --- walktables.c, walksnapshots.c, walkbitmaps.c: each in the window at hand --- */

/* Gathers the L2 tables that an L1 table names. */
extern int walk_gather (struct walk *, const struct walk_l1 *);
extern int walk_gathered (struct walk *);
extern int walk_snapshots (struct walk *);
extern int walk_bitmaps (struct walk *);

#endif /* QCOW2_WALK_IMPL_H */
