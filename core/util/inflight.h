/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which request may change these clusters (or sectors) now?  See inflight.c.
 */

#ifndef QCOW2_INFLIGHT_H
#define QCOW2_INFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

struct inflight;

/* The claim of one request, on its stack.  The fields belong to inflight.c. */
struct inflight_claim {
  uint64_t first, last;         /* clusters, inclusive */
  bool shared;
  struct inflight_claim *next;  /* the next later claim */
};

extern struct inflight *inflight_new (void);  /* NULL on ENOMEM (reported) */
extern void inflight_free (struct inflight *);

/* Waits until no earlier claim touches clusters FIRST..LAST.  A thread holds at most one
 * claim of a table at a time (two could deadlock). */
extern void inflight_claim (struct inflight *, struct inflight_claim *,
                            uint64_t first, uint64_t last);
/* The same, but shared claims do not wait for each other. */
extern void inflight_claim_shared (struct inflight *, struct inflight_claim *,
                                   uint64_t first, uint64_t last);
/* Claims the clusters if this need not wait.  Otherwise makes no claim and returns
 * false. */
extern bool inflight_try (struct inflight *, struct inflight_claim *,
                          uint64_t first, uint64_t last);
extern void inflight_release (struct inflight *, struct inflight_claim *);

#endif /* QCOW2_INFLIGHT_H */
