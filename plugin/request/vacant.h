/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When is the space of erased clusters in an external data file given back?
 * See vacant.c.
 */

#ifndef QCOW2_VACANT_H
#define QCOW2_VACANT_H

#include <stdbool.h>
#include <stdint.h>

#include "util/grace.h"
#include "util/inflight.h"
#include "storage/storage.h"

struct vacant;

/* For the clusters of a disk of DISK_SIZE bytes, whose data are in DATA; INFLIGHT has
 * the claims on them.  All must outlive it.  NULL on ENOMEM (reported). */
extern struct vacant *vacant_new (struct storage *data, struct inflight *,
                                  struct grace *, unsigned cluster_bits,
                                  uint64_t disk_size);
/* Frees memory only.  NULL is fine here and below: then nothing is given back. */
extern void vacant_free (struct vacant *);

/* Clusters [first, first+n) have lost their data, in memory; or have some again.
 * Called after the change and under the claim on them.  Cannot fail: without memory,
 * or with too many runs, space stays taken. */
extern void vacant_add (struct vacant *, uint64_t first, uint64_t n);
extern void vacant_remove (struct vacant *, uint64_t first, uint64_t n);

/* Clusters that have not been given back. */
extern uint64_t vacant_clusters (struct vacant *);
/* Is so much waiting for a checkpoint that there should be one? */
extern bool vacant_crowded (struct vacant *);

/* --- for the checkpoint --- */

/* Takes all that was added so far: call it before the L2 snapshot. */
extern void vacant_take (struct vacant *);
/* What was taken is durable (OK), or waits for the next checkpoint. */
extern void vacant_done (struct vacant *, bool ok);
/* Gives back what has waited for its grace period.  Never waits for requests.  The
 * caller has no claim.  A failed punch has been reported and is no error. */
extern void vacant_reap (struct vacant *);

#endif /* QCOW2_VACANT_H */
