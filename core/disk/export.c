/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a client start and stop using an export?
 *
 * Each client has a struct of its own, of the kind that the name of the export
 * determines.  What the clients of an export share is kept in its slot, by its kind,
 * under the disk's lock.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/entry.h"
#include "disk/exportkind.h"

/* --- what is held --- */

/* Keeps the generation of the export as long as the export lives.  False: it is no longer
 * the present one. */
static bool
hold (struct export *e)
{
  struct disk *d = e->disk;
  LOCK_FOR_BLOCK (&d->lock);

  /* A change in progress may be about to remove what the export shows. */
  while (d->closed && d->now == e->generation)
    pthread_cond_wait (&d->opened, &d->lock);
  if (d->now != e->generation)
    return false;
  e->next = d->open;
  d->open = e;
  return true;
}

static void
let_go (struct export *e)
{
  struct disk *d = e->disk;
  LOCK_FOR_BLOCK (&d->lock);

  for (struct export **p = &d->open; *p; p = &(*p)->next)
    if (*p == e) {
      *p = e->next;
      break;
    }
}

bool
disk_serves_snapshot (struct disk *d, const char *id)
{
  LOCK_FOR_BLOCK (&d->lock);

  for (const struct export *e = d->open; e; e = e->next) {
    const struct export_slot *slot = e->instant ? e->instant : e->slot;

    if (slot->kind == &export_snapshot &&
        strcmp (e->generation->image->snapshots.list[slot->number].id, id) == 0)
      return true;
  }
  return false;
}

bool
disk_has_clients (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  return d->followers > 0;
}

static void
count_follower (struct disk *d, int by)
{
  LOCK_FOR_BLOCK (&d->lock);

  d->followers += by;
}

/* --- clients come and leave --- */

/* The export NAME of the present generation, which it holds.  NULL: reported. */
static struct export *
new_export (struct disk *d, const char *name)
{
  struct generation *g = generation_hold (d);
  struct export_slot *instant, *slot = exports_find (g, name, &instant);
  struct export *e = slot ? memory_new (1, slot->kind->bytes) : NULL;

  if (e == NULL) {
    KEEP_ERRNO_FOR_BLOCK;

    generation_drop (g);
    return NULL;
  }
  e->disk = d;
  e->generation = g;
  e->slot = slot;
  e->instant = instant;
  e->kind = slot->kind;
  return e;
}

static void
free_export (struct export *e)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (e->generation) {
    let_go (e);
    generation_drop (e->generation);
  }
  free (e);
}

static bool
is_present (struct disk *d, const struct generation *g)
{
  LOCK_FOR_BLOCK (&d->lock);

  return d->now == g;
}

/* The same, of a generation that is the present one after it holds it, and after *SECTION
 * was entered: so what the generation names in the file stays until that is left. */
static struct export *
find (struct disk *d, const char *name, struct epoch_section *section)
{
  struct export *e;

  for (;;) {
    e = new_export (d, name);
    if (e == NULL)
      return NULL;
    if (e->kind->follows || hold (e)) {
      *section = epoch_enter (d->epoch);
      if (is_present (d, e->generation))
        return e;
      epoch_leave (d->epoch, *section);
    }
    free_export (e);
  }
}

struct export *
export_open (struct disk *d, const char *name, bool writable)
{
  struct epoch_section section;
  struct export *e = find (d, name, &section);
  int r;

  if (e == NULL)
    return NULL;
  e->kind->describe (e->generation, e->slot->number, e->description,
                     sizeof e->description);
  r = e->kind->open (e);
  epoch_leave (d->epoch, section);
  if (r == -1) {
    free_export (e);
    return NULL;
  }
  if (e->kind->follows) {
    generation_drop (e->generation);
    e->generation = NULL;
    e->slot = NULL;
    count_follower (d, 1);
  }
  writable = writable && e->kind->may_write;
  if (disk_connect (d, &writable) == -1) {
    export_close (e);
    return NULL;
  }
  e->writable = writable;
  return e;
}

int
export_close (struct export *e)
{
  const int r = disk_disconnect (e->disk, e->writable);

  if (e->kind->close)
    e->kind->close (e);
  if (e->kind->follows)
    count_follower (e->disk, -1);
  free_export (e);
  return r;
}

int
exports_list (struct disk *d, export_fn emit, void *opaque, unsigned *unlisted)
{
  struct generation *g = generation_hold (d);
  const int r = exports_each (g, emit, opaque, unlisted);

  generation_drop (g);
  return r;
}

bool
export_is_writable (const struct export *e)
{
  return e->writable;
}

uint64_t
export_size (const struct export *e)
{
  return e->size;
}

uint64_t
export_unit_size (const struct export *e)
{
  struct generation *g = generation_hold (e->disk);
  const uint64_t unit = e->disk->options.compress ? g->image->header.cluster_size
    : entry_unit_size (&g->image->header);

  generation_drop (g);
  return unit;
}

const char *
export_description (const struct export *e)
{
  return e->description;
}
