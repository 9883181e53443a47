/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are internal snapshots created, applied and deleted, and the active disk emptied?
 *
 * Specification: "Snapshots".
 *
 * A snapshot is an L1 table.  It holds one reference to each of its L2 tables, and to
 * each cluster that these point to.
 *
 * create   The active L1 table becomes the snapshot's without moving; the active disk
 *          gets a copy.  Both share all L2 tables, except those with COPIED flags.  The
 *          flags must be clear in tables of the active disk and do not matter in those of
 *          a snapshot, so the active disk gets copies of such tables.  The first write to
 *          each would have copied it anyway, and the next snapshot finds no flags in
 *          tables that were not written since.
 * apply    The active disk gets a copy of the snapshot's L1 table.  L2 tables that both
 *          already share are not even read, so reverting after a few writes is quick,
 *          however large the disk.  First, COPIED flags in the snapshot's tables are
 *          cleared in place: until the switch, the active disk does not use those tables.
 * delete   Clusters that lose a reference may now belong to the active disk alone.  Then
 *          COPIED must be set (R7), in copies of its L2 tables.
 *          Most of that is done ahead, while clients write (snapahead.c).
 * empty    The active disk gets an L1 table without entries.  What it shows does not
 *          change, because its backing file has the same contents: so bitmaps stay as
 *          they are.
 *
 * shadow.c is responsible for crash safety.  Entries of the snapshot table that stay are
 * copied unchanged, including unknown extra data (R8).
 *
 * Persistent bitmaps record what was written since some time.  Applying a snapshot would
 * make them wrong, so it is refused, as by QEMU.  Creating and deleting snapshots does
 * not affect them.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "image/snaptable.h"
#include "change/snapahead.h"
#include "change/snapedit.h"

#define MAX_NAME 255
#define MAX_SHOWN 64

struct snapedit {
  const struct image *image;
  const struct header *h;
  const char *path;
  struct shadow *s;
  struct shadow_header sh;
  struct snaptable table;
  struct be64 *active, *other;  /* L1 tables */
  struct be64 *l2;
};

/* AHEAD: NULL, or what was done before: its shadow is used. */
static int
begin_edit (struct snapedit *e, const struct image *image, bool discard,
            struct snapahead *ahead)
{
  *e = (struct snapedit) {
    .image = image, .h = &image->header, .path = storage_path (image->file),
    .s = ahead ? snapahead_begin (ahead) : shadow_new (image, discard),
  };
  if (e->s == NULL)
    return -1;
  shadow_get_header (e->s, &e->sh);
  e->l2 = malloc (e->h->cluster_size);
  e->table.n = image->snapshots.n;
  e->table.size = image->snapshots.table_bytes;
  e->table.bytes = malloc (e->table.size + 1);
  if (e->l2 == NULL || e->table.bytes == NULL) {
    report_error ("%s: snapshot table: %m", e->path);
    return -1;
  }
  return storage_read (image->file, e->table.bytes, e->table.size,
                       e->h->snapshots_offset);
}

static int
end (struct snapedit *e, int r, struct shadow **done)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (r == 0)
    *done = e->s;
  else
    shadow_free (e->s);
  free (e->table.bytes);
  free (e->active);
  free (e->other);
  free (e->l2);
  return r;
}

/* Not by a name that is ambiguous: data is about to be lost. */
static const struct snapshot *
find (const struct image *image, const char *name)
{
  const struct snapshot *s = snapshots_find (&image->snapshots, name);
  const char *path = storage_path (image->file);
  char text[PRINTABLE_SIZE (MAX_SHOWN)];

  if (s == NULL) {
    printable (name, min64 (strlen (name), MAX_SHOWN), text, sizeof text);
    report_error ("%s: there is no snapshot \"%s\"", path, text);
    errno = ENOENT;
    return NULL;
  }
  return snapshots_differ (path, &image->snapshots, name) ? NULL : s;
}

static struct be64 *
read_active (struct snapedit *e, uint64_t entries)
{
  return shadow_read_l1 (e->s, e->h->l1_offset, e->h->l1_entries, entries);
}

