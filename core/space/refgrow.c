/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are more clusters made countable?
 *
 * Specification: "Host cluster management".
 *
 * Where refcount blocks are missing, refcount_extend lays out new ones, and a new table
 * if the old one is full, at the end of the countable clusters:
 *
 *    place = first
 *    | new table | new blocks ... | n clusters that are countable now ...
 *    |<-------- used ------------>|
 *
 * or in clusters that were countable before and that the caller has claimed:
 *
 *    place                              first
 *    | new table | new blocks ... | ... | n clusters that are countable now ...
 *
 * These clusters have counts themselves, in existing blocks or in the new ones.  All of
 * this happens in memory; refwrite.c writes it to the file in a safe order.
 *
 * Locks: those of refcount.c; each function holds the lock throughout.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "util/sparse.h"
#include "space/refcount-impl.h"
#include "space/reflayout.h"

/* What refcount_extend is about to create. */
struct layout {
  uint64_t place;               /* cluster */
  uint64_t table_clusters;      /* of a new table; 0: the old one is long enough */
  uint64_t entries;             /* of the table afterwards */
  uint64_t blocks;              /* number of new ones */
  uint64_t region, last;        /* table entries that must have blocks */
};

static bool
has_block (const void *opaque, uint64_t index)
{
  const struct refcounts *r = opaque;

  return index < r->entries && r->table[index] != 0;
}

/* A table that has to grow becomes at least twice as long. */
static int
plan (struct refcounts *r, uint64_t place, uint64_t first, uint64_t n,
      struct layout *l)
{
  const uint64_t per_cluster = (UINT64_C (1) << r->cluster_bits) / 8;
  const struct reflayout layout = {
    .cluster_bits = r->cluster_bits, .block_bits = r->block_bits,
    .first = first, .n = n, .apart = place != first,
    .has_block = has_block, .opaque = r,
    .entries = r->entries, .min_table = 2 * (r->entries / per_cluster),
  };
  struct reflayout_size size;

  if (reflayout_find (&layout, &size) == -1) {
    report_debug ("%s: the file cannot grow to %" PRIu64 " clusters: %s",
                  storage_path (r->file), first + n, errno == EFBIG
                  ? "offsets would exceed the limit of the format"
                  : "the refcount table has its maximum size");
    errno = ENOSPC;
    return -1;
  }
  *l = (struct layout) {
    .place = place, .table_clusters = size.table,
    .entries = max64 (r->entries, size.table * per_cluster),
    .blocks = size.blocks, .region = first >> r->block_bits, .last = size.last,
  };
  return 0;
}

/* R5: the place of the new metadata must contain no other metadata. */
static int
register_metadata (struct refcounts *r, const struct layout *l)
{
  const unsigned bits = r->cluster_bits;
  const uint64_t offset = l->place << bits;
  const uint64_t table = l->table_clusters << bits;
  const uint64_t blocks = l->blocks << bits;
  const enum overlap_kind kind =
    overlap_find (r->overlap, offset, table + blocks);

  if (l->place == 0 || kind != OVERLAP_NONE)
    return report_refusal (EUCLEAN, "%s: corrupt refcounts: new refcount blocks at %"
                           PRIu64 " would overwrite the %s", storage_path (r->file),
                           offset, overlap_name (l->place == 0 ? OVERLAP_HEADER : kind));
  if ((table > 0 &&
       overlap_add (r->overlap, offset, table, OVERLAP_REFTABLE) == -1) ||
      (blocks > 0 && overlap_add (r->overlap, offset + table, blocks,
                                  OVERLAP_REFBLOCK) == -1)) {
    KEEP_ERRNO_FOR_BLOCK;

    overlap_remove (r->overlap, offset, table + blocks);
    return -1;
  }
  return 0;
}

/* Puts zeroed blocks into the gaps of the table, in the order of the file.  On failure
 * the caller calls remove_blocks. */
