/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the size of the disk of an image.  See resize.c.
 */

#ifndef QCOW2_RESIZE_H
#define QCOW2_RESIZE_H

#include "format/preallocation.h"
#include "image/bitmapdir.h"
#include "copy/chunks.h"
#include "change/shadow.h"

struct resize_options {
  uint64_t size;                /* the new size, in bytes */
  enum preallocation preallocation;     /* of the added space */
  const struct bitmapdir *bitmaps;      /* of the image; NULL: it has none */
  uint64_t backing_size;        /* size of the backing disk in bytes; 0: none */
  bool discard;                 /* punch holes into freed clusters */
  const struct chunks_watch *watch;     /* of preallocation; or NULL */
};

/* Is this resize possible?  Returns 0, or -1 (reported). */
extern int resize_check (const struct image *,
                         const struct resize_options *);

/* After the disk became smaller: moves the tables of the disk, and refcounts, that are in
 * the file at END or past it, to free clusters before it.  So what the change had to
 * write there, because no space was free, does not keep the file long.  END is in bytes.
 * Returns as resize_image does. */
extern int resize_gather (const struct image *, uint64_t end, bool discard,
                          struct shadow **done);

/* Resizes the disk.  Added space reads as zeros from the first cluster boundary on; the
 * caller takes care of the rest of the cluster before it.  Returns 0: done and durable,
 * with *DONE for shadow_release and shadow_free; or -1: see shadow_commit. */
extern int resize_image (const struct image *, const struct resize_options *,
                         struct shadow **done);

#endif /* QCOW2_RESIZE_H */
