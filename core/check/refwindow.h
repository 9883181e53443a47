/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Counts the references to each cluster of a window, and what it is used for.  See
 * refwindow.c.
 */

#ifndef QCOW2_REFWINDOW_H
#define QCOW2_REFWINDOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "check/findings.h"

/* Clusters that are counted at a time: a multiple of the number that any refcount block
 * covers. */
#define REFWINDOW_CLUSTERS (UINT64_C (1) << 24)

/* Counts of this value and more are not exact. */
#define REFWINDOW_MAX ((UINT32_C (1) << 27) - 1)

/* The other bits of a counter. */
#define REFWINDOW_SHARED (UINT32_C (1) << 31)
#define REFWINDOW_MARKED (UINT32_C (1) << 27)

/* What a cluster is used for. */
enum role { ROLE_NOTHING, ROLE_TABLE, ROLE_L2, ROLE_DATA, ROLE_REFCOUNTS };

/* Receives faults of references, with the arguments of findings_add.  May be called by
 * any thread.  Returns 0, or -1 with errno set to end the count. */
struct refwindow_judge {
  int (*fault) (void *opaque, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));
  void *opaque;
};

/* One window.  Constant while references are counted, except for atomic fields. */
struct refwindow {
  unsigned cluster_bits;
  uint64_t clusters;            /* in the file */
  struct refwindow_judge judge;
  uint64_t first, n;            /* the window; n <= REFWINDOW_CLUSTERS */
  _Atomic uint32_t *counters;   /* n of them */
  _Atomic uint64_t next;        /* the next window that has references, or UINT64_MAX */
};

/* Prepares to count the clusters of FILE. */
extern void refwindow_init (struct refwindow *, struct storage *, unsigned cluster_bits);
extern void refwindow_free (struct refwindow *);

/* Starts the window at cluster FIRST (a multiple of REFWINDOW_CLUSTERS), with all counts
 * 0.  -1 with errno = ENOMEM. */
extern int refwindow_begin (struct refwindow *, uint64_t first, struct refwindow_judge);

/* Adds TIMES references to each cluster of a range.  WHAT names the range in messages.
 * ROLE_REFCOUNTS with TIMES 0 adds no references, but the range must still not overlap
 * anything else.  May be called by any thread.
 * Returns 1; 0 if the judge was told that the range is invalid, or that (as far as is
 * known by now) something else uses a part of it; -1 if the judge returned -1. */
extern int refwindow_add (struct refwindow *, uint64_t offset, uint64_t bytes, enum role,
                          uint32_t times, const char *what);

/* One past the last cluster of the window that is in use, or 0 if none is. */
extern uint64_t refwindow_end (const struct refwindow *);

/* Marks a cluster of the window; the caller decides what the mark means.  May be called
 * by any thread. */
extern void refwindow_mark (struct refwindow *, uint64_t cluster);

/* Is the cluster in the window? */
static inline bool
refwindow_covers (const struct refwindow *t, uint64_t cluster)
{
  return cluster - t->first < t->n;     /* clusters before the window wrap around */
}

/* Is the cluster marked?  1, 0, or -1 if it is not in the window. */
static inline int
refwindow_marked (const struct refwindow *t, uint64_t cluster)
{
  if (!refwindow_covers (t, cluster))
    return -1;
  return (atomic_load_explicit (&t->counters[cluster - t->first], memory_order_relaxed) &
          REFWINDOW_MARKED) != 0;
}

/* The number of references to a cluster; 0 outside the window.  *SHARED: the cluster has
 * two uses. */
static inline uint32_t
refwindow_count (const struct refwindow *t, uint64_t cluster, bool *shared)
{
  const uint32_t counter = !refwindow_covers (t, cluster) ? 0 :
    atomic_load_explicit (&t->counters[cluster - t->first], memory_order_relaxed);

  *shared = (counter & REFWINDOW_SHARED) != 0;
  return counter & REFWINDOW_MAX;
}

#endif /* QCOW2_REFWINDOW_H */
