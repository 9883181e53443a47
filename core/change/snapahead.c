/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What of deleting an internal snapshot is done before clients that write have to wait?
 *
 * Specification: "Snapshots".
 *
 * When the snapshot has gone (snapedit.c), clusters that it shared belong to the active
 * disk alone, and COPIED must be set (R7) in copies of nearly all L2 tables.  Ahead of
 * that:
 *
 *   1  The references of the snapshot are dropped.  Until it is deleted, none of its
 *      tables changes.
 *   2  Each L2 table of the active disk gets a copy with the flags that are correct then,
 *      where no client gets a cluster (alloc_set_aside).
 *   3  Parts of tables that clients have changed meanwhile are copied again, until few
 *      change (l2_each_written).
 *
 * When the image is at rest, the rest is copied.  A table that has moved meanwhile, which
 * another snapshot shared, is left to snapedit.c; and all are, if not all can be copied.
 *
 * The flags can be known ahead: a cluster that others share with the active disk is not
 * written in place, and nobody gets or loses references to it, but the active disk.
 * If that loses its own, the table is written.  New clusters belong to it alone.  So a
 * table in which no flag is to be set remains so, and is not copied.
 *
 * Nothing of this is in the file as far as others can see: the copies are in clusters
 * that are free.
 *
 * Locks: none; one thread, and requests that change the image.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "space/alloc.h"
#include "mapping/l2.h"
#include "request/checkpoint.h"
#include "change/snapahead.h"

/* Copying again ends with less than that, in bytes, or after so many times. */
#define LITTLE (UINT64_C (128) << 10)
#define MOST_TIMES 5

struct snapahead {
  const struct image *image;
  const struct header *h;
  const struct writable *w;
  struct shadow *s;             /* NULL: snapahead_begin has given it away */
  uint64_t entries;
  struct be64 *l1;              /* the active L1 table, as it was in the file */
  struct be64 *copies;          /* the place of a copy of each of its tables; or of the
                                   table, if it needs none; 0: there is none */
  struct be64 *buf;             /* a cluster */
  uint64_t again;               /* bytes that were copied again */
};

static uint64_t
table_of (struct be64 entry)
{
  return get64 (entry) & QCOW2_L1_OFFSET_MASK;
}

/* --- ahead --- */

static int
drop_references (struct snapahead *a, const struct snapshot *snapshot)
{
  const uint64_t n = snapshot->l1_entries;
  CLEANUP_FREE struct be64 *l1 = NULL;

  if (n == 0)
    return 0;
  l1 = shadow_read_l1 (a->s, snapshot->l1_offset, n, n);
  if (l1 == NULL)
    return -1;
  for (uint64_t i = 0; i < n; i++) {
    shadow_expect (a->s, l1, i, n);
    if (table_of (l1[i]) != 0 &&
        (shadow_read_l2 (a->s, get64 (l1[i]), a->buf) == -1 ||
         shadow_drop_l2 (a->s, a->buf, 0, UINT64_C (1) << a->h->l2_bits) == -1 ||
         shadow_drop (a->s, table_of (l1[i]) >> a->h->cluster_bits, 1) == -1))
      return -1;
  }
  return shadow_drop_range (a->s, snapshot->l1_offset, n * sizeof *l1);
}

static int
forget (void *opaque, uint64_t at, uint64_t bytes)
{
  (void) opaque, (void) at, (void) bytes;
  return 0;
}

/* Makes durable what clients have written.  A failure concerns them, and is reported. */
static int
flush (const struct snapahead *a)
{
  const bool before = report_silence (false);
  const int r = checkpoint_flush (a->w->checkpoint);

  report_silence (before);
  return r;
}

/* R5: other metadata is no table.  (Of a table that has moved meanwhile this may read
 * anything.  Such a copy is not used.) */
static int
copy_table (struct snapahead *a, uint64_t i)
{
  const uint64_t table = table_of (a->l1[i]), cs = a->h->cluster_size;
  int r;

  if (table == 0 || table % cs != 0 ||
      overlap_find (a->image->overlap, table, cs) != OVERLAP_L2)
    return 0;
  l2_each_written (a->w->l2, i, forget, NULL);
  if (storage_read (a->image->file, a->buf, cs, table) == -1)
    return -1;
  r = shadow_correct_l2 (a->s, a->buf, cs, true);
  if (r == 0)
    a->copies[i] = put64 (table);
  return r == 1 ? shadow_replace_l2 (a->s, a->buf, &a->copies[i]) : r;
}

