/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does all metadata of an image change in one step?  See shadow.c.
 *
 * Functions that return int return 0, or -1 with errno and the error reported.  Host
 * offsets and sizes are in bytes.  One thread.
 */

#ifndef QCOW2_SHADOW_H
#define QCOW2_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "util/bytes.h"
#include "image/image.h"

struct shadow;

/* The image must outlive it.  Nobody else may use it meanwhile, it is not dirty, and all
 * its metadata, bitmaps included, are known to its overlap.  DISCARD: punch holes into
 * what is freed.  NULL: reported. */
extern struct shadow *shadow_new (const struct image *, bool discard);
/* Without a shadow_commit before, the image is as it was. */
extern void shadow_free (struct shadow *);  /* NULL is fine */

/* Something about the image is wrong: reports it, sets errno to EUCLEAN, returns -1. */
extern int shadow_corrupt (struct shadow *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

/* --- references; cluster numbers --- */

extern int shadow_count (struct shadow *, uint64_t cluster, uint64_t *count);
/* N clusters from FIRST on get one more reference, or lose one.  Drop first, then
 * add, so that no count is ever higher than before and after. */
extern int shadow_add (struct shadow *, uint64_t first, uint64_t n);
extern int shadow_drop (struct shadow *, uint64_t first, uint64_t n);
/* The same for all clusters that BYTES at HOST touch. */
extern int shadow_drop_range (struct shadow *, uint64_t host, uint64_t bytes);

/* N (> 0) clusters that follow one another and are free both before and after; they have
 * one reference now.  AT_END: behind the end of the file. */
extern int shadow_take (struct shadow *, uint64_t n, bool at_end,
                        uint64_t *host);

/* --- tables (shadowtab.c) --- */

/* Reads an L1 table of OLD entries into a new array of N >= 1 entries, the others 0.  To
 * be freed.  NULL: reported. */
extern struct be64 *shadow_read_l1 (struct shadow *, uint64_t host,
                                    uint64_t old, uint64_t n);
/* Tells the host which tables will be read: entries FIRST.. of N. */
extern void shadow_expect (struct shadow *, const struct be64 *l1,
                           uint64_t first, uint64_t n);
/* Reads the L2 table (one cluster) that an L1 entry names. */
extern int shadow_read_l2 (struct shadow *, uint64_t l1_entry,
                           struct be64 *l2);
/* What L2 entries [FROM, TO) (counted in entries, not words) name gets one more
 * reference, or loses one. */
extern int shadow_add_l2 (struct shadow *, const struct be64 *l2,
                          uint64_t from, uint64_t to);
extern int shadow_drop_l2 (struct shadow *, const struct be64 *l2,
                           uint64_t from, uint64_t to);

/* The L2 table will have a new place, which *L1_ENTRY will name after
 * shadow_write_l1.  Its old one is not touched. */
extern int shadow_replace_l2 (struct shadow *, const struct be64 *l2,
                              struct be64 *l1_entry);
/* Sets COPIED in all of the active L1's entries as the counts say, and writes it, and all
 * replaced L2 tables, to a new place, *HOST. */
extern int shadow_write_l1 (struct shadow *, struct be64 *l1, uint64_t n,
                            uint64_t *host);
/* Writes BYTES (> 0) to a new place. */
extern int shadow_write (struct shadow *, const void *, uint64_t bytes,
                         uint64_t *host);

/* --- the switch (shadowend.c) --- */

struct shadow_header {
  uint64_t size;                /* of the disk */
  uint64_t l1_offset, snapshots_offset;
  uint32_t l1_entries, nr_snapshots;
  uint64_t bitmaps_offset;      /* the new place of their directory, of the same size; 0:
                                   it stays */
};

/* Is there room in the header to move the directory of bitmaps, together with all else?
 * -1: no (reported). */
extern int shadow_check_bitmaps (const struct image *);

/* What the header says now. */
extern void shadow_get_header (const struct shadow *, struct shadow_header *);
/* Makes it all so, durably.  -1: the image is as it was, or (said in the message) nobody
 * knows.  The struct header of the image is out of date then: open it anew. */
extern int shadow_commit (struct shadow *, const struct shadow_header *);

#endif /* QCOW2_SHADOW_H */
