/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which persistent bitmaps does an image have?  See bitmapdir.c.
 */

#ifndef QCOW2_BITMAPDIR_H
#define QCOW2_BITMAPDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/format.h"
#include "format/header.h"
#include "format/overlap.h"

/* A bitmap that must record each change of the disk: `auto', and valid. */
struct bitmapdir_entry {
  uint64_t at;                  /* offset of its directory entry in the file, bytes */
  uint64_t table;               /* host offset of its table */
  uint64_t table_entries;
  uint64_t bits;                /* one for each 2^granularity_bits guest bytes */
  unsigned granularity_bits;
};

/* Any bitmap. */
struct bitmapdir_any {
  char *name;                   /* as in the file, up to a NUL */
  uint32_t flags;               /* as in the file when it was read */
  size_t follower;              /* index in entries; SIZE_MAX: not in there */
  struct bitmapdir_entry e;
};

struct bitmapdir {
  struct bitmapdir_entry *entries;
  size_t n;
  uint64_t recorded;            /* bytes of memory that all of them may need */
  struct bitmapdir_any *all;    /* in the order of the file */
  size_t nr_all;
};

/* The tables are read to find all clusters of bitmaps.  A hostile directory in a sparse
 * file could name 64 Ki tables of 8 MiB.  This limit, for the entries of all tables
 * together, is enough for one bitmap of the maximum size with the smallest clusters. */
#define BITMAPDIR_MAX_ENTRIES (UINT64_C (1) << 20)

/* Size in bytes of the text that says why bitmaps cannot be kept correct. */
#define BITMAPDIR_WHY 256

/* Reads and checks the directory and all tables of an image that has bitmaps.  Registers
 * the clusters of all of them with OVERLAP (which must already contain all other
 * metadata).  *DIR receives all bitmaps, and in `entries' those that must record changes.
 * Returns 0; or 1 if the bitmaps cannot be kept correct while the disk changes, and WHY
 * says why; or -1 on an error (reported).  After 0, free DIR with bitmapdir_free. */
extern int bitmapdir_read (struct storage *, const struct header *,
                           struct overlap *, struct bitmapdir *dir,
                           char why[BITMAPDIR_WHY]);
extern void bitmapdir_free (struct bitmapdir *);

/* May bitmaps that need so many bytes of memory together record changes? */
static inline bool
bitmapdir_can_record (uint64_t bytes)
{
  return bytes <= QCOW2_MAX_BITMAP_BYTES;
}

/* The same, but with OVERLAP NULL it checks only the directory, and no tables; and it
 * reports what cannot be kept correct.  Returns 0, or -1 (reported; errno EINVAL if the
 * bitmaps are invalid).  After 0, free DIR with bitmapdir_free. */
extern int bitmapdir_list (struct storage *, const struct header *, struct overlap *,
                           struct bitmapdir *);

/* Reads the table of a bitmap into a new array.  NULL on error (reported). */
extern uint64_t *bitmapdir_read_table (struct storage *, const struct bitmapdir_entry *);

/* Marks the bitmaps of DIR in the file as in use, or as not in use.  Does not sync.  -1:
 * reported; some marks may have been written. */
extern int bitmapdir_set_in_use (const struct bitmapdir *, struct storage *,
                                 bool in_use);

#endif /* QCOW2_BITMAPDIR_H */
