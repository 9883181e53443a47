/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are internal snapshots served?
 *
 * Each is a disk of its own, of the size it had when it was taken: a view of the same
 * layers, with the snapshot's L1 table in place of the active one.  It is made when
 * a client first asks for it, and never changes; writing to the active disk copies
 * what a snapshot shares, so it does not disturb it.
 *
 * A client may ask for a snapshot by its name or its id, and is told one of them: the
 * name, unless that means something else (another snapshot of the same name, a part),
 * or is nothing that NBD can carry; then the id, unless that does.  An image may have
 * 65,536 of them, so this is found out once, when it is opened.
 *
 * Locks: the disk's lock guards which of them are served so far; names do not change.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "disk/disk-impl.h"

/* "snapshot of 2026-11-21 08:30:00 UTC, 64 MiB" */
static void
describe_snapshot (const struct snapshot *s, char *text, size_t size)
{
  const time_t date = s->date_sec;
  char when[32];
  struct tm tm;

  gmtime_r (&date, &tm);
  strftime (when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
  snprintf (text, size, "snapshot of %s UTC, %" PRIu64 " bytes%s", when,
            s->disk_size, s->vm_state_size ? ", with VM state" : "");
}

/* --- names --- */

/* Does a client that asks for NAME get this snapshot, and can it be told the name? */
static bool
is_name_of (const struct disk *d, const struct snapshot *s, const char *name)
{
  return disk_may_list (name) && !disk_is_part (name) &&
    snapshots_find (&d->image->snapshots, name) == s;
}

int
disk_name_snapshots (struct disk *d)
{
  const struct snapshot *s;
  uint32_t i;

  d->served = calloc (d->image->snapshots.n + 1, sizeof *d->served);
  d->snapshot_names = calloc (d->image->snapshots.n + 1, sizeof *d->snapshot_names);
  if (d->served == NULL || d->snapshot_names == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  for (i = 0; i < d->image->snapshots.n; i++) {
    s = &d->image->snapshots.list[i];
    d->snapshot_names[i] = is_name_of (d, s, s->name) ? s->name
      : is_name_of (d, s, s->id) ? s->id : NULL;
  }
  return 0;
}

int
disk_list_exports (const struct disk *d, export_fn emit, void *opaque,
                   unsigned *unlisted)
{
  char text[128];
  uint32_t i;
  int r;

  *unlisted = 0;
  for (i = 0; i < d->image->snapshots.n; i++) {
    if (d->snapshot_names[i] == NULL) {
      ++*unlisted;
      continue;
    }
    describe_snapshot (&d->image->snapshots.list[i], text, sizeof text);
    r = emit (opaque, d->snapshot_names[i], text);
    if (r != 0)
      return r;
  }
  return disk_list_parts (d, emit, opaque, unlisted);
}

/* --- coming --- */

/* Called with the lock held. */
static struct disk_snapshot *
serve_snapshot (struct disk *d, const struct snapshot *s)
{
  const struct header *h = layers_header (d->layers, 0);
  const char *path = hostfile_path (layers_file (d->layers, 0));
  const uint64_t covered =
    (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits);
  char text[PRINTABLE_SIZE (64)];
  struct disk_snapshot *ds;

  if (s->disk_size > covered) {
    nbdkit_error ("%s: snapshot \"%s\" cannot be served: its L1 table at offset %" PRIu64
                  " is too short for its size", path,
                  printable (s->name, strlen (s->name), text, sizeof text),
                  s->l1_offset);
    errno = EINVAL;
    return NULL;
  }
  ds = calloc (1, sizeof *ds);
  if (ds == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  ds->view = d->frozen;
  ds->view.size = s->disk_size;
  ds->view.lower = layers_view_new_snapshot (d->layers, d->map, s->l1_offset,
                                             s->disk_size,
                                             d->options.l2_slice);
  if (ds->view.lower == NULL) {
    free (ds);
    return NULL;
  }
  describe_snapshot (s, ds->description, sizeof ds->description);
  d->served[s - d->image->snapshots.list] = ds;
  return ds;
}

struct disk_snapshot *
disk_open_snapshot (struct disk *d, const char *name)
{
  const struct snapshot *s = snapshots_find (&d->image->snapshots, name);
  char text[PRINTABLE_SIZE (64)];
  struct disk_snapshot *ds;
  LOCK_FOR_BLOCK (&d->lock);

  if (s == NULL) {
    nbdkit_error ("%s: there is no snapshot \"%s\"",
                  hostfile_path (layers_file (d->layers, 0)),
                  printable (name, strlen (name), text, sizeof text));
    errno = ENOENT;
    return NULL;
  }
  ds = d->served[s - d->image->snapshots.list];
  return ds ? ds : serve_snapshot (d, s);
}

uint64_t
disk_snapshot_size (const struct disk_snapshot *ds)
{
  return ds->view.size;
}

const char *
disk_snapshot_description (const struct disk_snapshot *ds)
{
  return ds->description;
}

/* A snapshot's clusters keep their references while it exists.  The pin is for the
 * backing chain's sake no more than for theirs: it costs nothing, and requests
 * may rely on having one. */
int
disk_snapshot_read (struct disk *d, struct disk_snapshot *ds, void *buf,
                    uint64_t count, uint64_t offset)
{
  const struct grace_pin pin = grace_enter (d->grace);
  const int r = request_read (&ds->view, buf, count, offset);

  grace_leave (d->grace, pin);
  return r;
}

int
disk_snapshot_extents (struct disk *d, struct disk_snapshot *ds,
                       uint64_t count, uint64_t offset, bool one,
                       extent_fn emit, void *opaque)
{
  struct disk_piece p = disk_pieces (count, offset);
  int r;

  while ((r = disk_next_piece (d, &p)) == 1) {
    const struct grace_pin pin = grace_enter (d->grace);

    r = request_extents (&ds->view, one ? count : p.count, p.offset, one, emit,
                         opaque);
    grace_leave (d->grace, pin);
    if (r == -1 || one)
      return r;
  }
  return r;
}

int
disk_snapshot_cache (struct disk *d, struct disk_snapshot *ds, uint64_t count,
                     uint64_t offset)
{
  struct disk_piece p = disk_pieces (count, offset);
  int r;

  while ((r = disk_next_piece (d, &p)) == 1) {
    const struct grace_pin pin = grace_enter (d->grace);

    r = request_cache (&ds->view, p.count, p.offset);
    grace_leave (d->grace, pin);
    if (r == -1)
      return -1;
  }
  return r;
}

void
disk_free_snapshots (struct disk *d)
{
  uint32_t i;

  for (i = 0; d->served && i < d->image->snapshots.n; i++)
    if (d->served[i]) {
      layers_view_free (d->served[i]->view.lower);
      free (d->served[i]);
    }
  free (d->served);
  free (d->snapshot_names);
}
