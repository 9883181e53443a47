/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Replaces the bitmaps of an image by others.  See bitmapset.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_BITMAPSET_H
#define QCOW2_BITMAPSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/bitmapdir.h"
#include "change/bitmapmerge.h"
#include "change/shadow.h"

/* A bitmap that the image will have. */
struct bitmapset_item {
  const struct bitmapdir_any *old;      /* as it is now; NULL: it is new */
  const char *name;
  bool automatic;                       /* it records */
  unsigned granularity_bits;
  uint64_t bits, table_entries;
  /* It gets a new table, whose first `keep' entries are the old ones; the others are
   * about what is marked in the parts. */
  bool fresh;
  uint64_t keep;
  struct bitmapmerge_part *parts;
  size_t nr_parts;
  uint64_t table;                       /* the place of the new table */
};

struct bitmapset {
  const struct image *image;
  const struct bitmapdir *dir;          /* the present ones */
  uint64_t disk_size;                   /* bytes */
  uint64_t marked, marked_end;          /* bytes that are marked in those that record */
  bool changed;                         /* the image needs another directory */
  struct bitmapset_item *items;         /* the old ones are in the order of DIR */
  size_t n;
};

/* Begins with the bitmaps of the image, all of which are in DIR (NULL: it has none), and
 * room for MORE.  Call bitmapset_free in any case. */
extern int bitmapset_new (struct bitmapset *, const struct image *,
                          const struct bitmapdir *dir, size_t more);
extern void bitmapset_free (struct bitmapset *);

/* Reports that the change is impossible because of a bitmap, and returns -1. */
extern int bitmapset_refuse (const struct image *, const char *name, const char *why);

/* Is the bitmap marked as in use, so that its contents mean nothing? */
static inline bool
bitmapset_is_inconsistent (const struct bitmapset_item *item)
{
  return item->old && item->old->flags & QCOW2_BITMAP_IN_USE;
}

/* Sets the number of bits and of table entries. */
extern void bitmapset_measure (const struct bitmapset *, struct bitmapset_item *);

/* A bitmap as it is in the file of an image. */
extern struct bitmapmerge_part bitmapset_part (const struct image *,
                                               const struct bitmapdir_any *);
extern int bitmapset_add_part (struct bitmapset_item *, const struct bitmapmerge_part *);
/* Has the bitmap written anew, with what it contains. */
extern int bitmapset_renew (const struct bitmapset *, struct bitmapset_item *);

/* Gives all bitmaps the length that a disk of SIZE bytes needs.  Those that record say
 * that what is added as data has changed: all of it if it is PREALLOCATED, else the rest
 * of the cluster in which the disk ends. */
extern int bitmapset_resize (struct bitmapset *, uint64_t size, bool preallocated);

/* Is the change possible?  Changes nothing. */
extern int bitmapset_check (const struct bitmapset *);

/* Writes what has changed to new places, and has *SH refer to the directory. */
extern int bitmapset_write (struct bitmapset *, struct shadow *,
                            struct shadow_header *sh);

#endif /* QCOW2_BITMAPSET_H */