static int
copy_tables (struct snapahead *a)
{
  if (flush (a) == -1 || l2_note_writes (a->w->l2) == -1)
    return -1;
  a->l1 = shadow_read_l1 (a->s, a->h->l1_offset, a->entries, a->entries);
  if (a->l1 == NULL)
    return -1;
  for (uint64_t i = 0; i < a->entries; i++) {
    shadow_expect (a->s, a->l1, i, a->entries);
    if (copy_table (a, i) == -1)
      return -1;
  }
  return shadow_write_l2 (a->s);
}

/* --- copying again --- */

struct again {
  struct snapahead *a;
  struct shadow *s;
  uint64_t table, copy;
};

static int
copy_part (void *opaque, uint64_t at, uint64_t bytes)
{
  const struct again *g = opaque;
  struct snapahead *const a = g->a;

  a->again += bytes;
  return storage_read (a->image->file, a->buf, bytes, g->table + at) == -1 ||
    shadow_correct_l2 (g->s, a->buf, bytes, true) == -1 ? -1
    : storage_write (a->image->file, a->buf, bytes, g->copy + at);
}

static bool
is_copied (const struct snapahead *a, uint64_t i)
{
  return a->copies[i].be != 0 && get64 (a->copies[i]) != table_of (a->l1[i]);
}

static int
copy_again (struct snapahead *a, struct shadow *s, uint64_t i)
{
  struct again g = {
    .a = a, .s = s, .table = table_of (a->l1[i]), .copy = get64 (a->copies[i]),
  };

  return l2_each_written (a->w->l2, i, copy_part, &g);
}

/* If a part cannot be copied, nor is its table. */
static void
copy_all_again (struct snapahead *a)
{
  a->again = 0;
  for (uint64_t i = 0; i < a->entries; i++)
    if (is_copied (a, i) && copy_again (a, a->s, i) == -1)
      a->copies[i] = put64 (0);
}

static int
begin_ahead (struct snapahead *a, bool discard, const struct snapshot *snapshot)
{
  unsigned times = 0;

  a->copies = memory_new (a->entries, sizeof *a->copies);
  a->buf = memory_get (a->h->cluster_size);
  a->s = shadow_new_ahead (a->image, discard, a->w);
  if (a->copies == NULL || a->buf == NULL || a->s == NULL ||
      drop_references (a, snapshot) == -1)
    return -1;
  if (copy_tables (a) == -1) {
    alloc_end_aside (a->w->alloc);
    a->entries = 0;
  }
  do
    copy_all_again (a);
  while (a->again > LITTLE && ++times < MOST_TIMES && flush (a) == 0);
  return 0;
}

struct snapahead *
snapahead_new (const struct image *image, bool discard, const struct snapshot *snapshot,
               const struct writable *w)
{
  struct snapahead *a = memory_new (1, sizeof *a);

  if (a == NULL)
    return NULL;
  a->image = image;
  a->h = &image->header;
  a->w = w;
  a->entries = max64 (1, a->h->l1_entries);
  if (begin_ahead (a, discard, snapshot) == 0)
    return a;
  snapahead_free (a);
  return NULL;
}

void
snapahead_free (struct snapahead *a)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (a == NULL)
    return;
  shadow_free (a->s);
  free (a->l1);
  free (a->copies);
  free (a->buf);
  free (a);
}

/* --- at rest --- */

struct shadow *
snapahead_begin (struct snapahead *a)
{
  struct shadow *s = a->s;

  a->s = NULL;
  if (shadow_begin (s) == 0)
    return s;
  shadow_free (s);
  return NULL;
}

int64_t
snapahead_use (struct snapahead *a, struct shadow *s, struct be64 *active, uint64_t n,
               const struct be64 **correct)
{
  int r;

  n = min64 (n, a->entries);
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t table = table_of (active[i]);

    if (table != table_of (a->l1[i]) || !is_copied (a, i))
      continue;
    r = shadow_take_written (s, get64 (a->copies[i]));
    if (r == 0)
      continue;
    if (r == -1 || copy_again (a, s, i) == -1 ||
        shadow_drop (s, table >> a->h->cluster_bits, 1) == -1)
      return -1;
    active[i] = a->copies[i];
  }
  *correct = a->copies;
  return n;
}
