/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do persistent bitmaps record the changes of the disk?  See bitmap.c.
 */

#ifndef QCOW2_BITMAP_H
#define QCOW2_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"
#include "image/bitmapdir.h"
#include "image/health.h"
#include "space/alloc.h"
#include "space/refcount.h"
#include "request/checkpoint.h"
#include "request/dirtyset.h"

struct bitmaps;

/* Opens the bitmaps of an image that has some; changes nothing.  All pointers must
 * outlive the result.  Returns 0 and *RET; 1 if the bitmaps cannot be maintained while
 * the disk changes (WHY contains the reason); -1 on an error (reported). */
extern int bitmap_open (struct storage *, const struct header *,
                        struct overlap *, struct bitmaps **ret,
                        char why[BITMAPDIR_WHY]);
extern void bitmap_close (struct bitmaps *);    /* accepts NULL */

/* Call it when the disk becomes writable.  DURABLE: bitmaps survive a crash.  After a
 * failure it may be called again.  Returns 0, or -1 (reported). */
extern int bitmap_start (struct bitmaps *, struct refcounts *, struct alloc *,
                         struct checkpoint *, struct health *, bool durable);

/* Call it before [offset, offset+count), in bytes, changes in any way that a reader could
 * see.  Any thread.  With NULL, nothing is recorded.  Returns 0, or -1 (EIO, ENOSPC,
 * ENOMEM; reported): then the range must not change. */
extern int bitmap_record (struct bitmaps *, uint64_t offset, uint64_t count);

/* For tests, before anything is recorded: the log of bitmaps that survive a crash has
 * regions of 2^BITS bytes, if not more. */
extern void bitmap_set_regions (struct bitmaps *, unsigned bits);
/* Call it from time to time: bitmaps that survive a crash say less in the file of regions
 * that is not changed any more.  If that fails, a later call tries it again (reported,
 * unless it was for want of space or memory).
 * Any thread, but not while bitmap_store runs, or may run.  Accepts NULL. */
extern void bitmap_narrow (struct bitmaps *);

/* Call it while no request changes the disk: writes what was recorded to the file, and
 * makes the bitmaps valid again.  Accepts NULL.  Returns 0, or -1 (reported): the bitmaps
 * are still marked as in use, unless they are durable; nothing that was recorded is lost,
 * and the caller may try again. */
extern int bitmap_store (struct bitmaps *);

/* Has something been recorded since it last succeeded?  Accepts NULL. */
extern bool bitmap_is_unsettled (struct bitmaps *);

/* All bitmaps of the image, as they were when it was opened.  In a damaged image, names
 * may not be unique. */
extern size_t bitmap_count (const struct bitmaps *);    /* NULL: 0 */
/* The first bitmap with that name, or SIZE_MAX if there is none.  Accepts NULL. */
extern size_t bitmap_find (const struct bitmaps *, const char *name);
extern const struct bitmapdir_any *bitmap_get (const struct bitmaps *, size_t i);
/* NULL: NULL. */
extern const struct bitmapdir *bitmap_directory (const struct bitmaps *);

/* The present contents of bitmap I: those in the file, and what was recorded since.  The
 * caller frees *SET.  Any thread.  Returns 0, or -1 (reported): the contents are invalid
 * (ESTALE), or cannot be read. */
extern int bitmap_freeze (struct bitmaps *, size_t i, struct dirtyset **set);

#endif /* QCOW2_BITMAP_H */
