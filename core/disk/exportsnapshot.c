/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are internal snapshots served?
 *
 * A snapshot is a disk of its own, of the size that it had when it was taken: a view of
 * the same layers, with the L1 table of the snapshot in place of the active one.  It
 * never changes: writing to the active disk copies clusters that a snapshot shares.
 *
 * The mappings are made when a client first opens the export, and kept for later clients.
 *
 * The clusters of a snapshot keep their references while it exists, so requests do not
 * need their read section for them.  They enter one all the same, as it costs nothing.
 *
 * Locks: the disk's lock while the mappings are made.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "disk/exportkind.h"

struct snapshot_export {
  struct export e;
  struct view own;
};

static size_t
count_snapshots (const struct generation *g)
{
  return g->image->snapshots.n;
}

static size_t
find_snapshot (const struct generation *g, const char *name)
{
  const struct snapshot *s = snapshots_find (&g->image->snapshots, name);

  return s ? (size_t) (s - g->image->snapshots.list) : SIZE_MAX;
}

static const char *
name_snapshot (const struct generation *g, size_t number, unsigned which,
               char buf[EXPORT_NUMBER])
{
  const struct snapshot *s = &g->image->snapshots.list[number];

  (void) buf;
  return which == 0 ? s->name : which == 1 ? s->id : NULL;
}

/* "snapshot of 2026-11-21 08:30:00 UTC, 67108864 bytes" */
static void
describe_snapshot (const struct generation *g, size_t number, char *text, size_t size)
{
  const struct snapshot *s = &g->image->snapshots.list[number];
  const time_t date = s->date_sec;
  char when[32];
  struct tm tm;

  gmtime_r (&date, &tm);
  strftime (when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
  snprintf (text, size, "snapshot of %s UTC, %" PRIu64 " bytes%s", when,
            s->disk_size, s->vm_state_size ? ", with VM state" : "");
}

int
exportsnapshot_view (const struct export *e, struct export_slot *slot, struct view *v)
{
  struct disk *d = e->disk;
  const struct generation *g = e->generation;
  const struct snapshot *s = &g->image->snapshots.list[slot->number];
  LOCK_FOR_BLOCK (&d->lock);

  if (snapshot_check_table (storage_path (g->image->file), &g->image->header, s) == -1)
    return -1;
  if (slot->kept == NULL)
    slot->kept = layers_view_new_snapshot (g->layers, d->map, s->l1_offset,
                                           s->disk_size, d->options.l2_slice);
  if (slot->kept == NULL)
    return -1;
  *v = g->frozen;
  v->is_active = false;
  v->size = s->disk_size;
  v->lower = slot->kept;
  return 0;
}

static int
open_snapshot (struct export *e)
{
  struct snapshot_export *x = (struct snapshot_export *) e;
  const int r = exportsnapshot_view (e, e->slot, &x->own);

  e->size = x->own.size;
  return r;
}

static void
forget_snapshot (void *kept)
{
  layers_view_free (kept);
}

static const struct view *
view_snapshot (const struct export *e, const struct view *current,
               struct view *made)
{
  (void) current, (void) made;
  return &((const struct snapshot_export *) e)->own;
}

const struct export_kind export_snapshot = {
  .noun = "snapshot", .prefix = "",
  .count = count_snapshots, .find = find_snapshot,
  .name = name_snapshot, .describe = describe_snapshot,
  .bytes = sizeof (struct snapshot_export), .open = open_snapshot,
  .forget = forget_snapshot,
  .view = view_snapshot,
};
