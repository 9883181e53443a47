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
 *      |          write bits; a checkpoint makes them durable, and the refcounts of
 *      |            new clusters (R1)
 *      |          write the table entries that point to new clusters, sync
 *      |          clear in use, sync
 *   settled
 *
 * Everything is written in place.  A change of a table entry is 8 bytes, and one of the
 * directory is 4 bytes, so a crash between any two steps leaves either a bitmap that is
 * in use, in which each table entry is old or new, or one that is settled and complete.
 * The header does not change.  The first two steps can be undone.  After a later failure
 * the new clusters belong to the bitmap, and the next attempt continues from there.
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
#include "util/names.h"
#include "util/printable.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/format.h"
#include "request/bitmap.h"

/* Maximum number of table entries that get clusters in one step: each step scans all of
 * these entries, and the file may be fragmented. */
#define MAX_GIVEN 4096

/* State of the cluster that a table entry stands for. */
enum cell {
  UNCHANGED,
  CHANGED,                      /* memory has new bits for it */
  CHANGED_NEW,                  /* the same, and the entry in the file does not point to
                                   the cluster yet */
};

struct bitmap {
  const struct bitmapdir_entry *e;
  uint64_t *table;              /* as in the file, or as it will be; changes under
                                   lock; NULL: not loaded yet */
  bool table_changed;           /* the table in the file may be older; under lock */

  /* Both are NULL while settled.  Requests write them without a lock. */
  _Atomic uint64_t *bits;       /* bit i is bit i % 64 of word i / 64 */
  _Atomic uint8_t *cells;       /* enum cell, for each table entry */
};

struct bitmaps {
  struct storage *file;
  const struct header *h;
  struct overlap *overlap;
  struct refcounts *refcounts;
  struct alloc *alloc;
  struct checkpoint *checkpoint;
  struct health *health;
  struct bitmapdir dir;
  struct names *names;          /* of dir.all */
  struct bitmap *list;          /* dir.n of them */

  /* All bitmaps are durably in use in the file, and memory is allocated.  Set under the
   * lock; a thread that sees it set also sees the memory. */
  atomic_bool recording;

  pthread_mutex_t lock;
  bool unsettled;               /* some bitmaps may be in use in the file; under lock */
};

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
  struct bitmaps *bs = calloc (1, sizeof *bs);
  int r;

  if (bs == NULL) {
    report_error ("calloc: %m");
    return -1;
  }
  r = bitmapdir_read (file, h, overlap, &bs->dir, why);
  if (r != 0) {
    free (bs);
    return r;
  }
  bs->list = calloc (bs->dir.n + 1, sizeof *bs->list);
  if (bs->list == NULL)
    report_error ("calloc: %m");
  else
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

/* > 0 for whoever records: nobody changes an empty disk. */
static size_t
bytes_of_bits (const struct bitmap *b)
{
  return div_up (b->e->bits, 64) * sizeof *b->bits;
}

