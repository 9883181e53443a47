/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which snapshot table can replace one that programs refuse?
 *
 * Specification: "Snapshots".  The new table has the entries of the old one, except that
 *
 *   - an entry of version 3 tells the size that its disk had.  One that does not was made
 *     by an old program, which could not change the size; but its L1 table may be too
 *     short for the size that the disk has now
 *   - extra data ends after 1 KiB
 *   - entries that make the table too large are missing, with their snapshots
 *
 * Nothing else can be done about the last two: no program reads what is left out.  All of
 * that is told, because it is lost.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "check/snapmend.h"

#define MAX_SHOWN 40            /* bytes of a name */
#define MAX_NAMED 100           /* snapshots */

struct mend {
  struct storage *file;
  const struct header *h;
  struct snaptable *table;
  struct findings *lost;
  /* Of the entry at hand: */
  unsigned char extra[QCOW2_MAX_SNAPSHOT_EXTRA];
  char strings[2 * UINT16_MAX];
};

static void
lose (struct mend *m, const struct snaptable_entry *e, const char *what, uint64_t bytes)
{
  const size_t id = min64 (get16 (e->raw.id_size), MAX_SHOWN);
  const size_t name = min64 (get16 (e->raw.name_size), MAX_SHOWN);
  char shown_id[PRINTABLE_SIZE (MAX_SHOWN)], shown_name[PRINTABLE_SIZE (MAX_SHOWN)];

  printable (m->strings, id, shown_id, sizeof shown_id);
  printable (m->strings + get16 (e->raw.id_size), name, shown_name, sizeof shown_name);
  if (bytes > 0)
    findings_add (m->lost, FINDING_ENTRIES, 1, e->at, "snapshot \"%s\" (id %s) loses "
                  "%" PRIu64 " bytes of unknown extra data", shown_name, shown_id, bytes);
  else
    findings_add (m->lost, FINDING_ENTRIES, 1, e->at, "snapshot \"%s\" (id %s) %s",
                  shown_name, shown_id, what);
}

static int
read_entry (struct mend *m, const struct snaptable_entry *e)
{
  const uint64_t extra = get32 (e->raw.extra_size), at = e->at + sizeof e->raw;

  return storage_read (m->file, m->extra, min64 (extra, sizeof m->extra), at) == -1 ||
    storage_read (m->file, m->strings,
                  get16 (e->raw.id_size) + get16 (e->raw.name_size), at + extra) == -1
    ? -1 : 0;
}

/* Adds what version 3 requires.  Returns the new size of the extra data. */
static uint32_t
complete (struct mend *m, const struct qcow2_snapshot *raw)
{
  const uint32_t size = get32 (raw->extra_size);
  const uint64_t covered =
    (uint64_t) get32 (raw->l1_size) << (m->h->cluster_bits + m->h->l2_bits);
  struct qcow2_snapshot_extra known = {
    .vm_state_size = put64 (get32 (raw->vm_state_size)),
    .disk_size = put64 (min64 (m->h->size, covered)),
    .icount = put64 (QCOW2_NO_ICOUNT),
  };

  if (size >= sizeof known.vm_state_size)
    memcpy (&known.vm_state_size, m->extra, sizeof known.vm_state_size);
  memcpy (m->extra, &known, sizeof known);
  return sizeof known;
}

static int
keep (struct mend *m, const struct snaptable_entry *e)
{
  struct qcow2_snapshot raw = e->raw;
  const uint32_t extra = get32 (raw.extra_size);

  if (extra > QCOW2_MAX_SNAPSHOT_EXTRA) {
    lose (m, e, NULL, extra - QCOW2_MAX_SNAPSHOT_EXTRA);
    raw.extra_size = put32 (QCOW2_MAX_SNAPSHOT_EXTRA);
  }
  else if (m->h->version >= 3 && extra < QCOW2_V3_SNAPSHOT_EXTRA)
    raw.extra_size = put32 (complete (m, &raw));
  return snaptable_append (m->table, &raw, m->extra, m->strings);
}

static int
make_table (struct mend *m)
{
  struct snaptable_entry e = { 0 };
  int r;

  while ((r = snaptable_next (m->file, m->h, &e)) == 1 && e.whole) {
    if (e.i - m->table->n == MAX_NAMED) {
      findings_add (m->lost, FINDING_ENTRIES, m->h->nb_snapshots - e.i, e.at,
                    "%" PRIu32 " more snapshots are removed", m->h->nb_snapshots - e.i);
      return 0;
    }
    if (read_entry (m, &e) == -1)
      return -1;
    if (e.excess)
      lose (m, &e, "is removed: the snapshot table is too large for it", 0);
    else if (keep (m, &e) == -1)
      return -1;
  }
  return r == -1 ? -1 : 0;
}

int
snapmend_table (struct storage *file, const struct header *h, struct snaptable *table,
                struct findings *lost)
{
  CLEANUP_FREE struct mend *m = calloc (1, sizeof *m);

  if (m == NULL) {
    report_error ("%s: snapshot table: %m", storage_path (file));
    return -1;
  }
  m->file = file;
  m->h = h;
  m->table = table;
  m->lost = lost;
  return make_table (m);
}
