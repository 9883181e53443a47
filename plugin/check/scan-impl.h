/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What scan.c, tally.c, scanwork.c, scantables.c, scanextra.c, scanrefs.c and scandata.c
 * share.  No other file includes this.
 */

#ifndef QCOW2_SCAN_IMPL_H
#define QCOW2_SCAN_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/bytes.h"
#include "format/compress.h"
#include "check/scan.h"

/* Clusters that are counted at a time. */
#define SCAN_WINDOW (UINT64_C (1) << 24)

/* Bytes of files that a thread reads at a time; at least a cluster. */
#define SCAN_BUFFER (1u << 20)

/* L2 tables that are gathered before they are walked. */
#define SCAN_TABLES (1u << 20)

/* What a cluster is used for. */
enum scan_role { SCAN_NOTHING, SCAN_TABLE, SCAN_L2, SCAN_DATA, SCAN_REFCOUNTS };

/* An L2 table that is to be walked. */
struct scan_table {
  uint64_t offset;
  uint32_t l1_index;            /* in the first L1 table that names it */
  uint32_t times;               /* L1 entries that name it ... */
  uint32_t active;              /* ... of them, in the active L1 table */
  bool compressed;              /* it has compressed clusters */
};

struct scan_piece { uint64_t offset, bytes; };

struct scan {
  struct hostfile *file;
  const struct header *h;
  struct findings *findings;
  bool full;
  bool data_file;               /* L2 entries name nothing in this file */
  bool sparse;                  /* tables may lie in holes: skip these */
  uint64_t clusters;            /* in the file */

  /* The window; counters are of its clusters.  See tally.c. */
  uint64_t first, n;
  _Atomic uint32_t *counters;
  _Atomic uint64_t next;        /* the next window in which there is something */

  /* The refcount table.  Constant after it was read. */
  struct be64 *reftable;
  uint64_t reftable_entries;
  unsigned block_bits;          /* log2 of the clusters that a block counts */

  /* L2 tables that were gathered.  One thread; constant while they are walked,
   * but for `compressed', which belongs to the thread that walks the table. */
  struct scan_table *tables;
  uint32_t nr_tables;

  const struct scan_piece *pieces;      /* of the file, to be read; constant then */
  uint64_t bitmap_entries;      /* of tables so far; one thread */
  bool *skip;                   /* by snapshot: its L1 table is another one's, too;
                                   constant after the first window */
  struct compress_pool *pool;   /* if full */
  _Atomic unsigned unreadable;  /* places that could not be read */

  _Atomic uint64_t allocated, compressed, fragmented, end;      /* the statistics */
  uint64_t bitmaps_in_use;      /* one thread */
};

/* Entries as such are looked at once, in the first window. */
static inline bool
scan_first (const struct scan *s)
{
  return s->first == 0;
}

/* --- tally.c --- */

/* TIMES references to each cluster of a range, which is a WHAT.  False, with a finding:
 * it can't be there, or (as far as is known) something else is. */
extern bool scan_refer (struct scan *, uint64_t offset, uint64_t bytes,
                        enum scan_role, uint32_t times, const char *what);
/* Whether the stored refcount of a cluster is 1.  -1: it is not in the window. */
extern int scan_stored_one (const struct scan *, uint64_t cluster);
extern void scan_set_stored_one (struct scan *, uint64_t cluster);
/* References to a cluster of the window; *SHARED: it is two things at once. */
extern uint32_t scan_count (const struct scan *, uint64_t cluster, bool *shared);
/* Counts as large as this are not exact. */
extern const uint32_t scan_max_count;

/* --- scanwork.c --- */

/* Calls WORK for all of [0, items), BATCH at a time, in several threads, with a buffer
 * of SIZE bytes for each thread.  -1 if it failed for some. */
extern int scan_parallel (struct scan *, uint64_t items, uint64_t batch,
                          size_t size,
                          int (*work) (struct scan *, void *buffer,
                                       uint64_t from, uint64_t to));
/* Calls FN for all entries of a table. */
extern int scan_entries (struct scan *, uint64_t offset, uint64_t entries,
                         int (*fn) (struct scan *, uint64_t index,
                                    uint64_t entry, void *opaque),
                         void *opaque);

/* --- scantables.c, scanextra.c: each in the window at hand --- */

extern int scan_active (struct scan *);
extern int scan_snapshots (struct scan *);
extern int scan_l2_tables (struct scan *);      /* those gathered by the above */
extern int scan_bitmaps (struct scan *);
extern int scan_encryption (struct scan *);

/* --- scanrefs.c --- */

extern int scan_read_reftable (struct scan *);
extern int scan_load_refcounts (struct scan *);
extern int scan_refer_refcounts (struct scan *);
extern int scan_compare_refcounts (struct scan *);

/* --- scandata.c --- */

extern int scan_inflate_all (struct scan *);    /* of the tables gathered */
extern int scan_read_all (struct scan *);

#endif /* QCOW2_SCAN_IMPL_H */
