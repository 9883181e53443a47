/* SPDX-License-Identifier: BSD-3-Clause
 *
 * In which order do changed refcounts reach the file?
 *
 * Specification: "Host cluster management".
 *
 *    1  copy what has changed, under the lock
 *    2  write the copies (new blocks and a new table among them)
 *    if there are new blocks or a new table:
 *    3  sync: they are durable before anything points to them
 *    4  a new table: switch to it, by one write of 12 bytes in the header
 *       else: write the table entries of the new blocks
 *
 * The caller then syncs, which makes the counts durable (R1).  No other code writes
 * refcount blocks, so an older copy never overwrites a newer one.  A block stays in
 * memory while a copy of it is being written; changes made in the meantime are written
 * the next time.
 *
 * The order of the table entries matters, too.  A new block is itself counted by a block:
 * an old one, itself, or another new one.  In the last case its entry may become durable
 * only after the entry of that other block, or a crash in between would leave a block
 * that is in use with a count of 0.  So entries are written in rounds, with a sync
 * between them: first those of blocks that are counted by old blocks or by themselves,
 * and so on.  Blocks are laid out in ascending order at or before the first cluster that
 * they count, so each round finds some; a second round is rare unless clusters are tiny.
 * The switch to a new table is atomic and needs no rounds.
 *
 * On failure everything is dirty again (R9: after ENOSPC or ENOMEM, the caller can try
 * again).  Writing the same block once more is harmless.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "image/headerwrite.h"
#include "space/refcount-impl.h"

/* Buffers per write; the host accepts up to 1024. */
#define MAX_IOV 512

/* The changed bytes of a block. */
struct piece {
  struct refblock *block;
  uint64_t offset;              /* of the block in the file */
  size_t lo, hi;
  const unsigned char *copy;
};

struct batch {
  struct piece *pieces;         /* sorted by offset */
  size_t n;
  struct piece **fresh;         /* pieces whose block no table entry names, by index */
  size_t nfresh;
  unsigned char *bytes;         /* the copies of all pieces */
  struct be64 *entries;         /* NFRESH of them */
  bool *ready;                  /* NFRESH of them */

  struct be64 *table;           /* a new table, or NULL */
  uint64_t table_offset, table_clusters;
};

static void
free_batch (struct batch *t)
{
  free (t->pieces);
  free (t->fresh);
  free (t->bytes);
  free (t->entries);
  free (t->ready);
  free (t->table);
}

