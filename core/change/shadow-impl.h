/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that shadow.c, shadowtab.c and shadowend.c share.  No other file includes
 * this.
 */

#ifndef QCOW2_SHADOW_IMPL_H
#define QCOW2_SHADOW_IMPL_H

#include "space/refblock.h"
#include "change/shadow.h"

#define SHADOW_MAX_BLOCKS (QCOW2_MAX_REFTABLE_BYTES / sizeof (struct be64))

/* Bytes of L2 tables that are written with one call. */
#define SHADOW_BATCH (UINT64_C (1) << 20)

/* A refcount block in memory.  NOW: the new contents, or NULL if the block was not needed
 * yet.  WAS: the contents in the file, if they differ, else NULL. */
struct shadow_block {
  unsigned char *now, *was;
};

struct shadow {
  const struct image *image;
  const struct header *h;       /* the header of the image */
  struct storage *file;        /* the file of the image */
  bool discard;
  uint64_t file_size;           /* before the change, in bytes */
  unsigned block_bits;          /* log2 of the clusters that a block covers */

  bool ahead;                   /* shadow_begin was not called: blocks have no WAS, and
                                   what is dropped is missing to the highest counts */
  const struct writable *w;     /* ahead: what changes the image */
  struct be64 *table;           /* the refcount table in the file */
  uint64_t table_entries;
  struct shadow_block *blocks;  /* an array of SHADOW_MAX_BLOCKS */
  uint64_t known;               /* one past the last index that is in memory */
  uint64_t changed;             /* the number of blocks with WAS */
  uint64_t memory;              /* bytes that the blocks in memory use */
  uint64_t cursor;              /* the search for free clusters starts here */
  uint64_t end_cursor;          /* likewise, for space past the end of the file */
  bool switching;               /* the header may have been changed */
  bool counts;                  /* refcounts change */

  unsigned char *batch;         /* L2 tables that are not written yet */
  struct be64 **batch_entries;  /* the L1 entries that will point to them */
  uint64_t batch_n, batch_max;
};

/* The place of the new refcounts, in clusters: first the table, then the blocks. */
struct shadow_place {
  uint64_t first, table_clusters, blocks;
};

/* The old place of a block in the file, in bytes; 0 if it has none. */
extern uint64_t shadow_old_place (const struct shadow *, uint64_t index);
/* Writes all refcounts with another width (1 << ORDER bits), and sets *P. */
extern int shadow_write_width (struct shadow *, unsigned order, struct shadow_place *p);

/* The index of the cluster in its block. */
static inline uint64_t
shadow_within (const struct shadow *s, uint64_t cluster)
{
  return cluster & ((UINT64_C (1) << s->block_bits) - 1);
}

/* Makes sure that block INDEX is in memory; reads it if necessary. */
extern int shadow_load (struct shadow *, uint64_t index);

static inline int
shadow_count (struct shadow *s, uint64_t cluster, uint64_t *count)
{
  const uint64_t index = cluster >> s->block_bits;

  if ((index >= s->known || s->blocks[index].now == NULL) && shadow_load (s, index) == -1)
    return -1;
  *count = refblock_get (s->blocks[index].now, s->h->refcount_order,
                         shadow_within (s, cluster));
  return 0;
}

/* Has the block written to a new place, even if none of its counts change. */
extern int shadow_touch (struct shadow *, uint64_t index);
/* Like shadow_take, but takes no clusters. */
extern int shadow_find (struct shadow *, uint64_t n, uint64_t from,
                        uint64_t *first);
/* One past the last cluster in use, now or (BEFORE) before the change.  UINT64_MAX if it
 * is not known. */
extern uint64_t shadow_end (struct shadow *, bool before);
/* Sets the refcounts of free clusters to 1. */
extern int shadow_claim (struct shadow *, uint64_t first, uint64_t n);

#endif /* QCOW2_SHADOW_IMPL_H */