static uint64_t
table_of (struct be64 entry)
{
  return get64 (entry) & QCOW2_L1_OFFSET_MASK;
}

/* Reads an L2 table into e->l2, and increments or decrements its refcount and those of
 * all clusters that it points to. */
static int
add_table (struct snapedit *e, struct be64 entry)
{
  if (shadow_read_l2 (e->s, get64 (entry), e->l2) == -1 ||
      shadow_add_l2 (e->s, e->l2, 0, UINT64_C (1) << e->h->l2_bits) == -1)
    return -1;
  return shadow_add (e->s, table_of (entry) >> e->h->cluster_bits, 1);
}

static int
drop_table (struct snapedit *e, struct be64 *entry)
{
  if (shadow_read_l2 (e->s, get64 (*entry), e->l2) == -1 ||
      shadow_drop_l2 (e->s, e->l2, 0, UINT64_C (1) << e->h->l2_bits) == -1)
    return -1;
  return shadow_drop (e->s, table_of (*entry) >> e->h->cluster_bits, 1);
}

/* Has the active L1 entry point to a new table with the contents of e->l2. */
static int
replace_table (struct snapedit *e, struct be64 *entry)
{
  if (shadow_drop (e->s, table_of (*entry) >> e->h->cluster_bits, 1) == -1)
    return -1;
  return shadow_replace_l2 (e->s, e->l2, entry);
}

/* Calls FN for each of the N entries of L1 that points to a table, unless the entry of
 * OTHER (NR_OTHER entries) with the same index points to the same table. */
static int
each_table (struct snapedit *e, struct be64 *l1, uint64_t n, const struct be64 *other,
            uint64_t nr_other, int (*fn) (struct snapedit *, struct be64 *entry))
{
  uint64_t i;

  for (i = 0; i < n; i++) {
    shadow_expect (e->s, l1, i, n);
    if (table_of (l1[i]) != 0 &&
        (i >= nr_other || table_of (l1[i]) != table_of (other[i])) &&
        fn (e, &l1[i]) == -1)
      return -1;
  }
  return 0;
}

/* --- the snapshot table --- */

/* QEMU's choice: one more than the largest id. */
static uint64_t
choose_id (const struct snapshots *snapshots)
{
  uint64_t id, max = 0;
  uint32_t i;

  for (i = 0; i < snapshots->n; i++) {
    id = strtoull (snapshots->list[i].id, NULL, 10);
    if (id != UINT64_MAX)
      max = max64 (max, id);
  }
  return max + 1;
}

static int
append_entry (struct snapedit *e, const char *name, uint64_t id)
{
  const struct qcow2_snapshot_extra extra = { .disk_size = put64 (e->h->size) };
  struct qcow2_snapshot raw = { 0 };
  char strings[24 + MAX_NAME];
  struct timespec now;
  int id_len;

  clock_gettime (CLOCK_REALTIME, &now);
  id_len = snprintf (strings, sizeof strings, "%" PRIu64, id);
  memcpy (strings + id_len, name, strlen (name));
  raw.l1_table_offset = put64 (e->h->l1_offset);
  raw.l1_size = put32 (e->h->l1_entries);
  raw.id_size = put16 (id_len);
  raw.name_size = put16 (strlen (name));
  raw.date_sec = put32 (now.tv_sec);
  raw.date_nsec = put32 (now.tv_nsec);
  raw.extra_size = put32 (sizeof extra);
  return snaptable_append (&e->table, &raw, &extra, strings);
}

/* Writes the new snapshot table; frees the old one. */
static int
write_table (struct snapedit *e)
{
  const uint64_t old = e->image->snapshots.table_bytes;

  if (old > 0 && shadow_drop_range (e->s, e->h->snapshots_offset, old) == -1)
    return -1;
  e->sh.nr_snapshots = e->table.n;
  e->sh.snapshots_offset = 0;
  return e->table.n == 0 ? 0
    : shadow_write (e->s, e->table.bytes, e->table.size, &e->sh.snapshots_offset);
}

/* --- create --- */

