/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The layers of a disk, and where they store a guest range: see layers.c, resolve.c.
 */

#ifndef QCOW2_LAYERS_H
#define QCOW2_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "format/run.h"
#include "image/image.h"
#include "image/snapshot.h"
#include "mapping/map.h"

struct layers;

/* Creates an empty stack.  NULL on ENOMEM (reported). */
extern struct layers *layers_new (void);
extern void layers_free (struct layers *);  /* closes files that no other stack has */

/* Adds a layer below the existing ones; the first one is the top image, layer 0.  The
 * image must be loaded; the stack takes a reference to it. */
extern int layers_add_image (struct layers *, struct image *);
/* The same for a raw file of SIZE bytes.  On success the stack owns the file. */
extern int layers_add_raw (struct layers *, struct storage *, uint64_t size);

/* Creates a stack of TOP (as for layers_add_image), of SECOND (the same; NULL: nothing),
 * and of the layers from FROM on of another stack, which shares them.  NULL: reported. */
extern struct layers *layers_over (struct image *top, struct image *second,
                                   const struct layers *, unsigned from);

/* Adds layers [FROM, TO) of another stack, which then share their files.  -1:
 * reported. */
extern int layers_share (struct layers *, const struct layers *, unsigned from,
                         unsigned to);
/* Adds layer I of another stack, a raw file, with the size that it has now. */
extern int layers_share_raw (struct layers *, const struct layers *, unsigned i);
/* A stack of all layers of another one.  NULL: reported. */
extern struct layers *layers_copy (const struct layers *);
/* Is layer I of both the same one?  (Both have more layers than I.) */
extern bool layers_same (const struct layers *, const struct layers *, unsigned i);
/* Does another stack have layer I, too? */
extern bool layers_is_shared (const struct layers *, unsigned i);
/* Calls GONE, once, when no stack has layer I any more, in the thread that frees the last
 * one.  Call it once for a layer. */
extern void layers_when_gone (struct layers *, unsigned i, void (*gone) (void *opaque),
                              void *opaque);
/* OPAQUE of that, if GONE will be called; else NULL. */
extern void *layers_whose_end (const struct layers *, unsigned i,
                               void (*gone) (void *opaque));

extern unsigned layers_count (const struct layers *);
/* NULL: a raw file. */
extern struct image *layers_image (const struct layers *, unsigned i);
extern struct storage *layers_file (const struct layers *, unsigned i);
/* The file with the guest data: the layer's own file, or an external data file. */
extern struct storage *layers_data_file (const struct layers *, unsigned i);
/* Is any of these files remote (storage_is_remote)? */
extern bool layers_are_remote (const struct layers *);
/* How guest data is stored in that file. */
extern struct guestdata *layers_guestdata (const struct layers *, unsigned i);
/* The header of a qcow2 layer; NULL for a raw one. */
extern const struct header *layers_header (const struct layers *, unsigned i);
/* Are the contents of the data file the same as the disk: a raw layer, or a raw external
 * data file? */
extern bool layers_data_is_raw (const struct layers *, unsigned i);
/* May the clusters of this qcow2 layer be holes of the host file, so that looking for
 * them is worthwhile?  See prealloc.h.  Determined at the first call. */
extern bool layers_preallocated (struct layers *, unsigned i);
/* The size of the disk that the layer describes, in bytes. */
extern uint64_t layers_size (const struct layers *, unsigned i);

/* Closes the connections of all layers to NBD servers: see storage_disconnect. */
extern void layers_disconnect (struct layers *);

/* Creates a view of the stack from layer FROM down, cached in MAP.  FROM is 0 for a
 * read-only disk, and 1 for the layers below a writable image.  DISK_SIZE is the size of
 * the disk that is served, in bytes; SLICE_SIZE is as for the parameter l2-slice.  The
 * stack must be complete.  Returns NULL on error (reported). */
struct layers_view;
extern struct layers_view *layers_view_new (struct layers *, unsigned from,
                                            struct map *, uint64_t disk_size,
                                            uint64_t slice_size);
/* The same with another L1 table in the top image: that of an internal snapshot of
 * DISK_SIZE bytes, all of which the table must cover. */
extern struct layers_view *layers_view_new_snapshot (struct layers *,
                                                     struct map *,
                                                     uint64_t l1_offset,
                                                     uint64_t disk_size,
                                                     uint64_t slice_size);
/* A view of layers [FROM, TO) alone.  Ranges that they do not contain themselves are
 * UNALLOCATED; what is beyond the end of one of them is ZERO. */
extern struct layers_view *layers_view_new_part (struct layers *, unsigned from,
                                                 unsigned to, struct map *,
                                                 uint64_t disk_size, uint64_t slice_size);
/* The same of layer I, with its own size. */
extern struct layers_view *layers_view_new_single (struct layers *, unsigned i,
                                                   struct map *,
                                                   uint64_t slice_size);
extern void layers_view_free (struct layers_view *);  /* may be NULL */

/* OFFSET will perhaps be looked up: if that takes long, another thread begins to do
 * so. */
extern void layers_lookup_soon (struct layers_view *, uint64_t offset);

/* Is what layers_lookup would find in memory, or about to be? */
extern bool layers_has (struct layers_view *, uint64_t offset);

/* Finds the run at guest OFFSET, at most LEN bytes (within the disk).  Kinds are ZERO,
 * NORMAL (run.layer is the layer with the data), COMPRESSED, CORRUPT, and in a view of a
 * layer alone UNALLOCATED.  Returns 0, or -1 with errno (reported).  A hit costs one map
 * lookup, whatever the number of layers. */
extern int layers_lookup (struct layers_view *, uint64_t offset, uint64_t len,
                          struct run *);

/* Receives a run.  Returns 0, or -1 with errno to end. */
typedef int (*layers_run_fn) (void *opaque, const struct run *run);

/* Calls FN for all runs of the disk, or of this internal SNAPSHOT of the top image, in
 * their order: those of layers_lookup, from the top image down, without a map, and with
 * what a lookup leaves out.  ZERO_ALLOC has its host cluster.  What no layer contains is
 * UNALLOCATED, or RESERVED with its host cluster, in the lowest layer that reaches so
 * far (run.layer).  Reads each L2 table once, and uses a few MiB of memory, however
 * large the disk is.  Returns 0, or -1 if reading failed (reported) or FN returned
 * that. */
extern int layers_each_run (struct layers *, const struct snapshot *, layers_run_fn,
                            void *opaque);

#endif /* QCOW2_LAYERS_H */
