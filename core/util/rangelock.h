/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which request may change these clusters (or sectors) now?  See rangelock.c.
 */

#ifndef QCOW2_RANGELOCK_H
#define QCOW2_RANGELOCK_H

#include <stdbool.h>
#include <stdint.h>

struct rangelock;

/* The claim of one request, on its stack.  The fields belong to rangelock.c. */
struct rangelock_claim {
  uint64_t first, last;         /* clusters, inclusive */
  bool shared;
  struct rangelock_claim *next;  /* the next later claim */
};

extern struct rangelock *rangelock_new (void);  /* NULL on ENOMEM (reported) */
extern void rangelock_free (struct rangelock *);

/* Waits until no earlier claim touches clusters FIRST..LAST.  A thread holds at most one
 * claim of a table at a time (two could deadlock). */
extern void rangelock_claim (struct rangelock *, struct rangelock_claim *,
                             uint64_t first, uint64_t last);
/* The same, but shared claims do not wait for each other. */
extern void rangelock_claim_shared (struct rangelock *, struct rangelock_claim *,
                                    uint64_t first, uint64_t last);
/* Claims the clusters if this need not wait.  Otherwise makes no claim and returns
 * false. */
extern bool rangelock_try (struct rangelock *, struct rangelock_claim *,
                           uint64_t first, uint64_t last);
extern void rangelock_release (struct rangelock *, struct rangelock_claim *);

#endif /* QCOW2_RANGELOCK_H */
