/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do persistent bitmaps follow the changes of the disk?  See bitmap.c.
 */

#ifndef QCOW2_BITMAP_H
#define QCOW2_BITMAP_H

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

/* For an image that has bitmaps; changes nothing.  All pointers must outlive the
 * result.  Returns 0 and *RET; 1 if the bitmaps can't be kept by who changes the
 * disk, and WHY says why; -1 on an error (reported). */
extern int bitmap_open (struct storage *, const struct header *,
                        struct overlap *, struct bitmaps **ret,
                        char why[BITMAPDIR_WHY]);
extern void bitmap_close (struct bitmaps *);    /* NULL is fine */

/* The disk becomes writable.  May be called again after that has failed.  -1:
 * reported. */
extern int bitmap_start (struct bitmaps *, struct refcounts *, struct alloc *,
                         struct checkpoint *, struct health *);

/* Call it before [offset, offset+count) changes in any way that a reader could see.
 * -1 (EIO, ENOSPC, ENOMEM; reported): it must not change.  Any thread.  NULL: nothing is
 * to be recorded. */
extern int bitmap_record (struct bitmaps *, uint64_t offset, uint64_t count);

/* At a quiet moment (no request that changes anything): what was recorded goes to the
 * file, and the bitmaps are valid again.  -1 (reported): they stay marked as in
 * use; nothing that was recorded is lost, try again.  NULL is fine. */
extern int bitmap_store (struct bitmaps *);

/* All bitmaps of the image, as they were when it was opened; entry.name may not be unique
 * in a damaged image. */
extern size_t bitmap_count (const struct bitmaps *);    /* NULL: 0 */
/* The first of that name; SIZE_MAX: there is none.  NULL is fine. */
extern size_t bitmap_find (const struct bitmaps *, const char *name);
extern const struct bitmapdir_any *bitmap_get (const struct bitmaps *, size_t i);
extern const struct bitmapdir *bitmap_directory (const struct bitmaps *);

/* What bitmap I says now: what the file holds, and what was recorded since.  *SET is the
 * caller's to free.  Any thread.  -1 (reported): its contents are void (ESTALE),
 * or can't be had. */
extern int bitmap_freeze (struct bitmaps *, size_t i, struct dirtyset **set);

#endif /* QCOW2_BITMAP_H */
