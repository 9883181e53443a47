/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When is the space of zeroed clusters in an external data file freed?
 * See discards.c.
 */

#ifndef QCOW2_DISCARDS_H
#define QCOW2_DISCARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "util/epoch.h"
#include "util/rangelock.h"
#include "storage/storage.h"

struct discards;

/* For the clusters of a disk of DISK_SIZE bytes, whose data is in DATA; RANGELOCK has the
 * claims on them.  All of these must outlive the result.  NULL on ENOMEM (reported). */
extern struct discards *discards_new (struct storage *data, struct rangelock *,
                                      struct epoch *, unsigned cluster_bits,
                                      uint64_t disk_size);
/* Frees memory only.  Here and below NULL is accepted: then no space is freed. */
extern void discards_free (struct discards *);

/* Guest clusters [first, first+n) have lost their data, in memory (add), or have data
 * again (remove).  Call it after the change and under the claim on them.  Cannot fail:
 * without memory, or with too many runs, space stays allocated. */
extern void discards_add (struct discards *, uint64_t first, uint64_t n);
extern void discards_remove (struct discards *, uint64_t first, uint64_t n);

/* The number of clusters whose space has not been freed. */
extern uint64_t discards_clusters (struct discards *);
/* Is enough waiting to be worth a checkpoint? */
extern bool discards_crowded (struct discards *);

/* --- for the checkpoint --- */

/* Takes everything that was added so far.  Call it before l2_take. */
extern void discards_take (struct discards *);
/* OK: everything taken is durable; otherwise it waits for the next checkpoint. */
extern void discards_done (struct discards *, bool ok);
/* Punches clusters whose grace period has passed.  Never waits for requests.  The caller
 * must not hold a claim.  A failed punch is reported, and is not an error. */
extern void discards_reap (struct discards *);

#endif /* QCOW2_DISCARDS_H */
