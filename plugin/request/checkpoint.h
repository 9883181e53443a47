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
#include "request/vacant.h"

struct checkpoint;

struct checkpoint_stats {
  uint64_t flushes;     /* requests for durability */
  uint64_t runs;        /* checkpoints that wrote metadata */
  uint64_t syncs;       /* fdatasync calls */
  uint64_t shared;      /* flushes that shared another one's checkpoint */
};

struct checkpoint_options {
  struct image *image;
  struct l2 *l2;
  struct alloc *alloc;
  struct refcounts *refcounts;
  struct vacant *vacant;        /* what of its external data file is to be given back;
                                   or NULL */
  uint64_t dirty_limit;         /* bytes of changed slices that make checkpoint_relieve
                                   act */
};

/* All that the options point to must outlive it.  NULL on ENOMEM (reported). */
extern struct checkpoint *checkpoint_new (const struct checkpoint_options *);
extern void checkpoint_free (struct checkpoint *);

/* Makes everything durable that was done before the call: data and metadata.
 * Concurrent callers share.  Returns 0, or -1 with errno: ENOSPC (all changes are
 * kept, try again when there is space) or EIO. */
extern int checkpoint_flush (struct checkpoint *);

/* Runs a checkpoint if much is waiting for one, unless the image must not be changed any
 * more.  An error has been reported and will be met again by the next flush. */
extern void checkpoint_relieve (struct checkpoint *);

/* At a quiet moment (no request in flight): everything durable, everything
 * freed released, allocations made ahead given back, the file cut to its
 * length.  After it the image is clean and without leaks. */
extern int checkpoint_quiesce (struct checkpoint *);

/* Moves on what was freed and waits for requests to end; the next two of these need no
 * claim of the caller's.  -1: reported. */
extern int checkpoint_reap (struct checkpoint *);
/* Is something freed that has not been given back? */
extern bool checkpoint_holds_back (struct checkpoint *);

extern void checkpoint_get_stats (struct checkpoint *,
                                  struct checkpoint_stats *);

#endif /* QCOW2_CHECKPOINT_H */
