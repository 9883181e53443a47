/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes all metadata of an image in one step.  See shadow.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.  Host
 * offsets and sizes are in bytes.  One thread.
 */

#ifndef QCOW2_SHADOW_H
#define QCOW2_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "util/bytes.h"
#include "image/image.h"
#include "request/view.h"

struct shadow;

/* The image must outlive the shadow.  Until shadow_commit nothing else may change the
 * image.  The image is not dirty, and its overlap contains all metadata, including
 * bitmaps.  DISCARD: punch holes into freed clusters.  NULL on error (reported). */
extern struct shadow *shadow_new (const struct image *, bool discard);
/* The same in two steps.  Until the second one the image may change, by requests of the
 * writable W: L1 and L2 tables can be read, and references dropped that those of tables
 * have that do not change; COPIED flags be corrected, as if they had been; and L2 tables
 * be written, to places that alloc_set_aside finds.  After -1 (reported), it can only be
 * freed. */
extern struct shadow *shadow_new_ahead (const struct image *, bool discard,
                                        const struct writable *w);
extern int shadow_begin (struct shadow *);
/* If shadow_commit was not called, the image is unchanged. */
extern void shadow_free (struct shadow *);  /* NULL is allowed */

/* Has free clusters looked for not from the beginning, but near HOST, or near the end of
 * what is in use, if that is before: what a change has freed there, the next one finds,
 * and most refcounts need not be read.  (Behind a file there is always space.  Elsewhere
 * this does nothing.) */
extern void shadow_stay_near (struct shadow *, uint64_t host);

/* Reports an inconsistency of the image, sets errno to EUCLEAN and returns -1. */
extern int shadow_corrupt (struct shadow *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

/* --- refcounts; cluster numbers --- */

/* Increments or decrements the refcounts of the N clusters from FIRST on.  Drop
 * references first, then add some, so that no refcount is ever higher than before and
 * after. */
extern int shadow_add (struct shadow *, uint64_t first, uint64_t n);
extern int shadow_drop (struct shadow *, uint64_t first, uint64_t n);
/* The same for all clusters that the BYTES at HOST touch. */
extern int shadow_drop_range (struct shadow *, uint64_t host, uint64_t bytes);

/* Allocates N (> 0) contiguous clusters that are free both in the old and in the new
 * image, and sets their refcounts to 1.  AT_END: past the end of the file. */
extern int shadow_take (struct shadow *, uint64_t n, bool at_end,
                        uint64_t *host);

/* Has the refcount blocks that are in the file at HOST or past it written to other
 * places. */
extern int shadow_move_refcounts (struct shadow *, uint64_t host);

/* --- tables (shadowtab.c) --- */

/* Reads an L1 table of OLD entries into a new array of N >= 1 entries; the others are 0.
 * The caller frees it.  NULL on error (reported). */
extern struct be64 *shadow_read_l1 (struct shadow *, uint64_t host,
                                    uint64_t old, uint64_t n);
/* Prefetches the L2 tables that entries from FIRST on, of N, point to. */
extern void shadow_expect (struct shadow *, const struct be64 *l1,
                           uint64_t first, uint64_t n);
/* Reads the L2 table (one cluster) that an L1 entry points to. */
extern int shadow_read_l2 (struct shadow *, uint64_t l1_entry,
                           struct be64 *l2);
/* Increments or decrements the refcounts of the clusters that L2 entries [FROM, TO)
 * (counted in entries, not words) point to. */
extern int shadow_add_l2 (struct shadow *, const struct be64 *l2,
                          uint64_t from, uint64_t to);
extern int shadow_drop_l2 (struct shadow *, const struct be64 *l2,
                           uint64_t from, uint64_t to);

/* Corrects the COPIED flags of all entries of a table in memory, or of BYTES of one: by
 * the refcounts, or clears them.  Returns 1 if a flag has changed, else 0, or -1. */
extern int shadow_correct_l2 (struct shadow *, struct be64 *l2, uint64_t bytes,
                              bool as_counted);

/* Gives the L2 table a new place, which *L1_ENTRY will contain after shadow_write_l1, or
 * ahead, after shadow_write_l2.  The refcount of the old table does not change. */
extern int shadow_replace_l2 (struct shadow *, const struct be64 *l2,
                              struct be64 *l1_entry);
extern int shadow_write_l2 (struct shadow *);
/* Sets the refcount of a place where a table was written ahead to 1, before anything else
 * gets a place.  Returns 1; 0 if the table is lost, or -1. */
extern int shadow_take_written (struct shadow *, uint64_t host);
/* Sets the COPIED flags in all entries of the active L1 table according to the refcounts,
 * and writes the table to a new place, *HOST, and all replaced L2 tables. */
extern int shadow_write_l1 (struct shadow *, struct be64 *l1, uint64_t n,
                            uint64_t *host);
/* Allocates N (> 0) contiguous clusters, as shadow_take does, that read as zeros: holes
 * past the end of a file, or written zeros on other storage. */
extern int shadow_take_zeros (struct shadow *, uint64_t n, uint64_t *host);
/* Writes BYTES (> 0) to a new place, *HOST. */
extern int shadow_write (struct shadow *, const void *, uint64_t bytes,
                         uint64_t *host);

/* --- the switch (shadowend.c) --- */

struct shadow_header {
  uint64_t size;                /* of the disk */
  uint64_t l1_offset, snapshots_offset;
  uint32_t l1_entries, nr_snapshots;
  uint32_t nr_bitmaps;          /* 0: there are none */
  uint64_t bitmaps_offset, bitmaps_bytes;       /* their directory */
  unsigned version;
  unsigned refcount_order;      /* (version 2: 4) */
  bool lazy_refcounts, data_file_raw;   /* features (version 3) */
  const char *data_file;        /* another name; "": none; NULL: as it is */
};

/* Has the header enough space for this?  -1: no (reported). */
extern int shadow_check_version (const struct image *, unsigned version);

/* Gets the current fields of the header. */
extern void shadow_get_header (const struct shadow *, struct shadow_header *);
/* The switch: makes all changes visible, durably.  -1: the image is unchanged, or its
 * health has failed, because it is unknown whether it is. */
extern int shadow_commit (struct shadow *, const struct shadow_header *);
/* After that: frees space in the file, if no reader uses the image as it was before; or
 * the allocator, if there is one, gets what is free (see disk_change). */
extern void shadow_release (struct shadow *, struct alloc *);

#endif /* QCOW2_SHADOW_H */
