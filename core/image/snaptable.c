/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which bytes does a snapshot table consist of?
 *
 * Specification: "Snapshots".
 *
 * Only the entries before it tell where an entry begins.  A table is changed in memory
 * and then written to a new place, by a change (snapedit.c) or a repair (repair.c).
 *
 * Programs read 65536 entries and 64 MiB at most, and 1 KiB of extra data in each.  Which
 * entries fit into a table is decided as if none had more extra data than that: so those
 * that fit are the ones that a repair can keep.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/report.h"
#include "image/snaptable.h"

static uint64_t
bytes_with (const struct qcow2_snapshot *raw, uint64_t extra)
{
  return sizeof *raw + extra + get16 (raw->id_size) + get16 (raw->name_size);
}

uint64_t
snaptable_bytes (const struct qcow2_snapshot *raw)
{
  return round_up (bytes_with (raw, get32 (raw->extra_size)), 8);
}

int
snaptable_next (struct storage *file, const struct header *h, struct snaptable_entry *e)
{
  const bool first = e->next == 0;
  const uint32_t i = first ? 0 : e->i + 1;
  const uint64_t size = storage_size (file);
  uint64_t at = first ? h->snapshots_offset : e->next, extra;

  if (i >= h->nb_snapshots || (!first && !e->whole) ||
      !range_within (at, sizeof e->raw, size))
    return 0;
  if (storage_read (file, &e->raw, sizeof e->raw, at) == -1)
    return -1;
  extra = get32 (e->raw.extra_size);
  e->i = i;
  e->at = at;
  e->next = at + snaptable_bytes (&e->raw);
  /* (The padding of the last entry may be missing.) */
  e->whole = range_within (at, bytes_with (&e->raw, extra), size);
  e->kept += round_up (bytes_with (&e->raw, min64 (extra, QCOW2_MAX_SNAPSHOT_EXTRA)), 8);
  e->excess = i >= QCOW2_MAX_SNAPSHOTS || e->kept > QCOW2_MAX_SNAPSHOT_TABLE;
  return 1;
}

/* Makes room for BYTES more. */
static int
make_room (struct snaptable *t, uint64_t bytes)
{
  const uint64_t room = t->size + max64 (t->size, bytes);
  unsigned char *more;

  if (t->size + bytes <= t->room)
    return 0;
  more = realloc (t->bytes, room);
  if (more == NULL) {
    report_error ("snapshot table: %m");
    return -1;
  }
  t->bytes = more;
  t->room = room;
  return 0;
}

int
snaptable_append (struct snaptable *t, const struct qcow2_snapshot *raw,
                  const void *extra, const void *strings)
{
  const uint32_t extra_size = get32 (raw->extra_size);
  const uint64_t bytes = snaptable_bytes (raw);
  unsigned char *at;

  if (make_room (t, bytes) == -1)
    return -1;
  at = t->bytes + t->size;
  memset (at, 0, bytes);
  memcpy (at, raw, sizeof *raw);
  memcpy (at + sizeof *raw, extra, extra_size);
  memcpy (at + sizeof *raw + extra_size, strings,
          get16 (raw->id_size) + get16 (raw->name_size));
  t->size += bytes;
  t->n++;
  return 0;
}

void
snaptable_remove (struct snaptable *t, uint32_t i)
{
  struct qcow2_snapshot raw;
  uint64_t at = 0, bytes = 0;

  do {
    at += bytes;
    memcpy (&raw, t->bytes + at, sizeof raw);
    bytes = snaptable_bytes (&raw);
  } while (i-- > 0);
  t->size -= bytes;
  t->n--;
  memmove (t->bytes + at, t->bytes + at + bytes, t->size - at);
}
