/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A small image, and the rooms that the allocator needs.  See alloc-image.c.
 */

#ifndef TEST_ALLOC_IMAGE_H
#define TEST_ALLOC_IMAGE_H

#include "util/grace.h"
#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"
#include "space/alloc.h"
#include "space/refcount.h"
#include "lib/stubs.h"

/* While an image is open. */
extern struct storage *file;
extern struct header header;
extern struct overlap *overlap;
extern struct refcounts *refcounts;
extern struct grace *grace;
extern struct alloc *alloc;
extern unsigned bits;           /* of its clusters */

/* For all that is random; the test begins it. */
extern struct rng rng;

/* An empty file, whose name begins with that of the test, in the current directory; and
 * its end. */
extern void image_begin (const char *name);
extern void image_end (void);

/* Makes a new image of it: header, refcount table, one refcount block, L1 table, a
 * cluster each. */
extern void make_alloc_image (unsigned cluster_bits, unsigned refcount_order);

/* Any image: its refcounts, and what they need. */
extern void open_counts (const char *path, const struct storage_hooks *);
extern void close_counts (void);

/* That of image_begin, with an allocator. */
extern void open_image (bool discard, const struct storage_hooks *);
extern void close_image (void);

/* Until no count is left to write. */
extern void write_counts (void);

/* When all is durable and nobody has a pin: nothing is held back, and the file is cut to
 * what is in use. */
extern void end_session (void);

#endif /* TEST_ALLOC_IMAGE_H */