static int
insert_blocks (struct refcounts *r, const struct layout *l)
{
  const uint64_t per_block = UINT64_C (1) << r->block_bits;
  uint64_t at = (l->place + l->table_clusters) << r->cluster_bits;

  for (uint64_t i = l->region; i <= l->last; i++) {
    struct refblock *b;

    if (r->table[i] != 0)
      continue;
    b = refblock_new (&r->cache, i);
    if (b == NULL) {
      report_error ("calloc: %m");
      return -1;
    }
    r->table[i] = at;
    at += UINT64_C (1) << r->cluster_bits;
    b->fresh = true;
    refblock_cache_insert (&r->cache, b);
    refblock_dirty (&r->cache, b, r->order, 0, per_block);
  }
  return 0;
}

/* Removes only the blocks that insert_blocks has added before it failed: the table of a
 * forged image may name other blocks behind them. */
static void
remove_blocks (struct refcounts *r, const struct layout *l)
{
  uint64_t at = (l->place + l->table_clusters) << r->cluster_bits;

  for (uint64_t i = l->region; i <= l->last; i++)
    if (r->table[i] == at) {
      refblock_cache_drop (&r->cache, refblock_cache_find (&r->cache, i));
      r->table[i] = 0;
      at += UINT64_C (1) << r->cluster_bits;
    }
}

/* Makes the arrays longer.  This is not undone on failure: r->entries says how much of
 * them is in use. */
static int
grow_arrays (struct refcounts *r, uint64_t entries)
{
  uint64_t *table;

  if (entries <= r->entries)
    return 0;
  if (entries > r->room) {
    table = sparse_grow (r->table, r->room * sizeof *table, entries * sizeof *table);
    if (table == NULL)
      goto nomem;
    r->table = table;
    r->room = entries;
  }
  if (refblock_cache_grow (&r->cache, entries) == 0)
    return 0;

 nomem:
  report_error ("refcount table of %" PRIu64 " entries: %m", entries);
  return -1;
}

int
refcount_extend_cost (struct refcounts *r, uint64_t place, uint64_t first,
                      uint64_t n, uint64_t *used)
{
  struct layout l;
  LOCK_FOR_BLOCK (&r->lock);

  *used = 0;
  if (n == 0)
    return 0;
  if (plan (r, place, first, n, &l) == -1)
    return -1;
  *used = l.table_clusters + l.blocks;
  return 0;
}

int
refcount_extend (struct refcounts *r, uint64_t place, uint64_t first,
                 uint64_t n, uint64_t *used)
{
  uint64_t old_entries, all;
  struct layout l;
  LOCK_FOR_BLOCK (&r->lock);

  *used = 0;
  if (n == 0)
    return 0;
  if (plan (r, place, first, n, &l) == -1)
    return -1;
  all = l.table_clusters + l.blocks;
  if (all == 0)
    return 0;
  if (grow_arrays (r, l.entries) == -1 || register_metadata (r, &l) == -1)
    return -1;
  old_entries = r->entries;
  r->entries = l.entries;
  if (insert_blocks (r, &l) == -1 ||
      (place == first && refcount_change (r, first, all, REFCOUNT_CLAIM) == -1)) {
    KEEP_ERRNO_FOR_BLOCK;
    remove_blocks (r, &l);
    r->entries = old_entries;
    overlap_remove (r->overlap, place << r->cluster_bits,
                    all << r->cluster_bits);
    return -1;
  }

  if (l.table_clusters > 0) {
    /* An earlier place that was never published is no longer needed.  If it is being
     * written right now, refcount_write publishes it or gives it up. */
    if (r->new_offset != 0 && r->new_offset != r->writing_table)
      refcount_abandon_table (r, r->new_offset, r->new_clusters);
    r->new_offset = place << r->cluster_bits;
    r->new_clusters = l.table_clusters;
  }
  *used = all;
  return 0;
}
