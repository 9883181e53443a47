/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which internal snapshots does an image have, and which clusters contain their
 * metadata?
 *
 * Specification: "Snapshots".
 *
 * A reader needs the place of the L1 table of a snapshot, and the size that the disk
 * had.  A writer must never allocate or overwrite the tables of a snapshot (R5).  The
 * table is read entry by entry.  An attacker may have chosen any size in it.
 *
 * Version 2 images, and old version 3 images, do not state the size of the disk when a
 * snapshot was taken; they cannot have been resized since then.
 *
 * Locks: none; the table is read once, before requests, and does not change.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/format.h"
#include "image/snapshot.h"
#include "image/snaptable.h"

/* L1 tables of snapshots are read to find their L2 tables, up to this many bytes in all:
 * a hostile table could name 64 Ki tables of 32 MiB.  L2 tables beyond this limit are
 * protected only by their refcounts, as in QEMU. */
#define MAX_L1_BYTES (UINT64_C (32) << 20)

static int
bad_table (struct storage *file, uint64_t offset, uint32_t i,
           const char *what)
{
  return report_refusal (EINVAL, "%s: snapshot table: offset %" PRIu64 ": snapshot %"
                         PRIu32 ": %s", storage_path (file), offset, i, what);
}

static int
register_l2_tables (struct storage *file, const struct header *h,
                    struct overlap *overlap, uint64_t l1, uint64_t entries)
{
  CLEANUP_FREE struct be64 *buf = memory_get (65536);
  uint64_t done, n, i;

  if (buf == NULL)
    return -1;
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, 65536 / sizeof *buf);
    if (storage_read (file, buf, n * sizeof *buf,
                      l1 + done * sizeof *buf) == -1)
      return -1;
    for (i = 0; i < n; i++) {
      const uint64_t offset = get64 (buf[i]) & QCOW2_L1_OFFSET_MASK;

      /* L2 tables that the active disk shares stay registered as active ones. */
      if (offset != 0 && (offset & (h->cluster_size - 1)) == 0 &&
          offset < storage_size (file) &&
          overlap_add (overlap, offset, h->cluster_size,
                       OVERLAP_INACTIVE_L2) == -1)
        return -1;
    }
  }
  return 0;
}

/* Reads a string of LEN bytes from the file.  The caller frees it.  NULL on error
 * (reported). */
static char *
read_string (struct storage *file, uint64_t offset, size_t len)
{
  char *s = memory_new (1, len + 1);

  if (s == NULL)
    return NULL;
  if (storage_read (file, s, len, offset) == -1) {
    free (s);
    return NULL;
  }
  return s;
}

/* Reads an entry of the table into *S.  *CUT: see struct snapshots. */
static int
read_entry (struct storage *file, const struct header *h,
            const struct snaptable_entry *e, struct snapshot *s, bool *cut)
{
  const struct qcow2_snapshot entry = e->raw;
  const uint64_t strings = e->at + sizeof entry + get32 (entry.extra_size);
  struct qcow2_snapshot_extra extra = { 0 };
  uint64_t l1_bytes;

  if (get32 (entry.extra_size) > QCOW2_MAX_SNAPSHOT_EXTRA)
    return bad_table (file, e->at, e->i, "extra data is too long");
  *cut = !e->whole;
  if (*cut)
    return bad_table (file, e->at, e->i, "it lies beyond the end of the file");
  if (e->excess)
    return bad_table (file, e->at, e->i, "snapshot table is too large");

  s->l1_offset = get64 (entry.l1_table_offset);
  s->l1_entries = get32 (entry.l1_size);
  l1_bytes = s->l1_entries * UINT64_C (8);
  if (l1_bytes > QCOW2_MAX_L1_BYTES)
    return bad_table (file, e->at, e->i, "L1 table is too large");
  if ((s->l1_offset & (h->cluster_size - 1)) != 0)
    return bad_table (file, e->at, e->i, "L1 table offset is not aligned");
  *cut = !range_within (s->l1_offset, l1_bytes, storage_size (file));
  if (*cut)
    return bad_table (file, e->at, e->i, "L1 table lies beyond the end of the file");

  s->date_sec = get32 (entry.date_sec);
  s->date_nsec = get32 (entry.date_nsec);
  s->vm_clock_nsec = get64 (entry.vm_clock_nsec);
  s->vm_state_size = get32 (entry.vm_state_size);
  s->disk_size = h->size;
  if (storage_read (file, &extra,
                    min64 (sizeof extra, get32 (entry.extra_size)),
                    e->at + sizeof entry) == -1)
    return -1;
  if (get32 (entry.extra_size) >= sizeof extra.vm_state_size)
    s->vm_state_size = get64 (extra.vm_state_size);
  if (get32 (entry.extra_size) >= QCOW2_V3_SNAPSHOT_EXTRA)
    s->disk_size = round_down (get64 (extra.disk_size), 512);
  s->icount = get64 (extra.icount);
  s->has_icount = get32 (entry.extra_size) >= sizeof extra && s->icount != QCOW2_NO_ICOUNT;

  s->id = read_string (file, strings, get16 (entry.id_size));
  if (s->id == NULL)
    return -1;
  s->name = read_string (file, strings + get16 (entry.id_size),
                         get16 (entry.name_size));
  return s->name ? 0 : -1;
}

