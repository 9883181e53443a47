/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters do snapshots point to?
 *
 * Part of walk.c.  Specification: "Snapshots".
 *
 * An attacker may have chosen any size.  The snapshot table is read once, in the first
 * window, up to the first fault in it.  Only the places of L1 tables are kept.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/walk-impl.h"

static int
bad_snapshot (struct walk *w, const struct snaptable_entry *s, const char *what)
{
  return w->visitor->fault (w->opaque, FINDING_SNAPSHOT, 1, s->at, WALK_SNAPSHOT, s->i,
                            s->at, what);
}

/* --- the snapshot table --- */

static int
add_snapshot (struct walk *w, const struct snaptable_entry *s)
{
  struct walk_place *place = &w->snapshots[w->nr_snapshots++];
  const uint64_t entries = get32 (s->raw.l1_size);

  *place = (struct walk_place) {
    .l1 = { get64 (s->raw.l1_table_offset), entries, false },
    .too_large = entries * sizeof (struct be64) > QCOW2_MAX_L1_BYTES,
  };
  return place->too_large ? bad_snapshot (w, s, "its L1 table is too large") : 0;
}

/* Entries that no program reads are not followed. */
static int
tell_excess (struct walk *w, const struct snaptable_entry *s)
{
  const uint32_t n = w->h->nb_snapshots - s->i;

  return w->visitor->doubt (w->opaque, FINDING_ENTRIES, n, s->at, WALK_SNAPSHOT, s->i,
                            s->at, "the table is too large from here on") == -1 ? -1 : 0;
}

static int
read_table (struct walk *w)
{
  const uint64_t size = storage_size (w->file);
  struct snaptable_entry s = { 0 };
  int r;

  w->snapshots_end = w->h->snapshots_offset;
  while ((r = snaptable_next (w->file, w->h, &s)) == 1) {
    w->snapshots_end = min64 (s.at, size);
    if (s.excess)
      return tell_excess (w, &s);
    if (w->visitor->snapshot && w->visitor->snapshot (w->opaque, &s) == -1)
      return -1;
    if (!s.whole)
      return bad_snapshot (w, &s, "the file ends within it");
    if (add_snapshot (w, &s) == -1)
      return -1;
    w->snapshots_end = min64 (s.next, size);
  }
  if (r == 0 && w->nr_snapshots < w->h->nb_snapshots) {
    s.i = w->nr_snapshots;
    s.at = s.next;
    return bad_snapshot (w, &s, "the file ends before it");
  }
  return r;
}

/* --- L1 tables that overlap --- */

/* Number 0 is the active L1 table, i + 1 that of snapshot i. */
struct extent { uint64_t offset, end; uint32_t number; };

static struct extent
extent_of (uint64_t offset, uint64_t entries, uint32_t number)
{
  offset &= QCOW2_L1_OFFSET_MASK;
  return (struct extent) { offset, offset + entries * sizeof (struct be64), number };
}

static int
compare_extents (const void *a, const void *b)
{
  const struct extent *x = a, *y = b;

  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  return x->number < y->number ? -1 : x->number > y->number;
}

/* Of L1 tables that overlap, all but one are skipped.  Otherwise 64 Ki snapshots that
 * share one table of 32 MiB would cost as many walks. */
static int
find_shared (struct walk *w)
{
  const uint32_t n = w->nr_snapshots + 1;
  CLEANUP_FREE struct extent *extents = calloc (n, sizeof *extents);
  uint64_t end = 0;
  uint32_t i;

  if (extents == NULL) {
    report_error ("%s: counting references: %m", storage_path (w->file));
    return -1;
  }
  extents[0] = extent_of (w->h->l1_offset, w->h->l1_entries, 0);
  for (i = 1; i < n; i++)
    extents[i] = extent_of (w->snapshots[i - 1].l1.offset,
                            w->snapshots[i - 1].l1.entries, i);
  qsort (extents, n, sizeof *extents, compare_extents);
  for (i = 0; i < n; i++) {
    if (extents[i].offset < end && extents[i].number > 0)
      w->snapshots[extents[i].number - 1].shared = true;
    end = max64 (end, extents[i].end);
  }
  return 0;
}

/* --- references of snapshots --- */

static int
read_once (struct walk *w)
{
  if (w->snapshots)
    return 0;
  w->snapshots = calloc (min64 (w->h->nb_snapshots, QCOW2_MAX_SNAPSHOTS) + 1,
                         sizeof *w->snapshots);
  if (w->snapshots == NULL) {
    report_error ("%s: counting references: %m", storage_path (w->file));
    return -1;
  }
  return read_table (w) == -1 || find_shared (w) == -1 ? -1 : 0;
}

int
walk_snapshots (struct walk *w)
{
  uint32_t i;
  int r;

  if (read_once (w) == -1)
    return -1;
  for (i = 0; i < w->nr_snapshots; i++) {
    const struct walk_place *place = &w->snapshots[i];

    if (place->too_large)
      continue;
    r = refwindow_add (&w->window, place->l1.offset,
                       place->l1.entries * sizeof (struct be64), ROLE_TABLE, 1,
                       "L1 table of a snapshot");
    if (r == -1 ||
        (r == 1 && !place->shared && walk_gather (w, &place->l1) == -1))
      return -1;
  }
  return refwindow_add (&w->window, w->h->snapshots_offset,
                        w->snapshots_end - w->h->snapshots_offset, ROLE_TABLE,
                        w->snapshots_times, "snapshot table") == -1 ? -1 : 0;
}
