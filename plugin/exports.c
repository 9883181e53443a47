/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are internal snapshots served?
 *
 * Each is a disk of its own, of the size it had when it was taken: a view of the same
 * layers, with the snapshot's L1 table in place of the active one.  It is made when
 * a client first asks for it, and never changes; writing to the active disk copies
 * what a snapshot shares, so it does not disturb it.
 *
 * Locks: the disk's lock guards the list of those that are served.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "disk-impl.h"
#include "printable.h"
#include "report.h"

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

unsigned
disk_nr_snapshots (const struct disk *d)
{
  return d->snapshots.n;
}

const char *
disk_snapshot_name (const struct disk *d, unsigned i, char *text, size_t size)
{
  describe_snapshot (&d->snapshots.list[i], text, size);
  return snapshots_unique_name (&d->snapshots, i);
}

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
    nbdkit_error ("%s: snapshot \"%s\" can't be served: its L1 table at offset %"
                  PRIu64 " is too short for its size", path,
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
  ds->snapshot = s;
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
  ds->next = d->served;
  d->served = ds;
  return ds;
}

struct disk_snapshot *
disk_open_snapshot (struct disk *d, const char *name)
{
  const struct snapshot *s = snapshots_find (&d->snapshots, name);
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
  for (ds = d->served; ds; ds = ds->next)
    if (ds->snapshot == s)
      return ds;
  return serve_snapshot (d, s);
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
  struct disk_snapshot *s, *next;

  for (s = d->served; s; s = next) {
    next = s->next;
    layers_view_free (s->view.lower);
    free (s);
  }
  snapshots_free (&d->snapshots);
}
