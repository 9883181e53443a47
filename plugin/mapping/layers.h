/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The layers of a disk, and where a guest range lives among them: see layers.c,
 * resolve.c.
 */

#ifndef QCOW2_LAYERS_H
#define QCOW2_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "format/run.h"
#include "image/image.h"
#include "mapping/map.h"

struct layers;

/* An empty stack.  NULL on ENOMEM (reported). */
extern struct layers *layers_new (void);
extern void layers_free (struct layers *);  /* closes the files it owns */

/* Adds a layer below the ones that are there; the first is the top image,
 * layer 0.  The stack is one more owner of the image, which was loaded. */
extern int layers_add_image (struct layers *, struct image *);
/* The same with a raw file of SIZE bytes.  On success the stack owns it. */
extern int layers_add_raw (struct layers *, struct storage *, uint64_t size);

extern unsigned layers_count (const struct layers *);
extern struct storage *layers_file (const struct layers *, unsigned i);
/* Where guest data are: in that, or in an external data file. */
extern struct storage *layers_data_file (const struct layers *, unsigned i);
/* The way to and from the guest data in it. */
extern struct payload *layers_payload (const struct layers *, unsigned i);
/* The header of a qcow2 layer; NULL for a raw one. */
extern const struct header *layers_header (const struct layers *, unsigned i);
/* Is the file with the guest data the disk by itself: a raw layer, or a raw external data
 * file? */
extern bool layers_data_is_raw (const struct layers *, unsigned i);
/* Is it worth to look for holes of the host file in the clusters of this qcow2
 * layer?  See prealloc.h; found out when first asked. */
extern bool layers_preallocated (struct layers *, unsigned i);
/* The size of the disk that it describes, bytes. */
extern uint64_t layers_size (const struct layers *, unsigned i);

/* A view of the stack from layer FROM down, cached in MAP: for a read-only disk
 * FROM is 0; for what lies below a writable image it is 1.  DISK_SIZE is the size of
 * the disk that is served.  SLICE_SIZE as l2-slice.  NULL on error
 * (reported).  Make it when the stack is complete. */
struct layers_view;
extern struct layers_view *layers_view_new (struct layers *, unsigned from,
                                            struct map *, uint64_t disk_size,
                                            uint64_t slice_size);
/* The same with another L1 table in the top image: an internal snapshot, of a disk of
 * DISK_SIZE bytes, which the table must cover. */
extern struct layers_view *layers_view_new_snapshot (struct layers *,
                                                     struct map *,
                                                     uint64_t l1_offset,
                                                     uint64_t disk_size,
                                                     uint64_t slice_size);
/* Layer I alone, of its own size: what it does not hold itself is UNALLOCATED. */
extern struct layers_view *layers_view_new_single (struct layers *, unsigned i,
                                                   struct map *,
                                                   uint64_t slice_size);
extern void layers_view_free (struct layers_view *);  /* NULL is fine */

/* The run at guest OFFSET, at most LEN bytes (within the disk).  Kinds ZERO, NORMAL
 * (run.layer says in which file), COMPRESSED, CORRUPT; UNALLOCATED only where it is a
 * layer alone.  0, or -1 with errno (reported).  Cost of a hit: one map look-up,
 * whatever the number of layers. */
extern int layers_lookup (struct layers_view *, uint64_t offset, uint64_t len,
                          struct run *);

#endif /* QCOW2_LAYERS_H */