static int
compare_offset (const void *a, const void *b)
{
  const struct piece *x = a, *y = b;

  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int
compare_index (const void *a, const void *b)
{
  const struct piece *x = *(struct piece * const *) a;
  const struct piece *y = *(struct piece * const *) b;

  return x->block->index < y->block->index ? -1
    : x->block->index > y->block->index;
}

/* Allocates all memory that may be needed later, so that memory cannot run out half way.
 * The caller holds the lock. */
static int
prepare_batch (struct refcounts *r, struct batch *t)
{
  size_t total = 0;

  for (struct refblock *b = r->cache.busy.next; b != &r->cache.busy;
       b = b->next) {
    t->n++;
    t->nfresh += b->fresh;
    total += b->dirty_hi - b->dirty_lo;
  }
  /* One more of each, so that no size is 0. */
  t->pieces = calloc (t->n + 1, sizeof *t->pieces);
  t->fresh = calloc (t->nfresh + 1, sizeof *t->fresh);
  t->bytes = malloc (total + 1);
  t->entries = calloc (t->nfresh + 1, sizeof *t->entries);
  t->ready = calloc (t->nfresh + 1, sizeof *t->ready);
  if (r->new_offset != 0)
    t->table = malloc (r->new_clusters << r->cluster_bits);
  if (t->pieces && t->fresh && t->bytes && t->entries && t->ready &&
      (t->table || r->new_offset == 0))
    return 0;
  report_error ("%s: no memory to write refcounts: %m",
                storage_path (r->file));
  return -1;
}

/* Step 1.  The caller holds the lock. */
static void
take_batch (struct refcounts *r, struct batch *t)
{
  unsigned char *copy = t->bytes;
  struct piece *p = t->pieces;
  size_t nfresh = 0;

  for (struct refblock *b = r->cache.busy.next; b != &r->cache.busy;
       b = b->next, p++) {
    p->block = b;
    p->offset = r->table[b->index];
    refblock_write_begin (b, &p->lo, &p->hi);
    memcpy (copy, b->raw + p->lo, p->hi - p->lo);
    p->copy = copy;
    copy += p->hi - p->lo;
  }
  qsort (t->pieces, t->n, sizeof *t->pieces, compare_offset);
  for (size_t i = 0; i < t->n; i++)
    if (t->pieces[i].block->fresh)
      t->fresh[nfresh++] = &t->pieces[i];
  qsort (t->fresh, nfresh, sizeof *t->fresh, compare_index);

  if (t->table) {
    t->table_offset = r->new_offset;
    t->table_clusters = r->new_clusters;
    assert (r->entries * 8 == t->table_clusters << r->cluster_bits);
    for (uint64_t i = 0; i < r->entries; i++)
      t->table[i] = put64 (r->table[i]);
  }
}

/* Step 2. */
static int
write_pieces (struct refcounts *r, struct batch *t)
{
  struct iovec iov[MAX_IOV];
  uint64_t start, end;
  int niov;

  for (size_t i = 0; i < t->n; ) {
    start = end = t->pieces[i].offset + t->pieces[i].lo;
    for (niov = 0; i < t->n && niov < MAX_IOV; niov++, i++) {
      const struct piece *p = &t->pieces[i];

      if (p->offset + p->lo != end)
        break;
      iov[niov].iov_base = (void *) p->copy;
      iov[niov].iov_len = p->hi - p->lo;
      end += p->hi - p->lo;
    }
    if (storage_writev (r->file, iov, niov, start, STORAGE_IN_PLACE) == -1)
      return -1;
  }
  if (t->table)
    return storage_write (r->file, t->table,
                          t->table_clusters << r->cluster_bits,
                          t->table_offset);
  return 0;
}

/* Step 4 with a new table. */
static int
switch_table (struct refcounts *r, struct batch *t,
              struct refcount_moved *moved)
{
  if (headerwrite_reftable (r->file, t->table_offset, t->table_clusters) == -1)
    return -1;

  LOCK_FOR_BLOCK (&r->lock);
  moved->first = r->header->reftable_offset >> r->cluster_bits;
  moved->n = r->header->reftable_clusters;
  r->header->reftable_offset = t->table_offset;
  r->header->reftable_clusters = t->table_clusters;
  if (r->new_offset == t->table_offset)
    r->new_offset = r->new_clusters = 0;
  for (size_t i = 0; i < t->nfresh; i++)
    t->fresh[i]->block->fresh = false;
  return 0;
}

/* Chooses the new blocks whose entries may be written now, and returns their number.  A
 * block that counts one of these, but is not one of them, is older: the table in the file
 * names it. */
static size_t
choose_ready (struct refcounts *r, struct batch *t)
{
  size_t n = 0;
  LOCK_FOR_BLOCK (&r->lock);

  for (size_t i = 0; i < t->nfresh; i++) {
    struct refblock *b = t->fresh[i]->block, *counts_it;

    counts_it = refblock_cache_find (&r->cache,
                                     t->fresh[i]->offset >> r->cluster_bits
                                     >> r->block_bits);
    t->ready[i] = b->fresh &&
      (counts_it == NULL || counts_it == b || !counts_it->fresh);
    n += t->ready[i];
  }
  return n;
}

/* Step 4 with the old table. */
static int
write_entries (struct refcounts *r, struct batch *t)
{
  /* No other code changes where the table is. */
  const uint64_t table = r->header->reftable_offset;
  size_t left = t->nfresh;

  while (left > 0) {
    size_t n = choose_ready (r, t);

    assert (n > 0);
    for (size_t i = 0; i < t->nfresh; ) {
      uint64_t first;
      size_t run = 0;

      if (!t->ready[i]) {
        i++;
        continue;
      }
      first = t->fresh[i]->block->index;
      for (; i < t->nfresh && t->ready[i] &&
             t->fresh[i]->block->index == first + run; i++)
        t->entries[run++] = put64 (t->fresh[i]->offset);
      if (storage_write (r->file, t->entries, run * sizeof *t->entries,
                         table + first * sizeof *t->entries) == -1)
        return -1;
    }
    {
      LOCK_FOR_BLOCK (&r->lock);
      for (size_t i = 0; i < t->nfresh; i++)
        if (t->ready[i])
          t->fresh[i]->block->fresh = false;
    }
    left -= n;
    if (left > 0 && storage_sync (r->file) == -1)
      return -1;
  }
  return 0;
}

static int
write_batch (struct refcounts *r, struct batch *t,
             struct refcount_moved *moved)
{
  if (write_pieces (r, t) == -1)
    return -1;
  if (t->nfresh == 0 && t->table == NULL)
    return 0;
  if (storage_sync (r->file) == -1)
    return -1;
  return t->table ? switch_table (r, t, moved) : write_entries (r, t);
}

bool
refcount_is_dirty (struct refcounts *r)
{
  LOCK_FOR_BLOCK (&r->lock);
  return r->cache.busy.next != &r->cache.busy || r->new_offset != 0;
}

int
refcount_write (struct refcounts *r, struct refcount_moved *moved)
{
  struct batch t = { 0 };
  bool published_perhaps;
  int res;

  moved->first = moved->n = 0;
  {
    LOCK_FOR_BLOCK (&r->lock);
    assert (!r->writing);
    res = prepare_batch (r, &t);
    if (res == 0) {
      take_batch (r, &t);
      r->writing = true;
      r->writing_table = t.table_offset;
    }
  }
  if (res == -1) {
    KEEP_ERRNO_FOR_BLOCK;
    free_batch (&t);
    return -1;
  }

  res = write_batch (r, &t, moved);
  /* If the header could not be written, its contents are unknown.  Nothing else will be
   * written then; but no other place may be taken for free. */
  published_perhaps = res == -1 && !storage_may_try_again (errno);
  KEEP_ERRNO_FOR_BLOCK;
  {
    LOCK_FOR_BLOCK (&r->lock);
    for (size_t i = 0; i < t.n; i++)
      refblock_write_end (&r->cache, t.pieces[i].block, t.pieces[i].lo,
                          t.pieces[i].hi, res == 0);
    r->writing = false;
    if (!published_perhaps)
      r->writing_table = 0;
    /* The table has grown once more in the meantime, so this place is not needed. */
    if (res == -1 && !published_perhaps && t.table && r->new_offset != t.table_offset)
      refcount_abandon_table (r, t.table_offset, t.table_clusters);
  }
  free_batch (&t);
  return res;
}
