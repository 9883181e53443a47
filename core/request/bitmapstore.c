/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do the bits of bitmaps get into the file?
 *
 *   write bits; a checkpoint makes them durable, and the refcounts of new clusters (R1)
 *   write the table entries that point to new clusters, sync
 *
 * Everything is written in place.  A change of a table entry is 8 bytes, so a crash
 * leaves each one old or new.  The first step can be undone.  After a later failure the
 * new clusters belong to the bitmap, and the next attempt continues from there.
 *
 * Without a log, a cell of the file gets what was recorded in addition to what it has;
 * nothing changes the disk meanwhile, and the bitmap is not trusted.  With one, memory
 * knows all of it, the cell also gets the marks of regions that are awake, and requests
 * may set bits in these: see bitmaplog.c, which also says why no step is too early.
 *
 * Locks: only the caller stores, and marks regions.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "request/bitmap-impl.h"

/* Maximum number of table entries that get clusters in one step: each step scans all of
 * these entries, and the file may be fragmented. */
#define MAX_GIVEN 4096

/* (A failed read or write of bits is not such a case: without a log bits are invalid
 * until the bitmap is settled, with one the file has too many in any case.) */
int
bitmapstore_sync (struct bitmaps *bs)
{
  if (storage_sync (bs->file) == 0)
    return 0;
  if (!storage_may_try_again (errno))
    health_fail (bs->health, "a sync failed");
  return -1;
}

int
bitmapstore_failed (struct bitmaps *bs)
{
  if (!storage_may_try_again (errno)) {
    health_fail (bs->health, "bitmaps could not be written");
    errno = EIO;
  }
  return -1;
}

bool
bitmap_has_all (const struct bitmap *b, uint64_t first, uint64_t last)
{
  for (uint64_t word = first / 64; word <= last / 64; word++)
    if (~atomic_load_explicit (&b->bits[word], memory_order_acquire) &
        word_mask (word, first, last))
      return false;
  return true;
}

/* --- the contents of a cell --- */

static bool
is_marked (const struct bitmap *b, uint64_t region)
{
  const uint8_t state = atomic_load_explicit (&b->regions[region], memory_order_relaxed);

  return state != ASLEEP && state != CLOSING;
}

void
bitmapstore_compose (const struct bitmap *b, uint64_t first, uint64_t n, uint64_t *words)
{
  const uint64_t begin = first * 64, end = min64 ((first + n) * 64, b->e->bits);
  uint64_t at, next, w;

  for (w = 0; w < n; w++)
    words[w] = atomic_load_explicit (&b->bits[first + w], memory_order_relaxed);
  for (at = begin; at < end; at = next) {
    next = min64 (((at >> b->region_bits) + 1) << b->region_bits, end);
    for (w = at / 64; is_marked (b, at >> b->region_bits) && w <= (next - 1) / 64; w++)
      words[w - first] |= word_mask (w, at, next - 1);
  }
  for (w = 0; w < n; w++)
    words[w] = htole64 (words[w]);
}

/* Merges new bits with those in the cluster at HOST. */
static int
merge (struct bitmaps *bs, const struct bitmap *b, bool new, uint64_t host,
       uint64_t first, uint64_t n, uint64_t *words)
{
  if (!new && storage_read (bs->file, words, bs->h->cluster_size, host) == -1)
    return -1;
  for (uint64_t w = 0; w < n; w++)
    words[w] |= htole64 (atomic_load_explicit (&b->bits[first + w],
                                               memory_order_relaxed));
  return 0;
}

/* Writes the cluster of entry I.  BUF is one cluster. */
static int
write_cell (struct bitmaps *bs, struct bitmap *b, uint64_t i, uint64_t *buf)
{
  const uint64_t cs = bs->h->cluster_size, host = b->table[i];
  const uint64_t first = i * (cs / 8);
  const uint64_t n = min64 (cs / 8, bitmap_words (b) - first);

  if (host == QCOW2_BITMAP_ALL_ONES)
    return 0;
  if (overlap_find (bs->overlap, host, cs) != OVERLAP_BITMAP) { /* R5 */
    errno = EUCLEAN;
    return -1;
  }
  memset (buf, 0, cs);
  if (bs->log)
    bitmapstore_compose (b, first, n, buf);
  else if (merge (bs, b, b->cells[i] == CHANGED_NEW, host, first, n, buf) == -1)
    return -1;
  return storage_write (bs->file, buf, cs, host);
}

static int
write_cells (struct bitmaps *bs, struct bitmap *b, uint64_t *buf)
{
  for (uint64_t i = 0; i < b->e->table_entries; i++)
    if (b->cells[i] != UNCHANGED && write_cell (bs, b, i, buf) == -1)
      return -1;
  return 0;
}

/* --- new clusters --- */

/* Does a cell that changes need a cluster?  With a log, it had one entry for all of its
 * bits, unless they are all set. */
static bool
lacks_cluster (const struct bitmaps *bs, const struct bitmap *b, uint64_t i)
{
  const uint64_t per_cell = bs->h->cluster_size * 8;

  return b->cells[i] == CHANGED &&
    (b->table[i] == 0 ||
     (bs->log && b->table[i] == QCOW2_BITMAP_ALL_ONES &&
      !bitmap_has_all (b, i * per_cell, min64 ((i + 1) * per_cell, b->e->bits) - 1)));
}

/* Allocates clusters for those entries of [at, at+n) that need one, as many as one run
 * contains.  Returns the number of entries that are done, or 0 on error. */
