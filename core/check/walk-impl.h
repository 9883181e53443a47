/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that walk.c, walktables.c, walksnapshots.c, walkbitmaps.c and
 * walkentries.c share.  No other file includes this.
 */

#ifndef QCOW2_WALK_IMPL_H
#define QCOW2_WALK_IMPL_H

#include "util/bytes.h"
#include "check/walk.h"

/* L2 tables that are gathered before they are walked: 16 MiB. */
#define WALK_TABLES (1u << 20)

/* The L1 table of a snapshot. */
struct walk_place {
  struct walk_l1 l1;
  bool too_large;
  bool shared;                  /* it overlaps another L1 table that is walked */
};

struct walk {
  struct storage *file;
  const struct header *h;
  bool data_file;               /* L2 entries point into an external data file */
  bool sparse;                  /* the file has holes; tables in holes are skipped */
  struct refwindow window;
  struct pace *pace;            /* or NULL */

  /* For the current window. */
  const struct walk_visitor *visitor;
  void *opaque;                 /* argument for the visitor */

  /* The refcount table; constant. */
  struct be64 *reftable;
  uint64_t reftable_entries;

  /* One for each snapshot in the snapshot table; constant after the first window. */
  struct walk_place *snapshots;
  uint32_t nr_snapshots;
  uint64_t snapshots_end;       /* end of the snapshot table in the file */
  uint32_t snapshots_times;     /* references to it: 1, or 0 if it is replaced */

  /* L2 tables that were gathered.  One thread uses them; while they are walked, each
   * belongs to one thread. */
  struct walk_l2 *tables;
  uint32_t nr_tables;
};

/* --- walkentries.c --- */

/* Calls FN for all nonzero entries of a table.  -1: FN returned -1, or reported. */
extern int walk_entries (struct walk *, uint64_t offset, uint64_t entries,
                         int (*fn) (struct walk *, uint64_t index, uint64_t entry,
                                    const void *opaque),
                         const void *opaque);

/* --- walktables.c, walksnapshots.c, walkbitmaps.c: all for the current window --- */

/* Gathers the L2 tables of an L1 table. */
extern int walk_gather (struct walk *, const struct walk_l1 *);
extern int walk_gathered (struct walk *);
extern int walk_snapshots (struct walk *);
extern int walk_bitmaps (struct walk *);

#endif /* QCOW2_WALK_IMPL_H */
