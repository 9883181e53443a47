/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do new host clusters come from, and when may freed ones be used again?
 * See alloc.c.
 *
 * The life of a cluster.  The count in memory is what callers see; the file has it, and
 * the pointer, after a checkpoint (core/request/checkpoint.c).  The rules are those of
 * doc/DESIGN.md; a rule beside an arrow has to be kept when it is taken.
 *
 *   state      count  then
 *
 *   free         0    alloc_reserve, alloc_reserve_table, alloc_bytes (alloc.c,
 *     |               allocbytes.c): never metadata (R5).  It is at the end of the
 *     v               file, where counts are raised ahead, or idle (allocidle.c)
 *   reserved     1    its owner writes it: data (cow.c, compressed.c, copyup.c), or a
 *     |   \           table (l2.c).  A failure gives it back: alloc_abort (R6)
 *     v    free
 *   written      1    l2_set (l2.c), which cannot fail (R6): an entry in memory points
 *     v               to it, with COPIED (R7)
 *   published    1    a checkpoint writes its count (refwrite.c, R1), syncs that and the
 *     |               data (R3), and then writes the entry (l2write.c)
 *     |   \
 *     |  shared 2..   a snapshot (change/snapedit.c) adds a reference and clears COPIED
 *     |   /           (R7), in one switch (change/shadow.c).  Then it is not written
 *     |  /            in place: a change makes a copy, and frees one reference
 *     v v
 *   freed        1    alloc_free_run (allocdefer.c): no entry in memory points to it.
 *     |               It is pending until a checkpoint has made that durable
 *     v               (R2, R4 a)
 *   deferred     0    alloc_frees_done has lowered the count and taken a stamp: it waits
 *     |               for all requests that began before (R4 b, util/epoch.c), hidden
 *     v               from the scan for free clusters
 *   punched      0    alloc_reap: no metadata (R5), and a hole, if wanted (R4 c)
 *     v
 *   free         0
 *
 * What a change of the whole disk writes ahead is set aside (allocdefer.c): its count is
 * 0, as of what is free.
 *
 * A crash leaks what is reserved, written or freed, and what is counted ahead
 * (alloc_top_up): counts in the file are too high, never too low.  The next start gives
 * that back (check/leaks.c).  A change of the whole disk (change/) has its own copy of
 * the counts: what it takes is published, and what it frees is free, with one switch.
 * The allocator of the next generation is told of the latter (alloc_hold_freed): they are
 * deferred there, or punched at once if no client writes.
 */

#ifndef QCOW2_ALLOC_H
#define QCOW2_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/budget.h"
#include "util/epoch.h"
#include "storage/storage.h"
#include "format/overlap.h"
#include "space/refcount.h"

struct alloc;

/* Host clusters that belong to the caller: their count is 1 (in memory at least). */
struct alloc_run {
  uint64_t host;        /* byte offset, cluster aligned */
  uint64_t clusters;    /* >= 1 */
  bool zeroed;          /* reads as zeros until it is written */
  bool settled;         /* zeroed durably (never used, and within the durable file size or
                           zeroed before the last sync), and the count is durable: a
                           pointer to the run may reach the file before its contents do */
};

struct alloc_stats {
  uint64_t allocated, freed, punched, extended; /* clusters */
  uint64_t high_water;          /* bytes: the end of the last cluster ever allocated */
  uint64_t low;                 /* times that less than the watermark was left */
  uint64_t free;                /* clusters in the file that are known to be free now */
  uint64_t deferred;            /* those that were freed, and cannot be used again yet */
};

/* A client wants to be told when the file is used beyond a place.  Atomic, and lasts
 * longer than an allocator. */
struct alloc_threshold {
  _Atomic uint64_t bytes;       /* 0: none is set */
  _Atomic uint64_t reached;     /* beyond BYTES: where the last cluster ended then; else
                                   it is not, or is what an earlier threshold left */
};

struct alloc_options {
  bool discard;                 /* punch holes into freed clusters */
  struct budget *budget;        /* counts the memory for what is known of free clusters,
                                   which may use an eighth of the image's share, and at
                                   least ALLOC_LEAST_IDLE bytes; NULL: no limit */
  bool leaks_last;              /* what a crash leaks is not given back by the next start:
                                   so little is taken ahead, and counts are written
                                   soon */
  uint64_t watermark;           /* bytes: reports, once for each size of the device, that
                                   less is left below its end; 0: never */
  struct alloc_threshold *threshold;    /* NULL: none */
  void (*news) (void);          /* NULL, or called after one of these, with locks held */
};
#define ALLOC_LEAST_IDLE (UINT64_C (256) << 10)

/* Nothing else may change the image file.  All pointers must outlive the allocator.
 * Returns NULL on error (reported). */
extern struct alloc *alloc_open (struct storage *, unsigned cluster_bits,
                                 struct refcounts *, struct overlap *,
                                 struct epoch *, const struct alloc_options *);
/* For tests: limits the number of runs of free clusters that are known at a time. */
extern void alloc_set_max_idle (struct alloc *, size_t runs);
/* The same, of freed runs that wait in a list. */
extern void alloc_set_max_waiting (struct alloc *, size_t runs);
/* A threshold was set: is the file used beyond it already? */
extern void alloc_watch (struct alloc *);
/* Only frees memory: call alloc_give_back before, to give clusters back. */
extern void alloc_close (struct alloc *);

/* Allocates one contiguous run of 1..N clusters.  Returns 0, or -1 (reported: ENOSPC,
 * EIO, or EUCLEAN if the refcounts are corrupt).  R5: the clusters never contain
 * metadata. */
extern int alloc_reserve (struct alloc *, uint64_t n, struct alloc_run *);
/* Allocates one cluster for an L2 table, and registers it with overlap.  These clusters
 * come from a small run of their own, so that tables lie together and do not fragment the
 * data.  Returns 0, or -1 as alloc_reserve does. */
