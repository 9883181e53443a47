/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The L1 and L2 tables of the writable image: where does the top layer map a guest range,
 * and how is the mapping changed?
 *
 * Specification: "Cluster mapping".
 *
 *      l1[]  --->  L2 table = 1 cluster = slices  --->  entries
 *      in memory   in the file                        in the map, by slice
 *
 * The whole L1 table is in memory.  L2 tables are cached by slice in the map (see map.c),
 * in packed form, or raw while they are being changed.  Only two kinds of writes to the
 * file happen here: l2_write, which the checkpoint calls with a batch of changes, and the
 * first contents of a new table (zeros, or a copy), which no pointer names yet.  So a
 * table that an L1 entry names, in memory or in the file, always has valid contents in
 * the file (R1, R3).
 *
 * A table that a snapshot shares (its L1 entry lacks COPIED) is copied before its first
 * change.  The meaning of its slices stays the same, so cached slices stay valid.
 *
 * Locks: `lock' guards the creation of tables and the list of changed L1 entries.  It may
 * be held while a table's first contents are written (metadata, at most one cluster),
 * never during I/O of guest data or a sync (R10).  The entries of l1[] are atomics,
 * changed under `lock' and read without it: an entry changes from one valid value to
 * another, and a reader that sees the older value sees the mapping of a moment ago.
 * (Flags of a table that is not shared are cleared without `lock': nothing else changes
 * its entry then.)
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/compress.h"
#include "format/entry.h"
#include "mapping/l2-impl.h"

/* --- loading --- */

static uint64_t
table_offset (const struct l2 *l2, uint64_t table)
{
  return atomic_load (&l2->l1[table]) & ~L1_FLAGS & QCOW2_L1_OFFSET_MASK;
}

/* Is there no table, or a new one, whose slices have never been written?  (No slice of it
 * that is not in memory was written: that would have cleared the flag before.) */
static bool
has_no_entries (const struct l2 *l2, uint64_t table)
{
  const uint64_t entry = atomic_load (&l2->l1[table]);

  return (entry & QCOW2_L1_OFFSET_MASK) == 0 || (entry & L1_ZEROS);
}

/* Reads without reporting errors, and without waiting for a lost connection. */
static int
try_read (struct storage *file, void *buf, uint64_t len, uint64_t offset)
{
  struct storage_range range = {
    .storage = file, .buf = buf, .count = len, .offset = offset
  };

  if (!storage_is_remote (file))
    return storage_read (file, buf, len, offset);
  storage_try_many (&range, 1);
  return range.done ? 0 : -1;
}

/* Reads LEN bytes of the slice, and of those that follow it in the table, from byte AT
 * on. */
static int
read_entries (const struct l2 *l2, uint64_t slice, uint64_t at, uint64_t len,
              void *raw,
              int (*read) (struct storage *, void *, uint64_t, uint64_t))
{
  const unsigned shift = l2->table_span_bits - l2->slice_span_bits;
  const uint64_t table = l2_table_of (l2, slice);
  const uint64_t within = slice & ((UINT64_C (1) << shift) - 1);
  uint64_t offset = table_offset (l2, table), before;

  /* A table that was copied meanwhile may have been overwritten, if no request keeps it:
   * slices are also loaded ahead of requests. */
  do {
    before = offset;
    if (has_no_entries (l2, table))
      memset (raw, 0, len);
    else if (read (l2->image->file, raw, len,
                   offset + within * l2->slice_size + at) == -1)
      return -1;
    offset = table_offset (l2, table);
  } while (offset != before);
  return 0;
}

static int
load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  struct l2 *l2 = opaque;

  return read_entries (l2, slice, 0, n * l2->slice_size, raw,
                       n == 1 ? storage_read : try_read);
}

/* As much of a table as is read together, but no more than the disk needs. */
static unsigned
together (void *opaque)
{
  const struct l2 *l2 = opaque;
  const struct header *h = &l2->image->header;
  const uint64_t bytes = min64 (h->cluster_size, MAP_TOGETHER_BYTES);
  uint64_t n = bytes > l2->slice_size ? bytes / l2->slice_size : 1;

  while (n > 1 && h->size <= (n / 2) << l2->slice_span_bits)
    n /= 2;
  return n;
}

/* Does not check whether entries point to metadata.  Each lookup does, because that may
 * change while a slice is in memory. */
static unsigned
decode (void *opaque, const void *raw, unsigned unit, unsigned max,
        struct run *run)
{
  struct l2 *l2 = opaque;

  return entry_decode (&l2->image->header, NULL, raw, unit, max, run);
}

static int64_t
peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
      struct run *run)
{
  struct l2 *l2 = opaque;
  const struct header *h = &l2->image->header;
  const unsigned shift = h->cluster_bits - entry_unit_bits (h);
  const uint64_t first = unit >> shift;
  const uint64_t n = ((unit + max - 1) >> shift) - first + 1;
  struct be64 raw[2 * MAP_PEEK_UNITS];  /* an entry has at most two words */

  if (read_entries (l2, slice, first * h->l2_entry_size, n * h->l2_entry_size,
                    raw, storage_read) == -1)
    return -1;
  return entry_decode (h, NULL, raw, unit - (first << shift), max, run);
}

static uint64_t
slow_slices (void *opaque)
{
  const struct l2 *l2 = opaque;

  return storage_is_remote (l2->image->file)
    ? div_up (l2->image->header.size, UINT64_C (1) << l2->slice_span_bits) : 0;
}

static const struct map_ops l2_map_ops = {
  .slow_slices = slow_slices,
  .load_raw = load_raw,
  .together = together,
  .decode = decode,
  .peek = peek,
};

static int
compare_offsets (const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* Two L1 entries that name the same table are corruption, and dangerous: if the table is
 * copied for one entry, it would be freed for both.  Marks such entries. */
static int
mark_duplicates (struct l2 *l2, uint64_t n)
{
  CLEANUP_FREE uint64_t *offsets = NULL;
  uint64_t i, found = 0, used = 0;

  for (i = 0; i < n; i++)
    used += l2->l1[i] != 0;
  offsets = memory_get (used * sizeof *offsets + 1);

  if (offsets == NULL)
    return -1;
  used = 0;
  for (i = 0; i < n; i++)
    if (l2->l1[i] != 0)
      offsets[used++] = l2->l1[i] & QCOW2_L1_OFFSET_MASK & ~L1_FLAGS;
  qsort (offsets, used, sizeof *offsets, compare_offsets);
  for (i = 1; i < used; i++)
    if (offsets[i] == offsets[i - 1] &&
        (found == 0 || offsets[found - 1] != offsets[i]))
      offsets[found++] = offsets[i];
  if (found == 0)
    return 0;
  for (i = 0; i < n; i++) {
    const uint64_t offset = l2->l1[i] & QCOW2_L1_OFFSET_MASK & ~L1_FLAGS;

    if (offset != 0 &&
        bsearch (&offset, offsets, found, sizeof *offsets, compare_offsets))
      l2->l1[i] |= L1_BAD;
  }
  return 0;
}

/* l1[] contains the bytes of the file.  Converts them and registers the tables that they
 * name. */
static int
adopt_l1 (struct l2 *l2, uint64_t n)
{
  const struct header *h = &l2->image->header;
  uint64_t i, entry;
  int r;

  for (i = 0; i < n; i++) {
    entry = atomic_load_explicit (&l2->l1[i], memory_order_relaxed);
    if (entry == 0)
      continue;                 /* unused entries take no memory */
    entry = get64 ((struct be64) { entry }) &
      (QCOW2_L1_OFFSET_MASK | QCOW2_OFLAG_COPIED);
    if ((entry & QCOW2_L1_OFFSET_MASK) == 0)
      entry = 0;
    else if (entry_l1_fault (h, storage_size (l2->image->file), entry))
      entry |= L1_BAD;
    else {
      r = overlap_add (l2->image->overlap, entry & QCOW2_L1_OFFSET_MASK,
                       h->cluster_size, OVERLAP_L2);
      if (r == -1)
        return -1;
      if (r > 0 && r != OVERLAP_INACTIVE_L2)
        entry |= L1_BAD;
    }
    atomic_init (&l2->l1[i], entry);
  }
  return mark_duplicates (l2, n);
}

static size_t
l1_bytes (const struct header *h)
{
  return max64 (h->l1_needed, 1) * sizeof (uint64_t);
}

struct l2 *
l2_open (struct image *image, struct alloc *alloc, struct map *map,
         uint64_t slice_size)
{
  const struct header *h = &image->header;
  struct l2 *l2;
  unsigned slice_entries;

  if (slice_size > h->cluster_size)
    slice_size = h->cluster_size;
  slice_entries = slice_size / h->l2_entry_size;

  l2 = calloc (1, sizeof *l2);
  if (l2 == NULL)
    goto nomem;
  pthread_mutex_init (&l2->lock, NULL);
  l2->image = image;
  l2->alloc = alloc;
  l2->slice_size = slice_size;
  l2->slice_span_bits = h->cluster_bits + __builtin_ctz (slice_entries);
  l2->table_span_bits = h->cluster_bits + h->l2_bits;

  l2->l1 = sparse_new (l1_bytes (h));
  if (l2->l1 == NULL)
    goto nomem;
  if (storage_read_sparse (image->file, l2->l1, h->l1_needed * sizeof *l2->l1,
                           h->l1_offset) == -1 ||
      adopt_l1 (l2, h->l1_needed) == -1)
    goto error;

  l2->space = map_space_new (map, entry_unit_bits (h),
                             slice_entries << (h->cluster_bits - entry_unit_bits (h)),
                             slice_size, &l2_map_ops, l2);
  if (l2->space == NULL)
    goto nomem;
  return l2;

 nomem:
  errno = ENOMEM;
  report_error ("%s: L1 table: %m", storage_path (image->file));
 error:
  l2_close (l2);
  return NULL;
}

void
l2_close (struct l2 *l2)
{
  if (l2 == NULL)
    return;
  if (l2->space)
    map_space_free (l2->space);
  pthread_mutex_destroy (&l2->lock);
  sparse_free ((void *) l2->l1, l1_bytes (&l2->image->header));
  sparse_free (l2->written, l2->image->header.l1_needed * l2_slices_of_table (l2));
  free (l2->changed);
  free (l2);
}

/* --- lookups --- */

static int
bad_l1 (struct l2 *l2, uint64_t table, uint64_t entry)
{
  const char *fault = entry_l1_fault (&l2->image->header,
                                      storage_size (l2->image->file),
                                      entry & ~L1_FLAGS);

  health_corrupt (l2->image->health, "L1 entry %" PRIu64 " is 0x%" PRIx64 ": %s",
                  table, entry & ~L1_FLAGS,
                  fault ? fault : "the L2 table overlaps other metadata");
  return -1;
}

/* R5: does the run begin in a cluster that contains metadata?  If so, sets the host of
 * the run to the entry.  If metadata follows later in the run, cuts the run off there.
 * (Every lookup checks this: the entries of a forged image may name clusters that count
 * as free, and metadata may be placed there, and removed again, at any moment.) */
static bool
is_metadata_now (const struct l2 *l2, struct run *run)
{
  const uint64_t cs = l2->image->header.cluster_size;
  uint64_t first, n, clear;

  if (run->kind == RUN_COMPRESSED) {
    if (!compress_clusters (&l2->image->header, run->host, &first, &n) ||
        overlap_find (l2->image->overlap, first * cs, n * cs) == OVERLAP_NONE)
      return false;
    run->host |= QCOW2_OFLAG_COMPRESSED;        /* for the message */
    return true;
  }
  if (!run_host_advances (run->kind) || entry_is_external (&l2->image->header))
    return false;
  clear = overlap_clear (l2->image->overlap, run->host, run->len);
  if (clear > 0) {
    run->len = clear;
    return false;
  }
  /* For the message. */
  run->host = round_down (run->host, cs) | (run->copied ? QCOW2_OFLAG_COPIED : 0) |
    (run->kind == RUN_ZERO_ALLOC && !entry_is_extended (&l2->image->header)
     ? QCOW2_OFLAG_ZERO : 0);
  return true;
}

/* Completes a run that the map has found.  False: it is corrupt. */
static inline bool
judge_run (const struct l2 *l2, uint64_t offset, struct run *run)
{
  /* Neighbours can have equal descriptors only in a forged image; they are still
   * different clusters. */
  if (run->kind == RUN_COMPRESSED)
    run->len = min64 (run->len, l2->image->header.cluster_size -
                      (offset & (l2->image->header.cluster_size - 1)));
  /* In an external data file, the host offset equals the guest offset. */
  if (__builtin_expect (entry_is_external (&l2->image->header), 0) &&
      run_host_advances (run->kind) && run->host != offset) {
    run->kind = RUN_CORRUPT;
    run->host = round_down (run->host, l2->image->header.cluster_size);
  }
  if (__builtin_expect (is_metadata_now (l2, run), 0))
    run->kind = RUN_CORRUPT;
  return __builtin_expect (run->kind != RUN_CORRUPT, 1);
}

int
l2_lookup (struct l2 *l2, uint64_t offset, uint64_t len, struct run *run)
{
  uint64_t table = offset >> l2->table_span_bits;
  const uint64_t entry = atomic_load_explicit (&l2->l1[table],
                                               memory_order_acquire);

  if (__builtin_expect (entry == 0, 0)) {
    const uint64_t end = offset + len;
    uint64_t next;

    /* The range without tables may be longer than one table. */
    do {
      table++;
      next = table << l2->table_span_bits;
    } while (next < end &&
             atomic_load_explicit (&l2->l1[table], memory_order_relaxed) == 0);
    *run = (struct run) {
      .start = offset, .len = min64 (end, next) - offset,
      .kind = RUN_UNALLOCATED,
    };
    return 0;
  }
  if (__builtin_expect (entry & L1_BAD, 0))
    return bad_l1 (l2, table, entry);

  if (map_lookup (l2->space, offset, len, run) == -1)
    return -1;
  if (entry & L1_UNSETTLED)
    run->unsettled = true;
  if (!judge_run (l2, offset, run)) {
    health_corrupt (l2->image->health,
                    "L2 entry 0x%" PRIx64 " for guest offset %" PRIu64 ": %s",
                    run->host, offset,
                    entry_fault (&l2->image->header, l2->image->overlap, run->host));
    return -1;
  }
  return 0;
}

bool
l2_lookup_reads (struct l2 *l2, uint64_t offset)
{
  return !has_no_entries (l2, offset >> l2->table_span_bits) &&
    !map_has (l2->space, offset);
}

bool
l2_lookup_here (struct l2 *l2, uint64_t offset, uint64_t len, struct run *run)
{
  const uint64_t table = offset >> l2->table_span_bits;

  if (has_no_entries (l2, table))
    return l2_lookup (l2, offset, len, run) == 0;
  return map_has (l2->space, offset) && map_lookup (l2->space, offset, len, run) == 0 &&
    judge_run (l2, offset, run);
}

/* --- changing --- */

/* Before anything is changed (R6), makes space in the list for one more change, and for
 * those that a failed write may have to give back.  The caller holds the lock. */
static int
l1_change_room (struct l2 *l2)
{
  const unsigned wanted = l2->nr_changed + l2->nr_taken + 1;
  struct l1_change *p;
  unsigned room;

  if (wanted <= l2->room_changed)
    return 0;
  room = max64 (16, 2 * wanted);
  p = memory_resize (l2->changed, room, sizeof *p);
  if (p == NULL)
    return -1;
  l2->changed = p;
  l2->room_changed = room;
  return 0;
}

/* Fills a new table with the contents of the shared table OLD, or with zeros. */
static int
fill_table (struct l2 *l2, const struct alloc_run *new, uint64_t old)
{
  CLEANUP_FREE void *buf = NULL;

  if (old == 0 && new->zeroed)
    return 0;
  buf = memory_new (1, l2->image->header.cluster_size);
  if (buf == NULL)
    return -1;
  if (old != 0 &&
      storage_read (l2->image->file, buf, l2->image->header.cluster_size, old) == -1)
    return -1;
  return storage_write (l2->image->file, buf, l2->image->header.cluster_size, new->host);
}

/* Makes sure that there is an L2 table for TABLE, and that nothing else shares it. */
static int
own_table (struct l2 *l2, uint64_t table)
{
  uint64_t entry, old;
  struct alloc_run new;

  entry = atomic_load (&l2->l1[table]);
  if (entry & L1_BAD)
    return bad_l1 (l2, table, entry);
  if (entry & QCOW2_OFLAG_COPIED)
    return 0;

  LOCK_FOR_BLOCK (&l2->lock);

  entry = atomic_load (&l2->l1[table]);
  if (entry & QCOW2_OFLAG_COPIED)
    return 0;                   /* another thread has created it */
  old = entry & QCOW2_L1_OFFSET_MASK;

  if (l1_change_room (l2) == -1 ||
      alloc_free_begin (l2->alloc, 1) == -1)
    return -1;
  if (alloc_reserve_table (l2->alloc, &new) == -1) {
    alloc_free_end (l2->alloc, 1);
    return -1;
  }
  if (fill_table (l2, &new, old) == -1) {
    alloc_abort_table (l2->alloc, &new);
    alloc_free_end (l2->alloc, 1);
    return -1;
  }

  /* Nothing can fail from here. */
  l2->changed[l2->nr_changed++] = (struct l1_change) {
    .index = table, .value = new.host | QCOW2_OFLAG_COPIED,
    .barrier = old != 0 || !new.settled,
  };
  atomic_store (&l2->l1[table],
                new.host | QCOW2_OFLAG_COPIED | L1_UNSETTLED | (old == 0 ? L1_ZEROS : 0));
  if (old != 0)
    alloc_free_run (l2->alloc, old, 1);
  alloc_free_end (l2->alloc, old == 0);
  return 0;
}

uint64_t
l2_edit_limit (const struct l2 *l2, uint64_t offset)
{
  const uint64_t span = UINT64_C (1) << l2->slice_span_bits;

  return round_down (offset, span) + L2_EDIT_MAX * span - offset;
}

uint64_t
l2_slice_offset (const struct l2 *l2, uint64_t slice)
{
  const unsigned shift = l2->table_span_bits - l2->slice_span_bits;
  const uint64_t within = slice & ((UINT64_C (1) << shift) - 1);

  return (atomic_load (&l2->l1[l2_table_of (l2, slice)]) & QCOW2_L1_OFFSET_MASK)
         + within * l2->slice_size;
}

/* A slice without entries may be a hole in the file.  Its space is allocated here, so
 * that a full disk is noticed now and not in the checkpoint (see alloc.c). */
static int
allocate_slice (struct l2 *l2, uint64_t slice, struct map_slice *pinned)
{
  const void *raw;
  bool empty;

  if (l2->image->header.cluster_size <= ALLOC_TABLE_SPACE)
    return 0;
  raw = map_edit_begin (pinned);
  empty = bytes_are_zero (raw, l2->slice_size);
  map_edit_end (pinned, MAP_UNCHANGED);
  if (!empty)
    return 0;
  return storage_allocate (l2->image->file, l2_slice_offset (l2, slice),
                           l2->slice_size);
}

int
l2_edit_begin (struct l2 *l2, uint64_t offset, uint64_t len,
               struct l2_edit *edit)
{
  const uint64_t last = (offset + len - 1) >> l2->slice_span_bits;
  uint64_t table;

  for (table = offset >> l2->table_span_bits;
       table <= (offset + len - 1) >> l2->table_span_bits; table++)
    if (own_table (l2, table) == -1)
      return -1;

  edit->l2 = l2;
  edit->first_slice = offset >> l2->slice_span_bits;
  for (edit->n = 0; edit->first_slice + edit->n <= last; edit->n++) {
    const uint64_t slice = edit->first_slice + edit->n;

    edit->slices[edit->n] = map_pin (l2->space, slice);
    if (edit->slices[edit->n] == NULL)
      goto error;
    if (allocate_slice (l2, slice, edit->slices[edit->n]) == -1) {
      edit->n++;
      goto error;
    }
  }
  return 0;

 error: {
    KEEP_ERRNO_FOR_BLOCK;

    l2_edit_end (edit);
    return -1;
  }
}

void
l2_set (struct l2_edit *edit, uint64_t offset, uint64_t len,
        enum run_kind kind, uint64_t host, bool barrier)
{
  const struct l2 *l2 = edit->l2;
  const unsigned bits = entry_unit_bits (&l2->image->header);
  const uint64_t per_slice = UINT64_C (1) << (l2->slice_span_bits - bits);
  uint64_t unit = offset >> bits;
  uint64_t units = div_up (len, UINT64_C (1) << bits), n;

  for (; units > 0; units -= n, unit += n) {
    struct map_slice *slice = edit->slices[unit / per_slice - edit->first_slice];
    const uint64_t i = unit % per_slice;

    n = min64 (units, per_slice - i);
    entry_encode (&l2->image->header, map_edit_begin (slice), i, n, kind, host);
    map_edit_end (slice, barrier ? MAP_CHANGED_BARRIER : MAP_CHANGED);
    if (run_host_advances (kind))
      host += n << bits;
  }
}

void
l2_edit_end (struct l2_edit *edit)
{
  while (edit->n > 0)
    map_unpin (edit->slices[--edit->n]);
}

bool
l2_dirty_beyond (struct l2 *l2, uint64_t limit)
{
  return map_dirty_beyond (l2->space, limit);
}