static const char *
name_of (const void *list, size_t i)
{
  return ((const struct snapshot *) list)[i].name;
}

static const char *
id_of (const void *list, size_t i)
{
  return ((const struct snapshot *) list)[i].id;
}

static int
index_names (struct snapshots *s)
{
  s->by_name = names_new (s->n, name_of, s->list);
  if (s->by_name)
    s->by_id = names_new (s->n, id_of, s->list);
  return s->by_id ? 0 : -1;
}

int
snapshots_list (struct storage *file, const struct header *h,
                struct snapshots *snapshots)
{
  struct snaptable_entry e = { 0 };
  uint32_t i;
  int r;

  snapshots->n = 0;
  snapshots->table_bytes = 0;
  snapshots->cut = false;
  snapshots->by_name = snapshots->by_id = NULL;
  snapshots->list = memory_new (h->nb_snapshots + 1, sizeof *snapshots->list);
  if (snapshots->list == NULL)
    return -1;
  for (i = 0; i < h->nb_snapshots; i++) {
    snapshots->n = i + 1;       /* needed by snapshots_free */
    r = snaptable_next (file, h, &e);
    snapshots->cut = r == 0;
    if (r == 0)
      bad_table (file, e.next, i, "it lies beyond the end of the file");
    if (r <= 0 ||
        read_entry (file, h, &e, &snapshots->list[i], &snapshots->cut) == -1)
      return -1;
  }
  snapshots->table_bytes = i == 0 ? 0 : e.next - h->snapshots_offset;
  return index_names (snapshots);
}

/* Registers the L1 table of the snapshot, and its L2 tables while *TOTAL, the bytes of
 * all L1 tables so far, permits it. */
static int
register_snapshot (struct storage *file, const struct header *h, struct overlap *overlap,
                   const struct snapshot *s, uint64_t *total)
{
  const uint64_t bytes = s->l1_entries * UINT64_C (8);

  *total += bytes;
  if (bytes > 0 &&
      overlap_add (overlap, s->l1_offset, bytes, OVERLAP_INACTIVE_L1) == -1)
    return -1;
  return *total > MAX_L1_BYTES ? 0
    : register_l2_tables (file, h, overlap, s->l1_offset, s->l1_entries);
}

int
snapshots_read (struct storage *file, const struct header *h,
                struct overlap *overlap, struct snapshots *snapshots)
{
  uint64_t l1_total = 0;

  if (snapshots_list (file, h, snapshots) == -1)
    return -1;
  for (uint32_t i = 0; i < snapshots->n; i++)
    if (register_snapshot (file, h, overlap, &snapshots->list[i], &l1_total) == -1)
      return -1;
  /* (A table that overlaps other metadata is for check= to report.) */
  return snapshots->table_bytes > 0 &&
    overlap_add (overlap, h->snapshots_offset, snapshots->table_bytes,
                 OVERLAP_SNAPSHOT_TABLE) == -1 ? -1 : 0;
}

void
snapshots_free (struct snapshots *snapshots)
{
  uint32_t i;

  for (i = 0; i < snapshots->n; i++) {
    free (snapshots->list[i].id);
    free (snapshots->list[i].name);
  }
  names_free (snapshots->by_name);
  names_free (snapshots->by_id);
  snapshots->by_name = snapshots->by_id = NULL;
  free (snapshots->list);
  snapshots->list = NULL;
  snapshots->n = 0;
}

const struct snapshot *
snapshots_find (const struct snapshots *snapshots, const char *name)
{
  static const char id[] = "snapshot.id=", only_name[] = "snapshot.name=";
  size_t i = names_find (snapshots->by_name, name);

  if (i == SIZE_MAX)
    i = names_find (snapshots->by_id, name);
  if (i == SIZE_MAX && strncmp (name, id, strlen (id)) == 0)
    i = names_find (snapshots->by_id, name + strlen (id));
  if (i == SIZE_MAX && strncmp (name, only_name, strlen (only_name)) == 0)
    i = names_find (snapshots->by_name, name + strlen (only_name));
  return i == SIZE_MAX ? NULL : &snapshots->list[i];
}

bool
snapshots_differ (const char *path, const struct snapshots *snapshots, const char *name)
{
  const size_t named = names_find (snapshots->by_name, name);
  const size_t with_id = names_find (snapshots->by_id, name);
  char text[PRINTABLE_SIZE (64)];

  if (named == SIZE_MAX || with_id == SIZE_MAX || named == with_id)
    return false;
  printable (name, strnlen (name, 64), text, sizeof text);
  report_error ("%s: \"%s\" is the name of one snapshot and the id of another: "
                "snapshot.name=%s is the one, snapshot.id=%s the other", path, text, text,
                text);
  errno = EINVAL;
  return true;
}

int
snapshot_check_table (const char *path, const struct header *h, const struct snapshot *s)
{
  char text[PRINTABLE_SIZE (64)];

  if (s->disk_size <= (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits))
    return 0;
  return report_refusal (EINVAL, "%s: snapshot \"%s\" cannot be served: its L1 table at "
                         "offset %" PRIu64 " is too short for its size", path,
                         printable (s->name, strlen (s->name), text, sizeof text),
                         s->l1_offset);
}
