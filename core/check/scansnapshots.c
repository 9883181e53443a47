/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which faults do entries of the snapshot table have?
 *
 * Specification: "Snapshots".  The walk reports what is too large to be followed
 * (walksnapshots.c).
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <inttypes.h>

#include "check/scan-impl.h"

static void
bad_snapshot (struct scan *s, enum finding_kind kind,
              const struct snaptable_entry *snapshot, const char *what)
{
  findings_add (s->findings, kind, 1, snapshot->at, WALK_SNAPSHOT,
                snapshot->i, snapshot->at, what);
}

/* In version 3, the extra data contains the size of the disk. */
static int
check_extra (struct scan *s, const struct snaptable_entry *snapshot)
{
  const struct qcow2_snapshot *raw = &snapshot->raw;
  const unsigned covered = s->h->cluster_bits + s->h->l2_bits;
  struct be64 extra[2];

  if (get32 (raw->extra_size) < sizeof extra) {
    if (s->h->version >= 3)
      bad_snapshot (s, FINDING_ENTRIES, snapshot,
                    "it does not state the size of the disk");
    return 0;
  }
  if (storage_read (s->file, extra, sizeof extra, snapshot->at + sizeof *raw) == -1)
    return -1;
  if (div_up (get64 (extra[1]), UINT64_C (1) << covered) > get32 (raw->l1_size))
    bad_snapshot (s, FINDING_SNAPSHOT, snapshot,
                  "its L1 table is too small for its disk");
  return 0;
}

int
scan_snapshot (void *opaque, const struct snaptable_entry *snapshot)
{
  struct scan *s = opaque;

  if (s->data_file && snapshot->i == 0)
    bad_snapshot (s, FINDING_SNAPSHOT, snapshot,
                  "snapshots are not allowed with an external data file");
  if (get32 (snapshot->raw.extra_size) > QCOW2_MAX_SNAPSHOT_EXTRA)
    bad_snapshot (s, FINDING_ENTRIES, snapshot, "its extra data is too long");
  return snapshot->whole ? check_extra (s, snapshot) : 0;
}