int
snapedit_check (const struct image *image, const char *name)
{
  const struct snapshots *all = &image->snapshots;
  const size_t len = strlen (name);

  if (len == 0 || len > MAX_NAME)
    return report_refusal (EINVAL, "%s: the name of a snapshot must have 1 to %d bytes, "
                           "not %zu", storage_path (image->file), MAX_NAME, len);
  if (all->n >= QCOW2_MAX_SNAPSHOTS ||
      all->table_bytes + 1024 > QCOW2_MAX_SNAPSHOT_TABLE)
    return report_refusal (EFBIG, "%s: the image already has the maximum of %" PRIu32 " "
                           "snapshots", storage_path (image->file), all->n);
  return 0;
}

static int
share_table (struct snapedit *e, struct be64 *entry)
{
  const int r = add_table (e, *entry) == -1 ? -1
    : shadow_correct_l2 (e->s, e->l2, e->h->cluster_size, false);

  return r == 1 ? replace_table (e, entry) : r;
}

static int
create (struct snapedit *e, const char *name, const struct snapedit_also *also)
{
  const uint64_t n = max64 (1, e->h->l1_entries);

  if (snapedit_check (e->image, name) == -1)
    return -1;
  e->active = read_active (e, n);
  if (e->active == NULL || each_table (e, e->active, n, NULL, 0, share_table) == -1)
    return -1;
  e->sh.l1_entries = n;
  if (append_entry (e, name, choose_id (&e->image->snapshots)) == -1 ||
      shadow_write_l1 (e->s, e->active, n, &e->sh.l1_offset) == -1 ||
      write_table (e) == -1)
    return -1;
  if (also && also->fn (also->opaque, e->image, e->s, &e->sh) == -1)
    return -1;
  return shadow_commit (e->s, &e->sh);
}

int
snapedit_create (const struct image *image, bool discard, const char *name,
                 const struct snapedit_also *also, struct shadow **done)
{
  struct snapedit e;

  return end (&e, begin_edit (&e, image, discard, NULL) == -1 ? -1
              : create (&e, name, also), done);
}

/* --- apply --- */

/* Takes over a table that only the snapshot uses. */
static int
take_table (struct snapedit *e, struct be64 *entry)
{
  const int r = add_table (e, *entry) == -1 ? -1
    : shadow_correct_l2 (e->s, e->l2, e->h->cluster_size, false);

  return r == 1 ? storage_write (e->image->file, e->l2, e->h->cluster_size,
                                 table_of (*entry)) : r;
}

static int
apply (struct snapedit *e, const struct snapshot *snapshot)
{
  const uint64_t old = max64 (1, e->h->l1_entries);
  const uint64_t needed = div_up (snapshot->disk_size, UINT64_C (1) <<
                                  (e->h->cluster_bits + e->h->l2_bits));
  const uint64_t n = max64 (1, max64 (needed, snapshot->l1_entries));

  if (e->h->has_bitmaps)
    return report_refusal (EBUSY, "%s: cannot apply a snapshot: the persistent bitmaps "
                           "of the image would not record the change: remove them first",
                           e->path);
  if (n > QCOW2_MAX_L1_BYTES / sizeof (struct be64))
    return shadow_corrupt (e->s, "the snapshot is of a disk of %" PRIu64 " bytes",
                           snapshot->disk_size);
  e->active = read_active (e, old);
  if (e->active == NULL)
    return -1;
  e->other = shadow_read_l1 (e->s, snapshot->l1_offset, snapshot->l1_entries, n);
  if (e->other == NULL ||
      shadow_drop_range (e->s, e->h->l1_offset, e->h->l1_entries *
                         sizeof (struct be64)) == -1 ||
      each_table (e, e->active, old, e->other, n, drop_table) == -1 ||
      each_table (e, e->other, n, e->active, old, take_table) == -1)
    return -1;
  e->sh.size = snapshot->disk_size;
  e->sh.l1_entries = n;
  if (shadow_write_l1 (e->s, e->other, n, &e->sh.l1_offset) == -1)
    return -1;
  return shadow_commit (e->s, &e->sh);
}

