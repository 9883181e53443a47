/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What alloc.c, allocidle.c, quarantine.c, allocbytes.c and allocrest.c share.  No other
 * file includes this.
 */

#ifndef QCOW2_ALLOC_IMPL_H
#define QCOW2_ALLOC_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "space/alloc.h"
#include "space/freeset.h"

/* A freed run on its way from pending to idle; unused room is one, too. */
struct alloc_frees {
  struct alloc_frees *next;
  uint64_t first, n;            /* clusters */
  uint64_t stamp;               /* grace stamp, when it is waiting */
};

#define ALLOC_ITEM_BYTES 48     /* with what malloc adds */

struct list { struct alloc_frees *head, *tail; };

struct alloc {
  struct storage *file;
  struct refcounts *refcounts;
  struct overlap *overlap;
  struct grace *grace;
  unsigned bits;
  bool discard;
  bool regular;                 /* past its end a file reads as zeros */
  uint64_t open_size;           /* bytes: never cut off more than this */

  pthread_mutex_t lock;         /* guards all that follows */

  struct budget *budget;              /* whose memory is counted and shared; or NULL */
  uint64_t charged;             /* bytes counted in it */
  struct freeset zeroed, stale; /* idle: allocidle.c */
  size_t max_idle;              /* runs in both */
  uint64_t scan, scan_end;
  uint64_t again, again_end;    /* to be scanned after that; equal: nothing */
  uint64_t forgotten;           /* clusters */
  bool starved;                 /* there was no memory for what the last step found */
  struct freeset held;          /* waiting: hidden from the scan */
  struct {                      /* waiting, too many to be listed: see quarantine.c */
    uint64_t clusters;          /* 0: there are none, and held is complete */
    uint64_t first, end;        /* they lie in here */
    uint64_t stamp;             /* grace stamp of the youngest */
  } crowd;

  uint64_t bump, bump_end;      /* the reserve */
  uint64_t settled_end;
  uint64_t top_mark;            /* of the checkpoint that runs: never beyond what
                                   was the reserve ever since it began */
  uint64_t batch;               /* clusters */
  bool bump_used;               /* since the file was opened or given back */

  struct alloc_run tables;      /* what is left for tables; may be empty */
  bool tables_fresh;            /* they came from the reserve */

  struct {                      /* bytes for compressed clusters: allocbytes.c */
    uint64_t at, end;           /* host offsets; end is at the end of a cluster */
    bool zeroed;                /* what is fresh of it reads as zeros */
  } pack;

  struct alloc_frees *rooms;    /* made by alloc_free_begin */
  struct list pending;          /* removal not durable */
  struct list waiting;          /* for its grace period, in order of stamps */
  unsigned reaping;             /* threads that have taken some out of waiting */
  uint64_t quarantined;         /* clusters in all of these, the crowd, checkpoints */
  size_t freed_items;           /* in all of these */
  size_t pending_items;         /* of them: in pending */
  uint64_t pending_clusters;    /* of the quarantined: in pending */

  struct alloc_stats stats;
};

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

/* As alloc_reserve, with the lock held and not counted in the statistics.  Returns 1
 * (they were idle), 2 (they come from the reserve) or -1. */
extern int alloc_take (struct alloc *, uint64_t n, struct alloc_run *);
/* Clusters that nobody ever used lose their count; with the lock held. */
extern void alloc_drop_run (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);

/* Gives back the reserve and the room for tables.  -1: there is no memory, and nothing
 * has changed. */
extern int alloc_give_back_reserve (struct alloc *);

/* --- allocidle.c; with the lock held --- */

/* R5: fails (EUCLEAN, reported) if there is metadata in the clusters that are
 * to become WHAT. */
extern int alloc_check_no_metadata (struct alloc *, uint64_t first, uint64_t n,
                                    const char *what);

/* Puts a run into an idle set.  If there are too many runs, or no memory for it, a
 * run is forgotten until the scan finds it. */
extern void alloc_add_idle (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);
/* CLUSTERS in [first, end) are free and in no set: the scan that is under way, or the
 * next, will find them. */
extern void alloc_forget (struct alloc *, uint64_t first, uint64_t end,
                          uint64_t clusters);
/* After runs or items have come or gone: counts their memory anew. */
extern void alloc_charge (struct alloc *);
/* How many clusters are idle or forgotten, about. */
extern uint64_t alloc_idle_clusters (const struct alloc *);

/* Takes up to N clusters: from the lowest idle run of at least LEAST clusters, or from
 * the longest one if that has LEAST.  1 if there was one, 0, or -1. */
extern int alloc_take_idle (struct alloc *, uint64_t least, uint64_t n,
                            struct alloc_run *);
extern int alloc_take_longest (struct alloc *, uint64_t least, uint64_t n,
                               struct alloc_run *);

/* One step of the scan: what is free in the next refcount block becomes idle.
 * 1 if it went on, 0 if it is over or pauses, or -1.  It pauses, too, when all that it
 * found was forgotten again for want of memory (a->starved): it would find
 * that for ever. */
extern int alloc_scan_step (struct alloc *);

/* The clusters from END on are no longer in the file, nor in the sets. */
extern void alloc_idle_cut (struct alloc *, uint64_t end);
/* Frees all sets. */
extern void alloc_idle_close (struct alloc *);

/* --- quarantine.c; with the lock held --- */

/* Lowers the counts of clusters to which no pointer was published, but that readers may
 * know from others who used them: what becomes free waits for its grace period.  -1:
 * reported; they are leaked. */
extern int alloc_release (struct alloc *, uint64_t first, uint64_t n);

/* --- allocbytes.c; with the lock held --- */

/* Is there somebody in the cluster at pack.at? */
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

/* The count of these clusters is 0 now. */
static inline void
alloc_bytes_forget (struct alloc *a, uint64_t first, uint64_t n)
{
  if (alloc_bytes_in_use (a) && a->pack.at >> a->bits >= first &&
      a->pack.at >> a->bits < first + n)
    alloc_bytes_leave_cluster (a);
}

/* Gives back what was taken and not used. */
extern void alloc_bytes_give_back (struct alloc *);

#endif /* QCOW2_ALLOC_IMPL_H */
