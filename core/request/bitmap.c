/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do persistent bitmaps record the changes of the disk?
 *
 * Specification: "Dirty tracking bitmaps".
 *
 * While the disk changes, the record stays in memory: one bit for each piece of
 * 2^granularity guest bytes that has changed since the bitmaps were last stored.
 * Meanwhile the bitmaps are marked as in use in the file, so that after a crash no
 * program trusts them.  When the last writer has left, the bits are merged into those in
 * the file.
 *
 *   settled     in use: no      nothing is recorded, no memory is held
 *      |        the first bitmap_record: set in use, sync
 *   recording   in use: yes     requests set bits, without a lock
 *      |        bitmap_store, while nothing changes the disk:
 *      |          write what was recorded (bitmapstore.c)
 *      |          clear in use, sync
 *   settled
 *
 * If they have to survive a crash, they are never marked as in use: a log keeps those in
 * the file right at any moment (bitmaplog.c).
 *
 * The flag is 4 bytes of the directory, written in place, so a crash between any two
 * steps leaves either a bitmap that is in use, in which each table entry is old or new,
 * or one that is settled and complete.  The header does not change.
 *
 * Changes of the disk do not make a bitmap wrong that is not `auto'.  Such bitmaps are
 * never marked as in use, and survive a crash.
 *
 * Memory: 1 bit per piece, at most what bitmapdir.c accepts, and only where bits are set
 * (the host provides zeroed pages when they are first written).
 *
 * bitmap_freeze, which reads the contents of a bitmap, reads up to 512M of bits without
 * the lock.  This is safe because bits are only ever added: of everything that was
 * recorded before bitmap_freeze took the lock, memory has what the file does not have.
 * With a log, memory has all.
 *
 * Locks: `lock' guards the transitions; it is held during their I/O, as nothing else can
 * proceed then.  The bits are atomic; while they are stored, no other thread changes
 * them.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/format.h"
#include "request/bitmap-impl.h"

/* --- opening --- */

static const char *
name_of (const void *all, size_t i)
{
  return ((const struct bitmapdir_any *) all)[i].name;
}

int
bitmap_open (struct storage *file, const struct header *h,
             struct overlap *overlap, struct bitmaps **ret,
             char why[BITMAPDIR_WHY])
{
  struct bitmaps *bs = memory_new (1, sizeof *bs);
  int r;

  if (bs == NULL)
    return -1;
  r = bitmapdir_read (file, h, overlap, &bs->dir, why);
  if (r != 0) {
    free (bs);
    return r;
  }
  bs->list = memory_new (bs->dir.n + 1, sizeof *bs->list);
  if (bs->list)
    bs->names = names_new (bs->dir.nr_all, name_of, bs->dir.all);
  if (bs->names == NULL) {
    free (bs->list);
    bitmapdir_free (&bs->dir);
    free (bs);
    return -1;
  }
  for (size_t i = 0; i < bs->dir.n; i++)
    bs->list[i].e = &bs->dir.entries[i];
  bs->file = file;
  bs->h = h;
  bs->overlap = overlap;
  pthread_mutex_init (&bs->lock, NULL);
  *ret = bs;
  return 0;
}

/* > 0 when changes are recorded: an empty disk cannot change. */
static size_t
bytes_of_bits (const struct bitmap *b)
{
  return bitmap_words (b) * sizeof *b->bits;
}

static void
free_bits (struct bitmap *b)
{
  sparse_free ((void *) b->bits, bytes_of_bits (b));
  free ((void *) b->cells);
  bitmaplog_free_bits (b);
  b->bits = NULL;
  b->cells = NULL;
}

void
bitmap_close (struct bitmaps *bs)
{
  if (bs == NULL)
    return;
  for (size_t i = 0; i < bs->dir.n; i++) {
    free (bs->list[i].table);
    free_bits (&bs->list[i]);
  }
  free (bs->list);
  bitmaplog_free (bs->log);
  names_free (bs->names);
  bitmapdir_free (&bs->dir);
  pthread_mutex_destroy (&bs->lock);
  free (bs);
}

/* A cluster that is written in place must have exactly one reference. */
static int
check_counts (struct bitmaps *bs, uint64_t offset, uint64_t bytes)
{
  const unsigned bits = bs->h->cluster_bits;
  uint64_t c, count;

  for (c = offset >> bits; c <= (offset + bytes - 1) >> bits; c++) {
    if (refcount_get (bs->refcounts, c, &count) == -1)
      return -1;
    if (count != 1)
      return report_refusal (EIO, "%s: corrupt refcounts: the cluster at %" PRIu64 " of "
                             "a bitmap has %" PRIu64 " references, not 1",
                             storage_path (bs->file), c << bits, count);
  }
  return 0;
}

