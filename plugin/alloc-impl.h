/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What alloc.c, quarantine.c and allocpack.c share.  No other file includes this.
 */

#ifndef QCOW2_ALLOC_IMPL_H
#define QCOW2_ALLOC_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "alloc.h"
#include "freeset.h"

/* A freed run on its way from pending to idle; unused room is one, too. */
struct alloc_frees {
  struct alloc_frees *next;
  uint64_t first, n;            /* clusters */
  uint64_t stamp;               /* grace stamp, when it is waiting */
};

struct list { struct alloc_frees *head, *tail; };

struct alloc {
  struct hostfile *file;
  struct refcounts *refcounts;
  struct overlap *overlap;
  struct grace *grace;
  unsigned bits;
  bool discard;
  bool regular;                 /* past its end a file reads as zeros */
  uint64_t open_size;           /* bytes: never cut off more than this */

  pthread_mutex_t lock;         /* guards all that follows */

  struct freeset zeroed, stale; /* idle */
  struct freeset held;          /* waiting: hidden from the scan */
  bool held_failed;             /* held is not complete: no more scan */
  uint64_t scan, scan_end;

  uint64_t bump, bump_end;      /* the reserve */
  uint64_t settled_end;
  uint64_t top_mark;            /* of the checkpoint that runs: never beyond what
                                   was the reserve ever since it began */
  uint64_t batch;               /* clusters */
  bool bump_used;               /* since the file was opened or given back */

  struct alloc_run tables;      /* what is left for tables; may be empty */
  bool tables_fresh;            /* they came from the reserve */

  struct {                      /* bytes for compressed clusters: allocpack.c */
    uint64_t at, end;           /* host offsets; end is at the end of a cluster */
    bool zeroed;                /* what is fresh of it reads as zeros */
  } pack;

  struct alloc_frees *rooms;    /* made by alloc_free_begin */
  struct list pending;          /* removal not durable */
  struct list waiting;          /* for its grace period, in order of stamps */
  unsigned reaping;             /* threads that have taken some out of waiting */
  uint64_t quarantined;         /* clusters in all of these and in checkpoints */

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

/* R5: fails (EUCLEAN, reported) if there is metadata in the clusters that are
 * to become WHAT. */
extern int alloc_check_no_metadata (struct alloc *, uint64_t first, uint64_t n,
                                    const char *what);

/* Puts a run into an idle set; with the lock held.  If there is no memory for it, it
 * is forgotten until the next open. */
extern void alloc_add_idle (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);

/* As alloc_reserve, with the lock held and not counted in the statistics.  Returns 1
 * (they were idle), 2 (they come from the reserve) or -1. */
extern int alloc_take (struct alloc *, uint64_t n, struct alloc_run *);
/* Clusters that nobody ever used lose their count; with the lock held. */
extern void alloc_drop_run (struct alloc *, uint64_t first, uint64_t n,
                            bool zeroed);

/* --- quarantine.c; with the lock held --- */

/* Lowers the counts of clusters to which no pointer was published, but that readers may
 * know from others who used them: what becomes free waits for its grace period.  -1:
 * reported; they are leaked. */
extern int alloc_release (struct alloc *, uint64_t first, uint64_t n);

/* --- allocpack.c; with the lock held --- */

/* The count of these clusters is 0 now. */
extern void alloc_pack_forget (struct alloc *, uint64_t first, uint64_t n);
/* Gives back what was taken and not used. */
extern void alloc_pack_give_back (struct alloc *);

#endif /* QCOW2_ALLOC_IMPL_H */
