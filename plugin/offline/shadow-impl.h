/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What shadow.c, shadowtab.c and shadowend.c share.  No other file includes this.
 */

#ifndef QCOW2_SHADOW_IMPL_H
#define QCOW2_SHADOW_IMPL_H

#include "offline/shadow.h"

#define SHADOW_MAX_BLOCKS (QCOW2_MAX_REFTABLE_BYTES / sizeof (struct be64))

/* L2 tables that are written with one call. */
#define SHADOW_BATCH (UINT64_C (1) << 20)

/* A refcount block in memory.  NOW: NULL if it was not needed yet.  WAS: what is in the
 * file, if that is something else. */
struct shadow_block {
  unsigned char *now, *was;
};

struct shadow {
  const struct image *image;
  const struct header *h;       /* the image's */
  struct storage *file;        /* likewise */
  bool discard;
  uint64_t file_size;           /* as it was */
  unsigned block_bits;          /* log2 of the clusters that a block counts */
  uint64_t max_count;

  struct be64 *table;           /* the refcount table in the file */
  uint64_t table_entries;
  struct shadow_block *blocks;  /* SHADOW_MAX_BLOCKS */
  uint64_t known;               /* one past the last index that is in memory */
  uint64_t changed;             /* how many have WAS */
  uint64_t memory;              /* bytes that blocks take */
  uint64_t cursor;              /* clusters before it are not looked at for space */
  uint64_t end_cursor;          /* the same, for space behind the end of the file */
  bool switching;               /* the header may have been changed */

  unsigned char *batch;         /* L2 tables to be written */
  struct be64 **batch_entries;  /* the L1 entries that will name them */
  uint64_t batch_n, batch_max;
};

/* The block with that index, read if need be. */
extern int shadow_load (struct shadow *, uint64_t index);
/* It will be written anew, whether counts change or not. */
extern int shadow_touch (struct shadow *, uint64_t index);
/* As shadow_take, but nothing is taken. */
extern int shadow_find (struct shadow *, uint64_t n, uint64_t from,
                        uint64_t *first);
/* Sets the counts of free clusters to 1. */
extern int shadow_claim (struct shadow *, uint64_t first, uint64_t n);

#endif /* QCOW2_SHADOW_IMPL_H */
