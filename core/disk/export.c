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

#include <stdlib.h>

#include "util/report.h"
#include "format/entry.h"
#include "disk/exportkind.h"

struct export *
export_open (struct disk *d, const char *name, bool writable)
{
  struct export_slot *slot = exports_find (d, name);
  const struct export_kind *kind;
  struct export *e;

  if (slot == NULL)
    return NULL;
  kind = slot->kind;
  e = calloc (1, kind->bytes);
  if (e == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  e->disk = d;
  e->slot = slot;
  e->kind = kind;
  kind->describe (d, slot->number, e->description, sizeof e->description);
  if (kind->open (e) == -1) {
    free (e);
    return NULL;
  }
  writable = writable && kind->may_write;
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
  free (e);
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
  const struct header *h = &e->disk->image->header;

  return e->disk->options.compress ? h->cluster_size : entry_unit_size (h);
}

const char *
export_description (const struct export *e)
{
  return e->description;
}
