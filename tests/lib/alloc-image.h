/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A small image, and the rooms that the allocator needs.  See alloc-image.c.
 */

#ifndef TEST_ALLOC_IMAGE_H
#define TEST_ALLOC_IMAGE_H

#include "util/epoch.h"
#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"
#include "space/alloc.h"
#include "space/refcount.h"
#include "lib/stubs.h"

/* Valid while an image is open. */
extern struct storage *file;
extern struct header header;
extern struct overlap *overlap;
extern struct refcounts *refcounts;
extern struct epoch *epoch;
extern struct alloc *alloc;
extern unsigned bits;           /* log2 of the cluster size */

/* For all random choices; the test seeds it. */
extern struct rng rng;

/* image_begin creates an empty file in the current directory, whose name begins with that
 * of the test; image_end removes it. */
extern void image_begin (const char *name);
extern void image_end (void);

/* Makes a new image in it: header, refcount table, one refcount block and L1 table, one
 * cluster each. */
extern void make_alloc_image (unsigned cluster_bits, unsigned refcount_order);

/* Opens the refcounts of any image, and what they need. */
extern void open_counts (const char *path, const struct storage_hooks *);
extern void close_counts (void);

/* Opens the image of image_begin, with an allocator. */
extern void open_image (bool discard, const struct storage_hooks *);
extern void close_image (void);

/* Writes until no count is dirty. */
extern void write_counts (void);

/* To be called when everything is durable and no request is in a section: nothing is held
 * back, and the file is truncated to the clusters in use. */
extern void end_session (void);

#endif /* TEST_ALLOC_IMAGE_H */