int
snapedit_apply (const struct image *image, bool discard, const char *name,
                struct shadow **done)
{
  const struct snapshot *snapshot = find (image, name);
  struct snapedit e;

  return snapshot == NULL ? -1
    : end (&e, begin_edit (&e, image, discard, NULL) == -1 ? -1 : apply (&e, snapshot),
           done);
}

/* --- delete --- */

static int
drop_snapshot (struct snapedit *e, const struct snapshot *snapshot)
{
  const uint64_t n = snapshot->l1_entries;

  if (n == 0)
    return 0;
  e->other = shadow_read_l1 (e->s, snapshot->l1_offset, n, n);
  if (e->other == NULL || each_table (e, e->other, n, NULL, 0, drop_table) == -1)
    return -1;
  return shadow_drop_range (e->s, snapshot->l1_offset,
                            n * sizeof (struct be64));
}

/* Sets the COPIED flags of clusters that now belong to the active disk alone. */
static int
own_table (struct snapedit *e, struct be64 *entry)
{
  const int r = shadow_read_l2 (e->s, get64 (*entry), e->l2) == -1 ? -1
    : shadow_correct_l2 (e->s, e->l2, e->h->cluster_size, true);

  return r == 1 ? replace_table (e, entry) : r;
}

static int
delete (struct snapedit *e, const struct snapshot *snapshot, struct snapahead *ahead)
{
  const uint64_t n = max64 (1, e->h->l1_entries);
  const struct be64 *correct = NULL;
  int64_t nr_correct = 0;

  e->active = read_active (e, n);
  if (e->active == NULL)
    return -1;
  if (ahead)
    nr_correct = snapahead_use (ahead, e->s, e->active, n, &correct);
  else if (drop_snapshot (e, snapshot) == -1)
    return -1;
  if (nr_correct == -1 ||
      shadow_drop_range (e->s, e->h->l1_offset, e->h->l1_entries *
                         sizeof (struct be64)) == -1 ||
      each_table (e, e->active, n, correct, nr_correct, own_table) == -1)
    return -1;
  snaptable_remove (&e->table, snapshot - e->image->snapshots.list);
  e->sh.l1_entries = n;
  if (shadow_write_l1 (e->s, e->active, n, &e->sh.l1_offset) == -1 ||
      write_table (e) == -1)
    return -1;
  return shadow_commit (e->s, &e->sh);
}

int
snapedit_delete (const struct image *image, bool discard, const char *name,
                 struct snapahead *ahead, struct shadow **done)
{
  const struct snapshot *snapshot = find (image, name);
  struct snapedit e;

  return snapshot == NULL ? -1
    : end (&e, begin_edit (&e, image, discard, ahead) == -1 ? -1
           : delete (&e, snapshot, ahead), done);
}

struct snapahead *
snapedit_delete_ahead (const struct image *image, bool discard, const char *name,
                       const struct writable *w)
{
  const struct snapshot *snapshot = find (image, name);

  return snapshot ? snapahead_new (image, discard, snapshot, w) : NULL;
}

/* --- empty --- */

static int
empty (struct snapedit *e)
{
  const uint64_t n = max64 (1, e->h->l1_entries);

  e->active = read_active (e, n);
  e->other = calloc (n, sizeof *e->other);
  if (e->other == NULL)
    report_error ("%s: L1 table: %m", e->path);
  if (e->active == NULL || e->other == NULL ||
      shadow_drop_range (e->s, e->h->l1_offset, e->h->l1_entries *
                         sizeof (struct be64)) == -1 ||
      each_table (e, e->active, n, NULL, 0, drop_table) == -1)
    return -1;
  e->sh.l1_entries = n;
  if (shadow_write_l1 (e->s, e->other, n, &e->sh.l1_offset) == -1)
    return -1;
  return shadow_commit (e->s, &e->sh);
}

int
snapedit_empty (const struct image *image, bool discard, struct shadow **done)
{
  struct snapedit e;

  return end (&e, begin_edit (&e, image, discard, NULL) == -1 ? -1 : empty (&e), done);
}
