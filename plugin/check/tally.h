/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each cluster of a window have, and what is it used for?
 * See tally.c.
 */

#ifndef QCOW2_TALLY_H
#define QCOW2_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "check/findings.h"

/* Clusters that are counted at a time: a multiple of what any refcount block counts. */
#define TALLY_WINDOW (UINT64_C (1) << 24)

/* Counts as large as this are not exact. */
#define TALLY_MAX ((UINT32_C (1) << 27) - 1)

/* Bits of a counter beside the count. */
#define TALLY_SHARED (UINT32_C (1) << 31)
#define TALLY_MARKED (UINT32_C (1) << 27)

/* What a cluster is used for. */
enum role { ROLE_NOTHING, ROLE_TABLE, ROLE_L2, ROLE_DATA, ROLE_REFCOUNTS };

/* Who is told that a reference is at fault, as with findings_add.  Any thread.  Returns
 * 0, or -1 with errno set to end it all. */
struct tally_judge {
  int (*fault) (void *opaque, enum finding_kind, uint64_t times, uint64_t offset,
                const char *fmt, ...)
    __attribute__ ((__format__ (__printf__, 5, 6)));
  void *opaque;
};

/* One window.  Constant while references are counted, but for what is atomic. */
struct tally {
  unsigned cluster_bits;
  uint64_t clusters;            /* in the file */
  struct tally_judge judge;
  uint64_t first, n;            /* the window; n <= TALLY_WINDOW */
  _Atomic uint32_t *counters;   /* n of them */
  _Atomic uint64_t next;        /* the next window in which there is something */
};

/* For the clusters of FILE. */
extern void tally_init (struct tally *, struct storage *, unsigned cluster_bits);
extern void tally_free (struct tally *);

/* Begins the window that begins with cluster FIRST (a multiple of TALLY_WINDOW), with
 * all counts 0.  -1 with errno = ENOMEM. */
extern int tally_begin (struct tally *, uint64_t first, struct tally_judge);

/* TIMES references to each cluster of a range, which is a WHAT.  REFCOUNTS that hold no
 * reference (TIMES is 0) only have to lie where nothing else is.  Any thread.
 * 1; 0, and it was told: it can't be there, or (as far as is known) something else is;
 * -1 as from the judge. */
extern int tally_refer (struct tally *, uint64_t offset, uint64_t bytes, enum role,
                        uint32_t times, const char *what);

/* One past the last cluster of the window that is used for something; 0: none is. */
extern uint64_t tally_end (const struct tally *);

/* A mark on a cluster of the window, to the user's liking.  Any thread. */
extern void tally_mark (struct tally *, uint64_t cluster);

/* Is the cluster in the window? */
static inline bool
tally_covers (const struct tally *t, uint64_t cluster)
{
  return cluster - t->first < t->n;     /* wraps before the window */
}

/* -1: the cluster is not in the window. */
static inline int
tally_marked (const struct tally *t, uint64_t cluster)
{
  if (!tally_covers (t, cluster))
    return -1;
  return (atomic_load_explicit (&t->counters[cluster - t->first], memory_order_relaxed) &
          TALLY_MARKED) != 0;
}

/* References to a cluster; 0 outside of the window.  *SHARED: it is two things at
 * once. */
static inline uint32_t
tally_count (const struct tally *t, uint64_t cluster, bool *shared)
{
  const uint32_t counter = !tally_covers (t, cluster) ? 0 :
    atomic_load_explicit (&t->counters[cluster - t->first], memory_order_relaxed);

  *shared = (counter & TALLY_SHARED) != 0;
  return counter & TALLY_MAX;
}

#endif /* QCOW2_TALLY_H */