/* The host has allocated space for tables of up to ALLOC_TABLE_SPACE bytes. */
#define ALLOC_TABLE_SPACE (UINT64_C (64) << 10)
extern int alloc_reserve_table (struct alloc *, struct alloc_run *);
/* Gives back a run, or part of one, to which no pointer was ever published.  Cannot fail,
 * and keeps errno. */
extern void alloc_abort (struct alloc *, const struct alloc_run *);
extern void alloc_abort_table (struct alloc *, const struct alloc_run *);

/* Up to N contiguous clusters that a change of the whole disk writes ahead.  Their counts
 * are 0, so a crash leaks none, but nobody else gets them, and the file is not cut before
 * them, until alloc_end_aside, or for good: then the change has counted them.  Returns 0,
 * or -1 as alloc_reserve does. */
extern int alloc_set_aside (struct alloc *, uint64_t n, struct alloc_run *);
/* They are free, with holes if wanted.  Takes the lock. */
extern void alloc_end_aside (struct alloc *);

/* Space for compressed clusters.  alloc_bytes allocates N pieces of BYTES bytes each (1
 * to the cluster size), contiguously if possible, in host clusters that they share.  It
 * sets HOST of each piece, and gives each host cluster that a piece touches one reference
 * for that piece.  If it fails it changes nothing and returns -1 as alloc_reserve does.
 * The caller writes the bytes.  alloc_abort_bytes gives back pieces to which no pointer
 * was ever published; it cannot fail, and keeps errno.  To free pieces that were
 * published, free the clusters that they touch. */
struct alloc_piece { uint64_t host, bytes; };
extern int alloc_bytes (struct alloc *, struct alloc_piece *, unsigned n);
extern void alloc_abort_bytes (struct alloc *, const struct alloc_piece *,
                               unsigned n);

/* Freeing clusters.  First, alloc_free_begin allocates list items for N runs (it may fail
 * with ENOMEM).  Then, after the pointers have been removed in memory, alloc_free_run
 * hands over each run.  Last, alloc_free_end frees the items that were not used.  Each
 * cluster of a run loses one reference once the change that removed the pointers is
 * durable. */
extern int alloc_free_begin (struct alloc *, unsigned n);
extern void alloc_free_run (struct alloc *, uint64_t host, uint64_t clusters);
extern void alloc_free_end (struct alloc *, unsigned unused);

/* The number of bytes that were freed and cannot be used again yet. */
extern uint64_t alloc_deferred (struct alloc *);
/* Returns true if a crash would leak so much that was freed, or if so many runs wait for
 * their removal to become durable, that a checkpoint is worthwhile.  After two that began
 * later, it is false, unless more was freed meanwhile. */
extern bool alloc_wants_release (struct alloc *);

/* Nothing was allocated yet.  A change of the whole disk, which is durable, has freed
 * these clusters (their counts are 0).  Requests that began before this call may still
 * use them: until those have ended, they wait like others. */
extern void alloc_hold_freed (struct alloc *, uint64_t first, uint64_t n);
/* Such a change needs no more of the file than BYTES: see alloc_trim_file. */
extern void alloc_need_only (struct alloc *, uint64_t bytes);

/* --- for the checkpoint --- */

/* Takes all runs that were handed over until now.  Every change that removed their
 * pointers is already published in memory, so call this before the checkpoint collects
 * changed L2 slices. */
struct alloc_frees;
extern struct alloc_frees *alloc_take_frees (struct alloc *);
/* The checkpoint has collected changed L2 slices.  They may lack pointers to runs that
 * were handed over meanwhile, and that the next checkpoint will take. */
extern void alloc_expose_frees (struct alloc *);
/* If OK, the removal of the pointers is durable; otherwise the runs wait for the next
 * checkpoint.  Returns -1 if the refcounts are corrupt (EUCLEAN) or cannot be read; those
 * runs are leaked.  L2 tables whose count reaches 0 are removed from overlap. */
extern int alloc_frees_done (struct alloc *, struct alloc_frees *, bool ok);

/* If little of the reserve is left, increments counts ahead of time, so that the next
 * allocations find clusters with durable counts.  Returns a mark.  After a sync that
 * followed refcount_write, pass the mark to alloc_settle: all clusters that were reserved
 * before the mark are then durable. */
extern uint64_t alloc_top_up (struct alloc *);
extern void alloc_settle (struct alloc *, uint64_t mark);

/* Punches holes into the clusters whose grace period is over, and makes them available
 * for allocation.  Never blocks requests.  A failed punch is not an error.  Returns -1
 * (EUCLEAN) if there is metadata in the freed clusters. */
extern int alloc_reap (struct alloc *);
/* The same, for a request: leaves a part for the next call if there is very much. */
extern int alloc_reap_some (struct alloc *);

/* To be called when no request changes anything and nothing is dirty.  Decrements the
 * counts that were incremented ahead of time, and reaps what can be reaped.  Afterwards,
 * alloc_deferred tells whether requests still hold back clusters.  The caller then
 * calls refcount_write and syncs, and calls alloc_trim_file to cut off what was added to
 * the file for the reserve. */
extern int alloc_give_back (struct alloc *);
/* The file stays at least as long as it was at alloc_open (or alloc_need_only has said),
 * and keeps all clusters that are in use or waiting. */
extern int alloc_trim_file (struct alloc *);
/* After that, another process may have written to clusters that are free, and past the
 * end of the file: forgets which of them contain zeros. */
extern void alloc_doubt_zeros (struct alloc *);

extern void alloc_get_stats (struct alloc *, struct alloc_stats *);

#endif /* QCOW2_ALLOC_H */
