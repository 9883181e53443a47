/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies a disk while clients change it, until so little is left that they can wait for
 * the rest.  See follow.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported, except
 * where noted.  All are called by one thread at a time, except follow_progress and
 * follow_give_way.
 */

#ifndef QCOW2_FOLLOW_H
#define QCOW2_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "copy/copy.h"
#include "disk/disk.h"

struct follow;

struct follow_options {
  struct disk *disk;
  const char *path;             /* of the target, in messages */
  struct copy copy;             /* from the disk, to the target; SPARSE is chosen here.
                                   CONTAINED: the target is a layer of the disk */
  uint64_t granularity;         /* of the record of changes: bytes, a power of two.  It is
                                   larger if the disk is very large */
};

/* Begins to record what clients change; nothing else is to be copied yet.  Only one at a
 * time follows a disk.  PATH and the ends of the copy are used until follow_free.  NULL:
 * reported. */
extern struct follow *follow_new (const struct follow_options *);
/* Before the first follow_step: this is to be copied, too: what an end contains.  NULL:
 * all of the disk. */
extern int follow_add (struct follow *, const struct copy_end *);

/* Copies some of what is left, at most MOST bytes of data (> 0).  *COPIED: how many bytes
 * of data that were (zeros do not count).  Returns 1; 0: so little is left that it could
 * be copied while clients wait (after a pause, there may be more); or -1, after which it
 * can be called again. */
extern int follow_step (struct follow *, uint64_t most, uint64_t *copied);
/* Before the end, when follow_step has returned 0: makes what was copied durable, for
 * which clients need not wait then.  Returns 0: so little is left still; 1: clients wrote
 * more meanwhile, and follow_step has to go on; or -1, as above. */
extern int follow_near (struct follow *);
/* Did the target fail then, and not the disk? */
extern bool follow_target_failed (const struct follow *);
/* Bytes of the disk that are done, and that are left to do.  Any thread. */
extern void follow_progress (struct follow *, uint64_t *done, uint64_t *left);

/* After that: no client changes the disk any more, and the rest is copied, durably, so
 * that the end takes no longer than a moment.  Returns as follow_near does; after 0 the
 * gate stays closed until follow_open, or follow_free. */
extern int follow_close (struct follow *);
extern void follow_open (struct follow *);      /* nothing happens if it is not closed */
/* Any thread: the copy is not wanted any more, so clients do not wait for it.  The gate
 * opens, and stays open, whatever follow_close returns. */
extern void follow_give_way (struct follow *);

/* The end.  Before the gate closes: -1 with EAGAIN, not reported: too much is left, and
 * it can be called again after follow_near has returned 0. */
extern int follow_begin_end (struct follow *);
/* Behind the gate: copies the rest, and does not make it durable. */
extern int follow_rest (struct follow *);
/* After -1 of follow_rest: as follow_begin_end, if that was why; otherwise errno stays.
 * Returns -1. */
extern int follow_why (const struct follow *);

/* Clients record nothing any more.  NULL is allowed. */
extern void follow_free (struct follow *);

#endif /* QCOW2_FOLLOW_H */
