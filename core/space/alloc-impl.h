/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that alloc.c, allocidle.c, allocdefer.c, allocbytes.c and allocrest.c
 * share.  No other file includes this.
 */

#ifndef QCOW2_ALLOC_IMPL_H
#define QCOW2_ALLOC_IMPL_H

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/report.h"
#include "space/alloc.h"
#include "space/freeset.h"

/* A freed run on its way from pending to idle, or an item that is not in use yet. */
struct alloc_frees {
  struct alloc_frees *next;
  uint64_t first, n;            /* clusters */
  uint64_t stamp;               /* epoch stamp, while it is waiting */
};

#define ALLOC_ITEM_BYTES 48     /* including malloc's overhead */

struct list { struct alloc_frees *head, *tail; };

struct alloc {
  struct storage *file;
  struct refcounts *refcounts;
  struct overlap *overlap;
  struct epoch *epoch;
  unsigned bits;
  bool discard;
  bool regular;                 /* reads as zeros past its end */
  uint64_t watermark;           /* bytes; see alloc_options */
  struct alloc_threshold *threshold;    /* the same */
  bool leaks_last;              /* the same */
  void (*news) (void);

  pthread_mutex_t lock;         /* guards all fields below */

  uint64_t open_size;           /* bytes: the file never becomes shorter */
  struct budget *budget;              /* counts and limits memory; may be NULL */
  uint64_t charged;             /* bytes that are counted in it */
  struct freeset zeroed, stale; /* idle clusters: allocidle.c */
  size_t max_idle;              /* limit for the runs in both */
  uint64_t scan, scan_end;
  uint64_t again, again_end;    /* the next range to scan; empty if equal */
  uint64_t forgotten;           /* clusters */
  bool starved;                 /* no memory for what the last step found */
  struct freeset held;          /* waiting, or set aside: hidden from the scan */
  struct {                      /* waiting, but too many for a list: see allocdefer.c */
    uint64_t clusters;          /* that have joined; 0: no crowd, and held is complete */
    uint64_t first, end;        /* those that are left are in this range */
    uint64_t stamp;             /* epoch stamp of the youngest one */
  } crowd;

  uint64_t bump, bump_end;      /* the reserve */
  uint64_t fresh;               /* clusters of the reserve from here on read as zeros */
  uint64_t settled_end;
  uint64_t zeros, zeros_end;    /* clusters behind the reserve that read as zeros: what
                                   the storage has said */
  uint64_t zeros_span;          /* bytes: how much it is to be asked about next */
  uint64_t top_mark;            /* of the running checkpoint: not beyond clusters that
                                   have been in the reserve since it began */
  uint64_t batch;               /* clusters */
  bool bump_used;               /* since the file was opened, or clusters given back */

  struct alloc_run tables;      /* unused part of a run for tables; may be empty */
  bool tables_fresh;            /* they came from the reserve */

  struct {                      /* space for compressed clusters: allocbytes.c */
    uint64_t at, end;           /* host offsets; end is the end of a cluster */
    bool zeroed;                /* the unused clusters read as zeros */
  } pack;

  struct alloc_frees *spare;    /* unused items, from alloc_free_begin */
  struct list pending;          /* removal is not durable yet */
  struct list waiting;          /* for their grace period, in order of stamps */
  struct list aside;            /* what a change of the whole disk has */
  unsigned reaping;             /* threads that have taken some from waiting or crowd */
  uint64_t deferred;            /* clusters in these lists, crowd, checkpoints; those that
                                   are swept count twice until the crowd is empty */
  size_t freed_items;           /* in all of these */
  size_t pending_items;         /* of these, in pending */
  size_t max_items;             /* limit for the others */
  uint64_t pending_clusters;    /* of deferred, in pending */
  uint64_t taken_clusters;      /* of deferred, by the running checkpoint */
  uint64_t exposed_clusters;    /* of pending: the file may have no pointer to them */
  uint64_t unwritten_clusters;  /* lost a reference in memory, not yet in the file */

  uint64_t low_size;            /* bytes: the size for which a low end was reported */
  struct alloc_stats stats;     /* what it has done; alloc_get_stats adds how it is now */
};

/* Tells what becomes of clusters. */
static inline void
alloc_trace (const struct alloc *a, const char *what, uint64_t first, uint64_t n)
{
  report_trace (TRACE_ALLOC, "%s: alloc: %" PRIu64 " clusters at %" PRIu64 ": %s",
                storage_path (a->file), n, first << a->bits, what);
}

