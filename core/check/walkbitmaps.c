/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters do persistent bitmaps point to?
 *
 * Part of walk.c.  Specification: "Bitmaps".
 *
 * The directory points to bitmap tables, and these to the clusters that contain the bits.
 * An attacker may have chosen any size.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>

#include "check/walk-impl.h"

/* The limit for the tables of all bitmaps together: 16 tables of the maximum size, with
 * the smallest clusters. */
#define MAX_ALL_ENTRIES (UINT64_C (1) << 24)

static int
refer_cluster (struct walk *w, uint64_t index, uint64_t entry, const void *opaque)
{
  const struct walk_bitmap *b = opaque;
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;

  (void) index;
  if (w->visitor->bitmap_entry)
    w->visitor->bitmap_entry (w->opaque, b, entry);
  if (offset == 0)              /* the bits are all ones or all zeros */
    return 0;
  return refwindow_add (&w->window, offset, w->h->cluster_size, ROLE_TABLE, 1, "bitmap");
}

/* Reports a fault.  Returns whether the bitmap must be followed anyway. */
static bool
doubt (struct walk *w, const struct walk_bitmap *b, const char *what)
{
  return w->visitor->doubt (w->opaque, FINDING_BITMAP, 1, b->at, WALK_BITMAP, b->i, b->at,
                            what) == 1;
}

/* *ALL: the number of entries of all tables so far. */
static int
walk_bitmap (struct walk *w, const struct walk_bitmap *b, uint64_t *all)
{
  const uint64_t table = get64 (b->raw.table_offset);
  const uint64_t entries = get32 (b->raw.table_size);
  int r;

  if (w->visitor->bitmap)
    w->visitor->bitmap (w->opaque, b);
  if ((entries == 0 || table == 0 ||
       entries > QCOW2_MAX_BITMAP_BYTES >> w->h->cluster_bits) &&
      !doubt (w, b, "it has no table, or one that is too large"))
    return 0;
  *all += entries;
  if (*all > MAX_ALL_ENTRIES && !doubt (w, b, "all tables together are too large"))
    return 0;
  r = refwindow_add (&w->window, table, entries * sizeof (struct be64), ROLE_TABLE, 1,
                     "bitmap table");
  return r == 1 ? walk_entries (w, table, entries, refer_cluster, b) : r;
}

int
walk_bitmaps (struct walk *w)
{
  static const char wrong[] =
    "the directory does not contain the number of entries that the header states";
  const uint64_t dir = w->h->bitmaps.dir_offset;
  const uint64_t end = dir + w->h->bitmaps.dir_size;
  struct walk_bitmap b = { .at = dir };
  uint64_t len, all = 0;
  int r;

  if (!w->h->has_bitmaps)
    return 0;
  r = refwindow_add (&w->window, dir, end - dir, ROLE_TABLE, 1, "bitmap directory");
  if (r != 1)
    return r;
  for (b.i = 0; b.i < w->h->bitmaps.count; b.i++) {
    if (!range_within (b.at, sizeof b.raw, end))
      break;
    if (storage_read (w->file, &b.raw, sizeof b.raw, b.at) == -1)
      return -1;
    len = round_up (sizeof b.raw + (uint64_t) get32 (b.raw.extra_size) +
                    get16 (b.raw.name_size), 8);
    if (!range_within (b.at, len, end))
      break;
    if (walk_bitmap (w, &b, &all) == -1)
      return -1;
    b.at += len;
  }
  if (b.i < w->h->bitmaps.count)
    return w->visitor->fault (w->opaque, FINDING_BITMAP, 1, b.at, WALK_BITMAP, b.i, b.at,
                              wrong);
  if (b.at != end)
    doubt (w, &b, wrong);
  return 0;
}
