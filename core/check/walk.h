/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Walks everything in an image that points to host clusters.  See walk.c.
 */

#ifndef QCOW2_WALK_H
#define QCOW2_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "image/snaptable.h"
#include "check/findings.h"
#include "check/pace.h"
#include "check/refwindow.h"

struct walk;

/* An L2 table.  While tables are walked, each belongs to one thread. */
struct walk_l2 {
  uint64_t offset : 56;
  uint64_t compressed : 1;      /* for the visitor; 0 at first */
  uint64_t l1_index : 22;       /* in the first L1 table that points to it */
  uint64_t times : 21;          /* the number of L1 entries that point to it ... */
  uint64_t active : 21;         /* ... and how many of these are in the active L1 table */
};

struct walk_l1 {
  uint64_t offset;
  uint64_t entries;
  bool active;                  /* false: of a snapshot */
};

struct walk_bitmap {
  uint32_t i;
  uint64_t at;                  /* offset of its directory entry */
  struct qcow2_bitmap raw;
};

/* The formats of messages about these.  The last argument describes the fault. */
#define WALK_SNAPSHOT "entry %" PRIu32 " of the snapshot table, at %" PRIu64 ": %s"
#define WALK_BITMAP "bitmap %" PRIu32 ", directory entry at %" PRIu64 ": %s"

/* Callbacks of a walk.  Those that return int return -1, with errno set, to end the
 * walk. */
struct walk_visitor {
  /* A reference that is invalid, or that points to a cluster with another use, and is
   * therefore not followed.  Otherwise returns 0.  Any thread. */
  int (*fault) (void *, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));
  /* A fault that does not prevent following the reference.  Returns 1 to follow it, 0 to
   * skip it.  Any thread. */
  int (*doubt) (void *, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));

  /* Each of these may be NULL.  They are called before the references in the structure
   * are followed: */
  int (*encryption) (void *);
  int (*snapshot) (void *, const struct snaptable_entry *);
  void (*bitmap) (void *, const struct walk_bitmap *);
  void (*bitmap_entry) (void *, const struct walk_bitmap *, uint64_t entry);
  void (*l1_entry) (void *, const struct walk_l1 *, uint64_t index, uint64_t entry);
  /* For a whole L2 table.  Calls walk_l2_entry for each entry that must be followed; if
   * it is NULL, all entries are followed.  Any thread. */
  int (*l2) (void *, struct walk_l2 *, const struct be64 *raw);
  /* After L2 tables were walked; N is the number that were gathered. */
  int (*l2_tables) (void *, const struct walk_l2 *, uint32_t n);
};

/* Reads the refcount table.  The file and the header must outlive the walk, and nothing
 * may change the metadata of the file during its lifetime.  NULL on error (reported). */
extern struct walk *walk_new (struct storage *, const struct header *);
extern void walk_free (struct walk *);          /* NULL is allowed */

/* Starts the window at cluster FIRST, a multiple of REFWINDOW_CLUSTERS, with the
 * callbacks of VISITOR.  -1: reported. */
extern int walk_begin (struct walk *, uint64_t first, const struct walk_visitor *,
                       void *opaque);

/* Tells PACE how far it is with each of its walks: a part of walk_bytes. */
extern void walk_follow (struct walk *, struct pace *);
/* About how many bytes of tables one walk reads. */
extern uint64_t walk_bytes (const struct walk *);

/* The snapshot table is about to be replaced: it does not count as a reference. */
extern void walk_replace_snapshots (struct walk *);

/* Walks all metadata and counts the references to the clusters of the window.  REFCOUNTS
 * is the number of references that the refcount table and each block have: 1, or 0 if
 * they are about to be replaced.  -1: the visitor returned -1, or reported. */
extern int walk_references (struct walk *, uint32_t refcounts);

/* Counts the clusters that ENTRY of an L2 table points to.  Only for visitors.  Any
 * thread.  -1: the visitor returned -1. */
extern int walk_l2_entry (struct walk *, const struct walk_l2 *, uint64_t entry);

/* The current window.  The caller may read it and mark clusters. */
extern struct refwindow *walk_window (struct walk *);

/* The refcount table, which belongs to the walk, and its number of entries. */
extern const struct be64 *walk_reftable (const struct walk *, uint64_t *entries);
/* The offset of refcount block INDEX; 0 if there is no valid one. */
extern uint64_t walk_refblock (const struct walk *, uint64_t index);

#endif /* QCOW2_WALK_H */
