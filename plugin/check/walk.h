/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What in an image names which host clusters?  See walk.c.
 */

#ifndef QCOW2_WALK_H
#define QCOW2_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "check/findings.h"
#include "check/tally.h"

struct walk;

/* An L2 table.  While tables are walked each belongs to one thread. */
struct walk_l2 {
  uint64_t offset : 56;
  uint64_t compressed : 1;      /* for the visitor's use: 0 at first */
  uint64_t l1_index : 22;       /* in the first L1 table that names it */
  uint64_t times : 21;          /* L1 entries that name it ... */
  uint64_t active : 21;         /* ... of them, in the active L1 table */
};

struct walk_l1 {
  uint64_t offset;
  uint64_t entries;
  bool active;                  /* else a snapshot's */
};

struct walk_snapshot {
  uint32_t i;
  uint64_t at;                  /* of its entry in the snapshot table */
  bool whole;                   /* the file does not end within the entry */
  struct qcow2_snapshot raw;
};

struct walk_bitmap {
  uint32_t i;
  uint64_t at;                  /* of its directory entry */
  struct qcow2_bitmap raw;
};

/* How messages about these begin: the arguments, and what is wrong. */
#define WALK_SNAPSHOT "entry %" PRIu32 " of the snapshot table, at %" PRIu64 ": %s"
#define WALK_BITMAP "bitmap %" PRIu32 ", directory entry at %" PRIu64 ": %s"

/* Who wants to know what a walk meets.  Functions that return int return -1, with errno
 * set, to end the walk. */
struct walk_visitor {
  /* What leads nowhere, or to where something else is, and so is not followed.  Else 0.
   * Any thread. */
  int (*fault) (void *, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));
  /* What no sound image has, but could be followed: 1: do; 0: don't.  Any thread. */
  int (*doubt) (void *, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));

  /* Each may be NULL.  Structures, before what they name is looked at: */
  int (*encryption) (void *);
  int (*snapshot) (void *, const struct walk_snapshot *);
  void (*bitmap) (void *, const struct walk_bitmap *);
  void (*bitmap_entry) (void *, const struct walk_bitmap *, uint64_t entry);
  void (*l1_entry) (void *, const struct walk_l1 *, uint64_t index, uint64_t entry);
  /* A whole L2 table: has walk_l2_entry called for those of its entries that are to be
   * followed.  Without it all are.  Any thread. */
  int (*l2) (void *, struct walk_l2 *, const struct be64 *raw);
  /* L2 tables that have been walked: as many as were gathered. */
  int (*l2_tables) (void *, const struct walk_l2 *, uint32_t n);
};

/* Reads the refcount table.  FILE and header must outlive it, and nobody may change the
 * file's metadata meanwhile.  NULL: reported. */
extern struct walk *walk_new (struct storage *, const struct header *);
extern void walk_free (struct walk *);          /* NULL is fine */

/* Begins with the window of clusters that begins with FIRST, a multiple of
 * TALLY_WINDOW, on behalf of VISITOR.  -1: reported. */
extern int walk_begin (struct walk *, uint64_t first, const struct walk_visitor *,
                       void *opaque);

/* Walks all metadata and counts the references to the clusters of the window.  REFCOUNTS:
 * how many references the refcount table and its blocks hold, 1; or 0 if they are about
 * to be replaced.  -1: as from the visitor, or reported. */
extern int walk_references (struct walk *, uint32_t refcounts);

/* What ENTRY of an L2 table names, from within a walk.  Any thread.  -1: as from the
 * visitor. */
extern int walk_l2_entry (struct walk *, const struct walk_l2 *, uint64_t entry);

/* Of the window at hand; to be read, and marked. */
extern struct tally *walk_tally (struct walk *);

/* The refcount table, which belongs to the walk, and how many entries it has. */
extern const struct be64 *walk_reftable (const struct walk *, uint64_t *entries);
/* Where refcount block INDEX is; 0 if there is none that can be read. */
extern uint64_t walk_refblock (const struct walk *, uint64_t index);

#endif /* QCOW2_WALK_H */