static inline void
list_append (struct list *l, struct alloc_frees *item)
{
  item->next = NULL;
  if (l->head)
    l->tail->next = item;
  else
    l->head = item;
  l->tail = item;
}

static inline void
free_items (struct alloc_frees *item)
{
  while (item) {
    struct alloc_frees *next = item->next;

    free (item);
    item = next;
  }
}

/* Like alloc_reserve, but the caller holds the lock, and the statistics do not count it.
 * Returns 1 if the clusters were idle, 2 if they come from the reserve, or -1. */
extern int alloc_take (struct alloc *, uint64_t n, struct alloc_run *);
/* Decrements the counts of clusters that were never used.  The caller holds the lock. */
extern void alloc_drop_run (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);

/* Gives back the reserve and the unused clusters for tables.  Returns -1 if there is no
 * memory; then nothing has changed. */
extern int alloc_give_back_reserve (struct alloc *);

/* --- allocidle.c; the caller holds the lock --- */

/* R5: fails (EUCLEAN, reported) if there is metadata in the clusters that are about to
 * become WHAT. */
extern int alloc_check_no_metadata (struct alloc *, uint64_t first, uint64_t n,
                                    const char *what);

/* Puts a run into an idle set.  If there are too many runs, or no memory for this one, a
 * run is forgotten until the scan finds it. */
extern void alloc_add_idle (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);
/* CLUSTERS clusters in [first, end) are free and in no set.  The current scan or the next
 * one will find them. */
extern void alloc_forget (struct alloc *, uint64_t first, uint64_t end,
                          uint64_t clusters);
/* Finds the first part of [from, to) that is idle, or held, though its count is 0.  If
 * there is none, *FIRST is TO, and *LEN 0. */
extern void alloc_next_known (struct alloc *, uint64_t from, uint64_t to,
                              uint64_t *first, uint64_t *len);
/* To be called after runs or items have been added or removed: updates the memory that is
 * counted in the budget. */
extern void alloc_charge (struct alloc *);
/* The approximate number of clusters that are idle or forgotten. */
extern uint64_t alloc_idle_clusters (const struct alloc *);

/* Take up to N clusters from an idle run of at least LEAST clusters: alloc_take_idle from
 * the lowest one, alloc_take_longest from the longest.  Return 1, 0 if there is no such
 * run, or -1 (reported). */
extern int alloc_take_idle (struct alloc *, uint64_t least, uint64_t n,
                            struct alloc_run *);
extern int alloc_take_longest (struct alloc *, uint64_t least, uint64_t n,
                               struct alloc_run *);

/* Does one step of the scan: clusters that are free in the next refcount block become
 * idle.  Returns 1 if the scan continues, 0 if it has ended or pauses, or -1 (reported).
 * It also pauses if everything that it found was forgotten again because there was no
 * memory (a->starved); otherwise it would find the same clusters forever. */
extern int alloc_scan_step (struct alloc *);

/* The clusters from END on are no longer in the file, nor in the sets. */
extern void alloc_idle_cut (struct alloc *, uint64_t end);
/* Frees all sets. */
extern void alloc_idle_close (struct alloc *);

/* --- allocdefer.c; the caller holds the lock --- */

/* Decrements the counts of clusters to which no pointer was published, but which earlier
 * users may have left known to readers.  Clusters that become free wait for their grace
 * period.  Returns -1 on error (reported); the clusters are leaked. */
extern int alloc_release (struct alloc *, uint64_t first, uint64_t n);

/* --- allocbytes.c; the caller holds the lock --- */

/* Is the cluster at pack.at in use? */
static inline bool
alloc_bytes_in_use (const struct alloc *a)
{
  return (a->pack.at & ((UINT64_C (1) << a->bits) - 1)) != 0;
}

static inline void
alloc_bytes_leave_cluster (struct alloc *a)
{
  a->pack.at = round_up (a->pack.at, UINT64_C (1) << a->bits);
}

/* The counts of these clusters are 0 now. */
static inline void
alloc_bytes_forget (struct alloc *a, uint64_t first, uint64_t n)
{
  if (alloc_bytes_in_use (a) && a->pack.at >> a->bits >= first &&
      a->pack.at >> a->bits < first + n)
    alloc_bytes_leave_cluster (a);
}

/* Gives back the clusters for packing that were never used. */
extern void alloc_bytes_give_back (struct alloc *);

#endif /* QCOW2_ALLOC_IMPL_H */
