/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Refcount blocks in memory: the counts in them, and a bounded cache.  See refblock.c.
 * Only refcount.c, refgrow.c and refwrite.c use the cache.
 */

#ifndef QCOW2_REFBLOCK_H
#define QCOW2_REFBLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/bytes.h"

/* --- counts in the bytes of a block; ORDER is log2 of the bits per count --- */

/* log2 of the clusters that a block counts. */
static inline unsigned
refblock_bits (unsigned cluster_bits, unsigned order)
{
  return cluster_bits + 3 - order;
}

/* The largest count. */
static inline uint64_t
refblock_max (unsigned order)
{
  return UINT64_MAX >> (64 - (1u << order));
}

static inline uint64_t
refblock_get (const void *raw, unsigned order, uint64_t i)
{
  const unsigned char *p = raw;

  switch (order) {
  case 3:
    return p[i];
  case 4: {
    struct be16 x;
    memcpy (&x, p + i * 2, 2);
    return get16 (x);
  }
  case 5: {
    struct be32 x;
    memcpy (&x, p + i * 4, 4);
    return get32 (x);
  }
  case 6: {
    struct be64 x;
    memcpy (&x, p + i * 8, 8);
    return get64 (x);
  }
  default: {
    unsigned bits = 1u << order;
    unsigned shift = (i << order) & 7;

    return (p[(i << order) >> 3] >> shift) & ((1u << bits) - 1);
  }
  }
}

extern void refblock_set (void *raw, unsigned order, uint64_t i,
                          uint64_t value);
/* Changes the counts of [from, to) by BY, +1 or -1, up to the first one that is 0 or
 * would become too large.  Returns its index, or TO. */
extern uint64_t refblock_refer (void *raw, unsigned order, uint64_t from, uint64_t to,
                                int by);
/* Lowers each of N counts of FROM, to RAW, by as much as the one in RAW is below the
 * highest, up to the first that is too low for that.  Returns its index, or N.  (All of
 * the block: whole words of 8 bytes.) */
extern uint64_t refblock_drop_as (void *raw, const void *from, unsigned order, uint64_t n);
/* The first index in [from, to) whose count is 0, or TO if there is none. */
extern uint64_t refblock_find_zero (const void *raw, unsigned order,
                                    uint64_t from, uint64_t to);
/* One past the last index whose count is not 0, in a block of SIZE bytes. */
extern uint64_t refblock_end (const void *raw, unsigned order, size_t size);

/* --- the cache --- */

struct refblock {
  struct refblock *prev, *next;
  uint64_t index;               /* in the refcount table */
  size_t dirty_lo, dirty_hi;    /* changed bytes; empty if lo == hi */
  bool writing;                 /* a copy is being written: do not evict */
  bool fresh;                   /* no table entry in the file names it yet */
  unsigned char *raw;           /* as in the file */
};

struct refblock_cache {
  size_t size;                  /* bytes per block */
  size_t max_clean, nclean;
  uint64_t nslots;
  struct refblock **slots;      /* by index; NULL if not in memory */
  struct refblock clean;        /* list head, most recently used first */
  struct refblock busy;         /* list head: dirty or being written */
};

/* The cache keeps at most MAX_CLEAN clean blocks, and any number of dirty ones.  It has
 * no slots yet. */
extern void refblock_cache_init (struct refblock_cache *, size_t size,
                                 size_t max_clean);
extern void refblock_cache_free (struct refblock_cache *);
/* Adds slots.  Returns -1 on ENOMEM; then nothing has changed. */
extern int refblock_cache_grow (struct refblock_cache *, uint64_t nslots);

/* The block, or NULL if it is not in memory. */
extern struct refblock *refblock_cache_find (struct refblock_cache *,
                                             uint64_t index);
/* Allocates a block, filled with zeros, that is not in the cache yet.  The caller inserts
 * or frees it.  NULL: ENOMEM. */
extern struct refblock *refblock_new (const struct refblock_cache *,
                                      uint64_t index);
/* Like refblock_new, when there is no memory: the least recently used clean block leaves
 * the cache, and its memory is used.  NULL: there is no clean block. */
extern struct refblock *refblock_recycle (struct refblock_cache *,
                                          uint64_t index);
extern void refblock_free (const struct refblock_cache *, struct refblock *);
/* Inserts the block as clean.  May evict other clean blocks, never this one. */
extern void refblock_cache_insert (struct refblock_cache *,
                                   struct refblock *);
/* Removes the block and frees it, whatever its state. */
extern void refblock_cache_drop (struct refblock_cache *, struct refblock *);

/* Marks counts [from, to) as changed. */
extern void refblock_dirty (struct refblock_cache *, struct refblock *,
                            unsigned order, uint64_t from, uint64_t to);
/* A copy of the changed bytes [*lo, *hi) is about to be written ... */
extern void refblock_write_begin (struct refblock *, size_t *lo, size_t *hi);
/* ... and was written, or (!OK) these bytes are dirty again. */
extern void refblock_write_end (struct refblock_cache *, struct refblock *,
                                size_t lo, size_t hi, bool ok);

#endif /* QCOW2_REFBLOCK_H */
