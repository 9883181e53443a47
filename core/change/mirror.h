/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies a disk to another image while clients write it, and then lets them go on with
 * the copy.  See mirror.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported, except
 * where noted.  All are called by one thread at a time.
 */

#ifndef QCOW2_MIRROR_H
#define QCOW2_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "change/follow.h"

struct mirror;

enum mirror_sync {
  MIRROR_FULL,                  /* all of the disk is copied */
  MIRROR_TOP,                   /* what its top image contains */
  MIRROR_NONE,                  /* only what clients change from then on */
};

/* Where the copy goes: one of these two. */
struct mirror_target {
  struct image *image;          /* a loaded qcow2 image, read-only or not ... */
  enum backing_policy backing;  /* ... over what its header names, or over nothing */
  struct storage *raw;          /* the bytes of the disk; without a lock, which it gets
                                   unless the disk has none either */
};

struct mirror_options {
  struct mirror_target target;  /* stays with the caller, and open until mirror_end */
  enum mirror_sync sync;
  uint64_t granularity;         /* of the record of changes: bytes, a power of two; 0:
                                   chosen.  It is larger if the disk is very large */
};

/* Begins to record what clients change.  The target is locked as a writer.  Refuses one
 * that has another size than the disk, or is one of its files. */
extern int mirror_begin (struct disk *, const struct mirror_options *, struct mirror **);

/* Its copying; it belongs to it. */
extern struct follow *mirror_follow (const struct mirror *);

/* Why the disk cannot go on with the target; NULL: it can. */
extern const char *mirror_why_no_pivot (const struct mirror *);
/* The disk will go on with the target: does of mirror_pivot what is possible while
 * clients write. */
extern void mirror_announce (struct mirror *);
/* Each of the next two: -1 with EAGAIN, not reported: too much is left, and it can be
 * called again after follow_near has returned 0. */
/* Copies the rest while clients wait, and lets them go on with the target, which is
 * durable then.  -1: they go on as before. */
extern int mirror_pivot (struct mirror *);
/* Copies the rest while clients wait: the target is the disk of one instant, durably. */
extern int mirror_finish (struct mirror *);

/* Ends it in any case: without one of these two, the target is incomplete.  NULL is
 * allowed. */
extern void mirror_end (struct mirror *);

#endif /* QCOW2_MIRROR_H */
