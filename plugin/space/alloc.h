/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do new host clusters come from, and when may freed ones be used again?
 * See alloc.c.
 */

#ifndef QCOW2_ALLOC_H
#define QCOW2_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

#include "util/budget.h"
#include "util/grace.h"
#include "storage/storage.h"
#include "format/overlap.h"
#include "space/refcount.h"

struct alloc;

/* Host clusters that are ours to fill: their count is 1 (in memory at least). */
struct alloc_run {
  uint64_t host;        /* byte offset, cluster aligned */
  uint64_t clusters;    /* >= 1 */
  bool zeroed;          /* reads as zeros until written */
  bool settled;         /* zeroed durably (never used, within the durable file
                           size), and the count is durable: a pointer to it may reach the
                           file before its contents do */
};

/* In clusters. */
struct alloc_stats { uint64_t allocated, freed, punched, extended; };

struct alloc_options {
  bool discard;                 /* punch holes into freed clusters */
  struct budget *budget;        /* what it knows of free clusters is counted there, and
                                   an eighth of the image's share of that is the limit,
                                   ALLOC_LEAST_IDLE bytes at least; NULL: no limit */
};
#define ALLOC_LEAST_IDLE (UINT64_C (256) << 10)

/* The image file must not be touched by anyone else.  All pointers must outlive it.  NULL
 * on error (reported). */
extern struct alloc *alloc_open (struct storage *, unsigned cluster_bits,
                                 struct refcounts *, struct overlap *,
                                 struct grace *, const struct alloc_options *);
/* Tests: no more than that many runs of free clusters are known at a time. */
extern void alloc_set_max_idle (struct alloc *, size_t runs);
/* Frees memory only; see alloc_give_back. */
extern void alloc_close (struct alloc *);

/* One contiguous run of 1..N clusters.  Returns 0 or -1 (reported; ENOSPC, EIO, or
 * EUCLEAN: the refcounts are corrupt). R5: never a cluster that holds metadata. */
extern int alloc_reserve (struct alloc *, uint64_t n, struct alloc_run *);
/* One cluster for an L2 table.  They come from a small run of their own,
 * so that tables lie together and do not split the data.  It is registered with
 * overlap. */
/* Tables of up to ALLOC_TABLE_SPACE bytes come with space on the host. */
#define ALLOC_TABLE_SPACE (UINT64_C (64) << 10)
extern int alloc_reserve_table (struct alloc *, struct alloc_run *);
/* Gives back a run, or part of one, to which no pointer was ever published.
 * Cannot fail, keeps errno. */
extern void alloc_abort (struct alloc *, const struct alloc_run *);
extern void alloc_abort_table (struct alloc *, const struct alloc_run *);

/* Places for compressed clusters:  BYTES each (1 to the cluster size), one behind the
 * other where that can be, in host clusters that they share.  alloc_bytes sets HOST of
 * all N and gives every host cluster that a piece touches one reference for it; or does
 * nothing and returns -1 as alloc_reserve.  The bytes are the caller's to write.
 * alloc_abort_bytes gives back pieces to which no pointer was ever published: cannot
 * fail, keeps errno.  Pieces that were published are freed as the clusters that they
 * touch. */
struct alloc_piece { uint64_t host, bytes; };
extern int alloc_bytes (struct alloc *, struct alloc_piece *, unsigned n);
extern void alloc_abort_bytes (struct alloc *, const struct alloc_piece *,
                               unsigned n);

/* Freeing: first make room for N runs (may fail with ENOMEM), then, after
 * the pointers have gone from memory, hand over the runs.  Room not used is given
 * back by alloc_free_end.  Each run loses one reference per cluster once the
 * change that removed the pointers is durable. */
extern int alloc_free_begin (struct alloc *, unsigned n);
extern void alloc_free_run (struct alloc *, uint64_t host, uint64_t clusters);
extern void alloc_free_end (struct alloc *, unsigned unused);

/* Bytes handed over and not yet released. */
extern uint64_t alloc_quarantined (struct alloc *);
/* Is so much of that, in bytes or in runs, not yet durable that there should be a
 * checkpoint? */
extern bool alloc_wants_release (struct alloc *);

/* --- for the checkpoint --- */

/* Takes all runs handed over so far: everything that removed them is published
 * in memory already, so call this before the L2 snapshot.  */
struct alloc_frees;
extern struct alloc_frees *alloc_take_frees (struct alloc *);
/* Their removal is durable (OK), or they wait for the next checkpoint.  -1 if the
 * refcounts are corrupt (EUCLEAN) or can't be read; those runs are leaked.  L2 tables
 * whose count reaches 0 are forgotten by overlap. */
extern int alloc_frees_done (struct alloc *, struct alloc_frees *, bool ok);

/* Raises counts ahead so that the next allocations find durable ones, if what is left
 * is little.  Returns a mark; after a sync that followed refcount_write, pass
 * it to alloc_settle: all that was reserved before the mark is durable. */
extern uint64_t alloc_top_up (struct alloc *);
extern void alloc_settle (struct alloc *, uint64_t mark);

/* Moves on what waits for the grace period: punches, then makes it free for
 * use.  Never blocks for requests.  A failed punch is no error; -1 (EUCLEAN) if there
 * is metadata in what was freed. */
extern int alloc_reap (struct alloc *);

/* At a quiet moment (no request that changes anything, nothing dirty): drops the counts
 * raised ahead and reaps what can be reaped: alloc_quarantined tells whether requests
 * still hold something back.  The caller then runs refcount_write and sync,
 * and calls alloc_trim_file to cut off what the file grew for the reserve. */
extern int alloc_give_back (struct alloc *);
/* Never shorter than it was at alloc_open, nor than what is in use or waiting. */
extern int alloc_trim_file (struct alloc *);

extern void alloc_get_stats (struct alloc *, struct alloc_stats *);

#endif /* QCOW2_ALLOC_H */
