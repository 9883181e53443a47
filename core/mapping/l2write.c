/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do changed L1 and L2 entries reach the file?
 *
 * The checkpoint takes a batch of all changes, determines when it is written, and says
 * whether it has become durable.  This file only knows what is written where: slices in
 * file order, adjacent ones in one call, then L1 entries.  R5: a slice is written only to
 * a place that is known as an L2 table.
 *
 * Specification: "Cluster mapping".
 *
 * Locks: see l2.c.  One thread at a time.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "mapping/l2-impl.h"

int
l2_take (struct l2 *l2, struct l2_batch *snap)
{
  memset (snap, 0, sizeof *snap);

  /* Take slices first.  A table whose L1 entry is not in this batch yet cannot be
   * reached, so writing its slices does no harm.  An L1 entry that is added after the
   * slices were taken names a table whose first contents have been written. */
  snap->nr_slices = map_take_dirty (l2->space, &snap->slices, &snap->barrier);
  if (snap->nr_slices == -1) {
    snap->nr_slices = 0;
    return -1;
  }

  LOCK_FOR_BLOCK (&l2->lock);
  snap->l1 = l2->changed;
  snap->nr_l1 = l2->nr_changed;
  l2->changed = NULL;
  l2->nr_changed = l2->room_changed = 0;
  l2->nr_taken = snap->nr_l1;
  for (unsigned i = 0; i < snap->nr_l1; i++)
    snap->l1_barrier |= snap->l1[i].barrier;
  snap->barrier |= snap->l1_barrier;
  return 0;
}

struct piece { uint64_t offset; void *buf; };

static int
compare_pieces (const void *a, const void *b)
{
  const struct piece *x = a, *y = b;

  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Writes slices in file order, adjacent ones in one call. */
static int
write_slices (struct l2 *l2, const struct l2_batch *snap)
{
  CLEANUP_FREE struct piece *pieces = NULL;
  struct iovec iov[64];
  int i, n, start;

  pieces = memory_get (snap->nr_slices * sizeof *pieces + 1);
  if (pieces == NULL)
    return -1;
  for (i = 0; i < snap->nr_slices; i++) {
    pieces[i].offset = l2_slice_offset (l2, snap->slices[i].index);
    pieces[i].buf = snap->slices[i].raw;
    if (overlap_find (l2->image->overlap, pieces[i].offset, l2->slice_size)
        != OVERLAP_L2) {        /* R5 */
      health_corrupt (l2->image->health, "an L2 slice would be written to offset %"
                      PRIu64 ", which is no L2 table", pieces[i].offset);
      return -1;
    }
  }
  qsort (pieces, snap->nr_slices, sizeof *pieces, compare_pieces);
  /* Before they are written: while a slice is in memory, it is not loaded. */
  for (i = 0; i < snap->nr_slices; i++)
    atomic_fetch_and (&l2->l1[l2_table_of (l2, snap->slices[i].index)], ~L1_ZEROS);

  for (start = 0; start < snap->nr_slices; start += n) {
    for (n = 0; start + n < snap->nr_slices && n < 64; n++) {
      if (n > 0 && pieces[start + n].offset !=
          pieces[start].offset + n * l2->slice_size)
        break;
      iov[n].iov_base = pieces[start + n].buf;
      iov[n].iov_len = l2->slice_size;
    }
    if (storage_writev (l2->image->file, iov, n, pieces[start].offset,
                        STORAGE_IN_PLACE) == -1)
      return -1;
  }
  return 0;
}

static int
compare_l1_changes (const void *a, const void *b)
{
  const struct l1_change *x = a, *y = b;

  return x->index < y->index ? -1 : x->index > y->index;
}

/* Writes changed L1 entries, adjacent ones in one call. */
static int
write_l1 (struct l2 *l2, struct l2_batch *snap)
{
  struct be64 entries[64];
  unsigned n, start;

  qsort (snap->l1, snap->nr_l1, sizeof *snap->l1, compare_l1_changes);
  for (start = 0; start < snap->nr_l1; start += n) {
    for (n = 0; start + n < snap->nr_l1 && n < 64 &&
           snap->l1[start + n].index == snap->l1[start].index + n; n++)
      entries[n] = put64 (snap->l1[start + n].value);
    if (storage_write (l2->image->file, entries, n * sizeof *entries,
                       l2->image->header.l1_offset +
                       snap->l1[start].index * sizeof *entries) == -1)
      return -1;
  }
  return 0;
}

/* After that: whoever has read a slice before sees the note. */
static void
note_slices (struct l2 *l2, const struct l2_batch *snap)
{
  atomic_bool *const written = l2->written;

  for (int i = 0; written && i < snap->nr_slices; i++)
    written[snap->slices[i].index] = true;
}

int
l2_note_writes (struct l2 *l2)
{
  const uint64_t n = l2->image->header.l1_needed * l2_slices_of_table (l2);

  if (l2->written == NULL && n > 0)
    l2->written = sparse_new (n * sizeof *l2->written);
  if (l2->written || n == 0)
    return 0;
  report_error ("%s: L2 tables: %m", storage_path (l2->image->file));
  return -1;
}

int
l2_each_written (struct l2 *l2, uint64_t table,
                 int (*fn) (void *opaque, uint64_t at, uint64_t bytes), void *opaque)
{
  const uint64_t n = l2_slices_of_table (l2);
  int r = 0;

  for (uint64_t i = 0; table < l2->image->header.l1_needed && r == 0 && i < n; i++)
    if (atomic_exchange (&l2->written[table * n + i], false))
      r = fn (opaque, i * l2->slice_size, l2->slice_size);
  return r;
}

int
l2_write (struct l2 *l2, struct l2_batch *snap)
{
  const int r = snap->nr_slices > 0 ? write_slices (l2, snap) : 0;

  note_slices (l2, snap);       /* keeps errno */
  if (r == -1)
    return -1;
  if (snap->nr_l1 > 0 && write_l1 (l2, snap) == -1)
    return -1;
  return 0;
}

/* Puts the L1 changes of the batch back.  The list has space for them beside newer
 * changes, so this cannot fail. */
static void
restore_l1 (struct l2 *l2, struct l2_batch *snap)
{
  LOCK_FOR_BLOCK (&l2->lock);

  l2->nr_taken = 0;
  if (l2->changed == NULL) {
    l2->changed = snap->l1;
    l2->nr_changed = l2->room_changed = snap->nr_l1;
    return;
  }
  assert (l2->nr_changed + snap->nr_l1 <= l2->room_changed);
  memcpy (l2->changed + l2->nr_changed, snap->l1,
          snap->nr_l1 * sizeof *snap->l1);
  l2->nr_changed += snap->nr_l1;
  free (snap->l1);
}

void
l2_done (struct l2 *l2, struct l2_batch *snap, bool ok)
{
  map_written (l2->space, snap->slices, snap->nr_slices, ok);

  if (!ok && snap->nr_l1 > 0) {
    restore_l1 (l2, snap);
    return;
  }
  /* A table that is not shared never moves, so the entry is still the one that was
   * written. */
  for (unsigned i = 0; i < snap->nr_l1; i++)
    atomic_fetch_and (&l2->l1[snap->l1[i].index], ~L1_UNSETTLED);
  free (snap->l1);

  LOCK_FOR_BLOCK (&l2->lock);
  l2->nr_taken = 0;
}