/* Only the caller sets b->table, but bitmap_freeze may read it at the same time. */
static int
load_table (struct bitmaps *bs, struct bitmap *b)
{
  const uint64_t n = b->e->table_entries;
  CLEANUP_FREE uint64_t *table = bitmapdir_read_table (bs->file, b->e);

  if (table == NULL || check_counts (bs, b->e->table, n * sizeof *table) == -1)
    return -1;
  for (uint64_t i = 0; i < n; i++)
    if (table[i] > QCOW2_BITMAP_ALL_ONES &&
        check_counts (bs, table[i], bs->h->cluster_size) == -1)
      return -1;
  LOCK_FOR_BLOCK (&bs->lock);
  b->table = table;
  table = NULL;                 /* B owns it now */
  return 0;
}

int
bitmap_start (struct bitmaps *bs, struct refcounts *refcounts,
              struct alloc *alloc, struct checkpoint *checkpoint,
              struct health *health, bool durable)
{
  if (durable && bs->log == NULL && (bs->log = bitmaplog_new (bs)) == NULL)
    return -1;
  bs->refcounts = refcounts;
  bs->alloc = alloc;
  bs->checkpoint = checkpoint;
  bs->health = health;
  for (size_t i = 0; i < bs->dir.n; i++)
    if (bs->list[i].table == NULL && load_table (bs, &bs->list[i]) == -1)
      return -1;
  return 0;
}

/* --- recording --- */

/* The change is durable on return. */
static int
set_in_use (struct bitmaps *bs, bool in_use)
{
  if (bitmapdir_set_in_use (&bs->dir, bs->file, in_use) == -1)
    return bitmapstore_failed (bs);
  return bitmapstore_sync (bs);
}

static int
make_room (struct bitmap *b)
{
  if (b->bits == NULL)
    b->bits = sparse_new (bytes_of_bits (b));
  if (b->cells == NULL)
    b->cells = calloc (b->e->table_entries, sizeof *b->cells);
  if (b->bits != NULL && b->cells != NULL)
    return 0;
  return report_refusal (ENOMEM, "calloc: %m");
}

/* Starts recording, at the first change after everything was settled. */
static int
begin_recording (struct bitmaps *bs)
{
  LOCK_FOR_BLOCK (&bs->lock);

  if (bs->recording)
    return 0;
  if (health_check (bs->health) == -1)
    return -1;
  for (size_t i = 0; i < bs->dir.n; i++)
    if (make_room (&bs->list[i]) == -1)
      return -1;
  if (bs->log && bitmaplog_begin (bs) == -1)
    return -1;
  bs->unsettled = true;
  if (bs->log == NULL && set_in_use (bs, true) == -1)
    return -1;
  atomic_store_explicit (&bs->recording, true, memory_order_release);
  return 0;
}

/* Bits that are already set are not written again, so that writers of the same piece do
 * not compete for the cache line.  A thread that sees a bit set also sees that its cell
 * has changed: bitmap_freeze reads only changed cells, perhaps while another request sets
 * the same bits. */
static void
set_bits (struct bitmap *b, unsigned cell_bits, uint64_t first, uint64_t last)
{
  for (uint64_t word = first / 64; word <= last / 64; word++) {
    const uint64_t mask = word_mask (word, first, last);

    if ((atomic_load_explicit (&b->bits[word],
                               memory_order_acquire) & mask) == mask)
      continue;
    if (atomic_load_explicit (&b->cells[word * 64 >> cell_bits],
                              memory_order_relaxed) == UNCHANGED)
      atomic_store_explicit (&b->cells[word * 64 >> cell_bits], CHANGED,
                             memory_order_relaxed);
    atomic_fetch_or_explicit (&b->bits[word], mask, memory_order_release);
  }
}

int
bitmap_record (struct bitmaps *bs, uint64_t offset, uint64_t count)
{
  if (bs == NULL || bs->dir.n == 0 || count == 0)
    return 0;
  if (!atomic_load_explicit (&bs->recording, memory_order_acquire) &&
      begin_recording (bs) == -1)
    return -1;
  if (bs->log)
    return bitmaplog_record (bs, offset, count);
  for (size_t i = 0; i < bs->dir.n; i++) {
    struct bitmap *b = &bs->list[i];

    /* A cluster contains 8 bits per byte. */
    set_bits (b, bs->h->cluster_bits + 3, offset >> b->e->granularity_bits,
              (offset + count - 1) >> b->e->granularity_bits);
  }
  return 0;
}

/* --- storing: with the lock held, and nothing changes the disk --- */

int
bitmap_store (struct bitmaps *bs)
{
  CLEANUP_FREE void *buf = NULL;

  if (bs == NULL)
    return 0;
  LOCK_FOR_BLOCK (&bs->lock);

  if (!bs->unsettled)
    return 0;
  buf = memory_get (bs->h->cluster_size);
  if (buf == NULL)
    return -1;
  if (bs->recording && bs->log)
    bitmaplog_end (bs);
  if (bs->recording && bitmapstore_write (bs, buf) == -1)
    return -1;

  /* The contents of the file are now right.  The next change starts a new record, even if
   * the rest fails halfway. */
  bs->recording = false;
  for (size_t i = 0; i < bs->dir.n; i++)
    free_bits (&bs->list[i]);
  if (bs->log == NULL && set_in_use (bs, false) == -1)
    return -1;
  bs->unsettled = false;
  return 0;
}