static void
free_bits (struct bitmap *b)
{
  sparse_free ((void *) b->bits, bytes_of_bits (b));
  free ((void *) b->cells);
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
    if (count != 1) {
      report_error ("%s: corrupt refcounts: the cluster at %" PRIu64 " of a bitmap "
                    "has %" PRIu64 " references, not 1",
                    storage_path (bs->file), c << bits, count);
      errno = EIO;
      return -1;
    }
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
              struct health *health)
{
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

/* R9.  (A failed read or write of bits is not such a case: bits are invalid until the
 * bitmap is settled.) */
static int
sync_file (struct bitmaps *bs)
{
  if (storage_sync (bs->file) == 0)
    return 0;
  if (!storage_may_try_again (errno))
    health_fail (bs->health, "a sync failed");
  return -1;
}

/* R9: writing metadata has failed; the error has been reported. */
static int
write_failed (struct bitmaps *bs)
{
  if (!storage_may_try_again (errno)) {
    health_fail (bs->health, "bitmaps could not be written");
    errno = EIO;
  }
  return -1;
}

/* The change is durable on return. */
static int
set_in_use (struct bitmaps *bs, bool in_use)
{
  if (bitmapdir_set_in_use (&bs->dir, bs->file, in_use) == -1)
    return write_failed (bs);
  return sync_file (bs);
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
  report_error ("calloc: %m");
  errno = ENOMEM;
  return -1;
}

/* Starts recording, at the first change after everything was settled. */
static int
begin (struct bitmaps *bs)
{
  LOCK_FOR_BLOCK (&bs->lock);

  if (bs->recording)
    return 0;
  if (health_check (bs->health) == -1)
    return -1;
  for (size_t i = 0; i < bs->dir.n; i++)
    if (make_room (&bs->list[i]) == -1)
      return -1;
  bs->unsettled = true;
  if (set_in_use (bs, true) == -1)
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
  uint64_t word, mask;

  for (word = first / 64; word <= last / 64; word++) {
    mask = UINT64_MAX;
    if (word == first / 64)
      mask &= UINT64_MAX << first % 64;
    if (word == last / 64)
      mask &= UINT64_MAX >> (63 - last % 64);
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
      begin (bs) == -1)
    return -1;
  for (size_t i = 0; i < bs->dir.n; i++) {
    struct bitmap *b = &bs->list[i];

    /* A cluster contains 8 bits per byte. */
    set_bits (b, bs->h->cluster_bits + 3, offset >> b->e->granularity_bits,
              (offset + count - 1) >> b->e->granularity_bits);
  }
  return 0;
}

/* --- storing: with the lock held, and nothing changes the disk --- */

/* Allocates clusters for those entries of [at, at+n) that need one, as many as one run
 * contains.  Returns the number of entries that are done, or 0 on error. */
static uint64_t
give_clusters (struct bitmaps *bs, struct bitmap *b, uint64_t at, uint64_t n)
{
  const uint64_t cs = bs->h->cluster_size;
  struct alloc_run run;
  uint64_t i, wanted = 0;

  for (i = at; i < at + n; i++)
    wanted += b->cells[i] == CHANGED && b->table[i] == 0;
  if (wanted == 0)
    return n;
  if (alloc_reserve (bs->alloc, wanted, &run) == -1)
    return 0;
  for (i = at; run.clusters > 0; i++)
    if (b->cells[i] == CHANGED && b->table[i] == 0) {
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
      b->table[i] = 0;
      b->cells[i] = CHANGED;
    }
}

/* Merges new bits into the cluster of entry I.  BUF is one cluster. */
static int
write_cell (struct bitmaps *bs, struct bitmap *b, uint64_t i, uint64_t *buf)
{
  const uint64_t cs = bs->h->cluster_size, host = b->table[i];
  const uint64_t first = i * (cs / 8);
  const uint64_t n = min64 (cs / 8, div_up (b->e->bits, 64) - first);

  if (host == QCOW2_BITMAP_ALL_ONES)
    return 0;
  if (overlap_find (bs->overlap, host, cs) != OVERLAP_BITMAP) { /* R5 */
    errno = EUCLEAN;
    return -1;
  }
  if (b->cells[i] == CHANGED_NEW)
    memset (buf, 0, cs);
  else if (storage_read (bs->file, buf, cs, host) == -1)
    return -1;
  for (uint64_t w = 0; w < n; w++)
    buf[w] |= htole64 (atomic_load_explicit (&b->bits[first + w],
                                             memory_order_relaxed));
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

/* Writes bits and tables and makes them durable.  BUF is one cluster. */
static int
store_bits (struct bitmaps *bs, void *buf)
{
  bool tables = false;
  size_t i;
  int r = 0;

  for (i = 0; r == 0 && i < bs->dir.n; i++)
    r = allocate (bs, &bs->list[i]);
  for (i = 0; r == 0 && i < bs->dir.n; i++)
    r = write_cells (bs, &bs->list[i], buf);
  if (r == 0)
    r = checkpoint_flush (bs->checkpoint);
  if (r == -1) {
    const int err = errno;

    for (i = 0; i < bs->dir.n; i++)
      undo_allocate (bs, &bs->list[i]);
    errno = err;
    if (err == EUCLEAN)
      health_corrupt (bs->health, "found while storing bitmaps");
    return -1;
  }

  for (i = 0; i < bs->dir.n; i++) {
    adopt_cells (&bs->list[i]);
    tables |= bs->list[i].table_changed;
    if (write_table (bs, &bs->list[i], buf) == -1)
      return write_failed (bs);
  }
  return tables ? sync_file (bs) : 0;
}

int
bitmap_store (struct bitmaps *bs)
{
  CLEANUP_FREE void *buf = NULL;

  if (bs == NULL)
    return 0;
  LOCK_FOR_BLOCK (&bs->lock);

  if (!bs->unsettled)
    return 0;
  buf = malloc (bs->h->cluster_size);
  if (buf == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  if (bs->recording && store_bits (bs, buf) == -1)
    return -1;

  /* The contents of the file are now right.  The next change starts a new record, even if
   * the rest fails halfway. */
  bs->recording = false;
  for (size_t i = 0; i < bs->dir.n; i++) {
    bs->list[i].table_changed = false;
    free_bits (&bs->list[i]);
  }
  if (set_in_use (bs, false) == -1)
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
  CLEANUP_FREE uint64_t *buf = malloc (bs->h->cluster_size);
  const uint64_t per_cell = bs->h->cluster_size / 8;
  const uint64_t words = div_up (e->bits, 64);
  uint64_t i, first;

  if (buf == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
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
  const uint64_t words = div_up (b->e->bits, 64);
  uint64_t i, w;

  if (b->bits == NULL || b->cells == NULL)
    return;
  for (i = 0; i < b->e->table_entries; i++)
    if (atomic_load_explicit (&b->cells[i], memory_order_relaxed) != UNCHANGED)
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

  if (any->flags & QCOW2_BITMAP_IN_USE) {
    report_error ("%s: bitmap \"%s\" is inconsistent: the program that last recorded to "
                  "it did not store it; it can only be removed",
                  storage_path (bs->file),
                  printable (any->name, 64, name, sizeof name));
    errno = ESTALE;
    return -1;
  }
  set = dirtyset_new (any->e.bits, any->e.granularity_bits);
  if (set == NULL) {
    report_error ("calloc: %m");
    errno = ENOMEM;
    return -1;
  }
  if (freeze (bs, &any->e, b, set) == -1) {
    dirtyset_free (set);
    return -1;
  }
  *ret = set;
  return 0;
}