static uint64_t
give_clusters (struct bitmaps *bs, struct bitmap *b, uint64_t at, uint64_t n)
{
  const uint64_t cs = bs->h->cluster_size;
  struct alloc_run run;
  uint64_t i, wanted = 0;

  for (i = at; i < at + n; i++)
    wanted += lacks_cluster (bs, b, i);
  if (wanted == 0)
    return n;
  if (alloc_reserve (bs->alloc, wanted, &run) == -1)
    return 0;
  /* (With a log, requests set bits meanwhile: a cell that is full now lacks none.) */
  for (i = at; i < at + n && run.clusters > 0; i++)
    if (lacks_cluster (bs, b, i)) {
      /* Added one by one, because undo_allocate removes them one by one. */
      if (overlap_add (bs->overlap, run.host, cs, OVERLAP_BITMAP) == -1) {
        alloc_abort (bs->alloc, &run);
        errno = ENOMEM;
        return 0;
      }
      b->table[i] = run.host;
      b->cells[i] = CHANGED_NEW;
      run.host += cs;
      run.clusters--;
    }
  if (run.clusters > 0)
    alloc_abort (bs->alloc, &run);
  return i - at;
}

static int
allocate (struct bitmaps *bs, struct bitmap *b)
{
  uint64_t at, done;

  for (at = 0; at < b->e->table_entries; at += done) {
    done = give_clusters (bs, b, at,
                          min64 (b->e->table_entries - at, MAX_GIVEN));
    if (done == 0)
      return -1;
  }
  return 0;
}

/* R6: releases all clusters to which the table in the file does not point. */
static void
undo_allocate (struct bitmaps *bs, struct bitmap *b)
{
  for (uint64_t i = 0; i < b->e->table_entries; i++)
    if (b->cells[i] == CHANGED_NEW) {
      const struct alloc_run run = { .host = b->table[i], .clusters = 1 };

      overlap_remove (bs->overlap, run.host, bs->h->cluster_size);
      alloc_abort (bs->alloc, &run);
      b->table[i] = bs->log ? QCOW2_BITMAP_ALL_ONES : 0;
      b->cells[i] = CHANGED;
    }
}

/* The new clusters are about to be published and can no longer be undone. */
static void
adopt_cells (struct bitmap *b)
{
  for (uint64_t i = 0; i < b->e->table_entries; i++)
    if (b->cells[i] == CHANGED_NEW) {
      b->cells[i] = CHANGED;
      b->table_changed = true;
    }
}

static bool
has_new (const struct bitmap *b)
{
  for (uint64_t i = 0; i < b->e->table_entries; i++)
    if (b->cells[i] == CHANGED_NEW)
      return true;
  return false;
}

/* --- all bitmaps --- */

static int
write_table (struct bitmaps *bs, struct bitmap *b, struct be64 *buf)
{
  const uint64_t per_cluster = bs->h->cluster_size / sizeof *buf;
  uint64_t at, n, i;

  if (!b->table_changed)
    return 0;
  for (at = 0; at < b->e->table_entries; at += n) {
    n = min64 (b->e->table_entries - at, per_cluster);
    for (i = 0; i < n; i++)
      buf[i] = put64 (b->table[at + i]);
    if (storage_write (bs->file, buf, n * sizeof *buf,
                       b->e->table + at * sizeof *buf) == -1)
      return -1;
  }
  return 0;
}

/* Writes bits, and makes them and the counts of new clusters durable. */
static int
write_bits (struct bitmaps *bs, void *buf)
{
  bool new = false;
  size_t i;

  for (i = 0; i < bs->dir.n; i++)
    if (allocate (bs, &bs->list[i]) == -1)
      return -1;
  for (i = 0; i < bs->dir.n; i++) {
    if (write_cells (bs, &bs->list[i], buf) == -1)
      return -1;
    new |= has_new (&bs->list[i]);
  }
  return new || bs->log == NULL ? checkpoint_flush (bs->checkpoint) : 0;
}

/* Both the old and the new contents of a table are valid, until it is known that the file
 * has the new ones. */
static int
write_tables (struct bitmaps *bs, void *buf)
{
  bool any = false;
  size_t i;

  for (i = 0; i < bs->dir.n; i++) {
    adopt_cells (&bs->list[i]);
    any |= bs->list[i].table_changed;
  }
  for (i = 0; i < bs->dir.n; i++)
    if (write_table (bs, &bs->list[i], buf) == -1)
      return bitmapstore_failed (bs);
  if (any && bitmapstore_sync (bs) == -1)
    return -1;
  for (i = 0; i < bs->dir.n; i++)
    bs->list[i].table_changed = false;
  return 0;
}

int
bitmapstore_write (struct bitmaps *bs, void *buf)
{
  size_t i;

  if (write_bits (bs, buf) == -1) {
    const int err = errno;

    for (i = 0; i < bs->dir.n; i++)
      undo_allocate (bs, &bs->list[i]);
    errno = err;
    if (err == EUCLEAN)
      health_corrupt (bs->health, "found while storing bitmaps");
    return -1;
  }
  if (write_tables (bs, buf) == -1)
    return -1;
  /* Without a log, they are about to be forgotten. */
  for (i = 0; i < bs->dir.n; i++)
    memset ((void *) bs->list[i].cells, UNCHANGED, bs->list[i].e->table_entries);
  return 0;
}
