/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When do changed mappings reach the file, and in which order?
 * See checkpoint.c.
 */

#ifndef QCOW2_CHECKPOINT_H
#define QCOW2_CHECKPOINT_H

#include <stdint.h>

#include "image/image.h"
#include "space/alloc.h"
#include "space/refcount.h"
#include "mapping/l2.h"
#include "request/discards.h"

struct checkpoint;

struct checkpoint_stats {
  uint64_t flushes;     /* calls of checkpoint_flush */
  uint64_t runs;        /* checkpoints that wrote metadata */
  uint64_t syncs;       /* fdatasync calls */
  uint64_t shared;      /* flushes for which another thread ran the checkpoint */
  uint64_t timed;       /* checkpoints that checkpoint_start_timer caused */
  uint64_t ns, longest_ns;      /* that the runs took, together, and one at most */
};

struct checkpoint_options {
  struct image *image;
  struct l2 *l2;
  struct alloc *alloc;
  struct refcounts *refcounts;
  struct discards *discards;    /* discarded clusters of the external data file, or
                                   NULL */
  uint64_t dirty_limit;         /* bytes of changed slices beyond which
                                   checkpoint_relieve runs a checkpoint */
  uint64_t interval_ms;         /* see checkpoint_start_timer; 0: never */
  void (*after) (void *opaque); /* NULL, or called after each interval, too */
  void *opaque;
};

/* Everything to which the options point must outlive the result.  NULL on ENOMEM
 * (reported). */
extern struct checkpoint *checkpoint_new (const struct checkpoint_options *);
extern void checkpoint_free (struct checkpoint *);

/* Makes everything durable that was done before the call, data and metadata.  Concurrent
 * callers share a checkpoint.  Returns 0, or -1 with errno: ENOSPC or ENOMEM (all
 * changes are kept; try again later) or EIO. */
extern int checkpoint_flush (struct checkpoint *);

/* Is the next write that allocates the first one since a flush, and would it pay to write
 * its entry while it writes its data?  Then it publishes the entry first, if that has no
 * need of the data, and calls checkpoint_ahead. */
extern bool checkpoint_writes_ahead (const struct checkpoint *);
/* Writes changed slices soon, in another thread, if all pointers in them are settled.  A
 * checkpoint makes that durable. */
extern void checkpoint_ahead (struct checkpoint *);

/* May there be anything that is not durable? */
extern bool checkpoint_has_changes (struct checkpoint *);

/* Runs a checkpoint if enough is waiting for one and the image may still be changed.
 * Errors are reported; the next flush meets them again. */
extern void checkpoint_relieve (struct checkpoint *);

/* From now on, whenever something was changed, a checkpoint starts at most INTERVAL_MS
 * later, whether a client flushes or not, and again after each INTERVAL_MS while there is
 * no space or memory for it.  (Nothing changes if this has begun before.)  If there is no
 * thread for it, that is reported, and nothing else happens.  checkpoint_stop_timer waits
 * for a checkpoint that it has started.  The caller sees to it that only one thread calls
 * these functions. */
extern void checkpoint_start_timer (struct checkpoint *);
extern void checkpoint_stop_timer (struct checkpoint *);

/* Call it while no request is in flight and the timer is stopped: makes everything
 * durable, releases everything that was freed, gives back clusters that were allocated
 * ahead, and truncates the file to the part in use.  Afterwards the image is clean and
 * has no leaks.  0 or -1. */
extern int checkpoint_quiesce (struct checkpoint *);

/* Releases freed clusters as far as the requests that may still use them have ended;
 * never waits for these.  The caller holds no claim.  -1: reported. */
extern int checkpoint_reap (struct checkpoint *);
/* Have clusters been freed that were not released yet? */
extern bool checkpoint_holds_back (struct checkpoint *);

extern void checkpoint_get_stats (struct checkpoint *,
                                  struct checkpoint_stats *);

#endif /* QCOW2_CHECKPOINT_H */
