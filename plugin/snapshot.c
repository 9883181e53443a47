/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which internal snapshots does an image have, and which clusters hold their
 * metadata?
 *
 * Specification: "Snapshots".
 *
 * A writer has to know: no allocation and no guest write may ever touch a
 * snapshot's tables (R5).  The table is walked entry by entry; nothing of
 * it is kept.
 *
 * Locks: none; runs once, before requests.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "bytes.h"
#include "cleanup.h"
#include "format.h"
#include "report.h"
#include "snapshot.h"

/* Snapshots' L1 tables are read to find their L2 tables, up to this much in
 * all: a hostile table could name 64 Ki tables of 32 MiB.  What is beyond
 * is protected by its refcounts only, as in QEMU. */
#define MAX_L1_BYTES (UINT64_C (128) << 20)

static int
bad_table (struct hostfile *file, uint64_t offset, uint32_t i,
           const char *what)
{
  nbdkit_error ("%s: snapshot table: offset %" PRIu64 ": snapshot %" PRIu32
                ": %s", hostfile_path (file), offset, i, what);
  errno = EINVAL;
  return -1;
}

static int
register_l2_tables (struct hostfile *file, const struct header *h,
                    struct overlap *overlap, uint64_t l1, uint64_t entries)
{
  CLEANUP_FREE struct be64 *buf = malloc (65536);
  uint64_t done, n, i;

  if (buf == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, 65536 / sizeof *buf);
    if (hostfile_read (file, buf, n * sizeof *buf,
                       l1 + done * sizeof *buf) == -1)
      return -1;
    for (i = 0; i < n; i++) {
      const uint64_t offset = get64 (buf[i]) & QCOW2_L1_OFFSET_MASK;

      /* What the active disk shares stays known as an active table. */
      if (offset != 0 && (offset & (h->cluster_size - 1)) == 0 &&
          offset < hostfile_size (file) &&
          overlap_add (overlap, offset, h->cluster_size,
                       OVERLAP_INACTIVE_L2) == -1)
        return -1;
    }
  }
  return 0;
}

int
snapshot_register (struct hostfile *file, const struct header *h,
                   struct overlap *overlap)
{
  uint64_t at = h->snapshots_offset, l1_total = 0;
  struct qcow2_snapshot entry;
  uint32_t i;

  for (i = 0; i < h->nb_snapshots; i++) {
    uint64_t l1, l1_bytes, len;

    if (hostfile_read (file, &entry, sizeof entry, at) == -1)
      return -1;
    if (get32 (entry.extra_size) > QCOW2_MAX_SNAPSHOT_EXTRA)
      return bad_table (file, at, i, "extra data is too long");
    len = sizeof entry + get32 (entry.extra_size) +
      get16 (entry.id_size) + get16 (entry.name_size);
    /* The padding of the last entry may be missing. */
    if (!range_within (at, len, hostfile_size (file)))
      return bad_table (file, at, i,
                        "snapshot table lies beyond the end of the file");

    l1 = get64 (entry.l1_table_offset);
    l1_bytes = get32 (entry.l1_size) * UINT64_C (8);
    if (l1_bytes > QCOW2_MAX_L1_BYTES)
      return bad_table (file, at, i, "L1 table is too large");
    if ((l1 & (h->cluster_size - 1)) != 0)
      return bad_table (file, at, i, "L1 table offset is not aligned");
    if (!range_within (l1, l1_bytes, hostfile_size (file)))
      return bad_table (file, at, i, "L1 table lies beyond the end of the file");

    if (l1_bytes > 0 &&
        overlap_add (overlap, l1, l1_bytes, OVERLAP_INACTIVE_L1) == -1)
      return -1;
    l1_total += l1_bytes;
    if (l1_total <= MAX_L1_BYTES &&
        register_l2_tables (file, h, overlap, l1, l1_bytes / 8) == -1)
      return -1;

    at += round_up (len, 8);
    if (at - h->snapshots_offset > QCOW2_MAX_SNAPSHOT_TABLE)
      return bad_table (file, at, i, "snapshot table is too large");
  }
  if (at > h->snapshots_offset &&
      overlap_add (overlap, h->snapshots_offset, at - h->snapshots_offset,
                   OVERLAP_SNAPSHOT_TABLE) == -1)
    return -1;
  return 0;
}