bool
bitmap_is_unsettled (struct bitmaps *bs)
{
  if (bs == NULL)
    return false;
  LOCK_FOR_BLOCK (&bs->lock);
  return bs->unsettled;
}

/* --- reading --- */

size_t
bitmap_count (const struct bitmaps *bs)
{
  return bs ? bs->dir.nr_all : 0;
}

size_t
bitmap_find (const struct bitmaps *bs, const char *name)
{
  return bs ? names_find (bs->names, name) : SIZE_MAX;
}

const struct bitmapdir_any *
bitmap_get (const struct bitmaps *bs, size_t i)
{
  return &bs->dir.all[i];
}

const struct bitmapdir *
bitmap_directory (const struct bitmaps *bs)
{
  return bs ? &bs->dir : NULL;
}

/* Adds the bits of one table entry, which begin at word FIRST.  BUF is one cluster. */
static int
freeze_cell (struct bitmaps *bs, struct dirtyset *set, uint64_t entry,
             uint64_t first, uint64_t words, uint64_t *buf)
{
  if (entry == 0)
    return 0;
  if (entry != QCOW2_BITMAP_ALL_ONES &&
      storage_read (bs->file, buf, words * sizeof *buf, entry) == -1)
    return -1;
  for (uint64_t w = 0; w < words; w++)
    dirtyset_mark (set, first + w, entry == QCOW2_BITMAP_ALL_ONES
                   ? UINT64_MAX : le64toh (buf[w]));
  return 0;
}

static int
freeze_cells (struct bitmaps *bs, const struct bitmapdir_entry *e,
              const uint64_t *table, struct dirtyset *set)
{
  CLEANUP_FREE uint64_t *buf = memory_get (bs->h->cluster_size);
  const uint64_t per_cell = bs->h->cluster_size / 8;
  const uint64_t words = div_up (e->bits, 64);
  uint64_t i, first;

  if (buf == NULL)
    return -1;
  for (i = 0, first = 0; first < words; i++, first += per_cell)
    if (freeze_cell (bs, set, table[i], first, min64 (per_cell, words - first),
                     buf) == -1)
      return -1;
  return 0;
}

/* Adds the bits in memory, if there are any. */
static void
freeze_memory (struct bitmaps *bs, const struct bitmap *b, struct dirtyset *set)
{
  const uint64_t per_cell = bs->h->cluster_size / 8;
  const uint64_t words = bitmap_words (b);
  uint64_t i, w;

  if (b->bits == NULL || b->cells == NULL)
    return;
  for (i = 0; i < b->e->table_entries; i++)
    if (bs->log ||
        atomic_load_explicit (&b->cells[i], memory_order_relaxed) != UNCHANGED)
      for (w = i * per_cell; w < min64 (words, (i + 1) * per_cell); w++)
        dirtyset_mark (set, w, atomic_load_explicit (&b->bits[w],
                                                     memory_order_relaxed));
}

/* A copy of the table; B is NULL if the bitmap does not record changes.  Entries of one
 * that is loaded point to complete clusters, which stay with the bitmap.  So it counts,
 * also if a writer has loaded it, and perhaps changed the one in the file, while that
 * was read.  NULL: reported. */
static uint64_t *
copy_table (struct bitmaps *bs, const struct bitmapdir_entry *e, const struct bitmap *b)
{
  uint64_t *table = bitmapdir_read_table (bs->file, e);

  LOCK_FOR_BLOCK (&bs->lock);
  if (table && b && b->table)
    memcpy (table, b->table, e->table_entries * sizeof *table);
  return table;
}

/* First the memory, then the table, then the clusters that the table names: bits that
 * move from memory to the file meanwhile are found in one of these places. */
static int
freeze (struct bitmaps *bs, const struct bitmapdir_entry *e,
        const struct bitmap *b, struct dirtyset *set)
{
  CLEANUP_FREE uint64_t *table = NULL;

  if (b) {
    LOCK_FOR_BLOCK (&bs->lock);
    freeze_memory (bs, b, set);
    if (bs->log && bs->recording)
      return 0;
  }
  table = copy_table (bs, e, b);
  return table ? freeze_cells (bs, e, table, set) : -1;
}

int
bitmap_freeze (struct bitmaps *bs, size_t i, struct dirtyset **ret)
{
  const struct bitmapdir_any *any = &bs->dir.all[i];
  const struct bitmap *b =
    any->follower != SIZE_MAX ? &bs->list[any->follower] : NULL;
  char name[PRINTABLE_SIZE (64)];
  struct dirtyset *set;

  if (any->flags & QCOW2_BITMAP_IN_USE)
    return report_refusal (ESTALE, "%s: bitmap \"%s\" is inconsistent: the program that "
                           "last recorded to it did not store it; it can only be removed",
                           storage_path (bs->file),
                           printable (any->name, 64, name, sizeof name));
  set = dirtyset_new (any->e.bits, any->e.granularity_bits);
  if (set == NULL)
    return report_refusal (ENOMEM, "calloc: %m");
  if (freeze (bs, &any->e, b, set) == -1) {
    dirtyset_free (set);
    return -1;
  }
  *ret = set;
  return 0;
}
