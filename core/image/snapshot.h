/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads the internal snapshots of an image.  See snapshot.c.
 */

#ifndef QCOW2_SNAPSHOT_H
#define QCOW2_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "util/names.h"
#include "storage/storage.h"
#include "format/header.h"
#include "format/overlap.h"

struct snapshot {
  char *id, *name;              /* as in the image, up to a NUL */
  uint64_t l1_offset;
  uint32_t l1_entries;
  uint64_t disk_size;           /* size of the disk when it was taken, in bytes; a
                                   multiple of 512 */
  uint32_t date_sec, date_nsec; /* since 1970, UTC */
  uint64_t vm_clock_nsec;       /* time that the guest had run */
  uint64_t vm_state_size;       /* bytes; 0 if there is none */
  bool has_icount;
  uint64_t icount;              /* instructions that the guest had run, if known */
};

struct snapshots {
  struct snapshot *list;
  uint32_t n;
  uint64_t table_bytes;         /* size of the table in the file */
  bool cut;                     /* invalid, because the file ends before the end of the
                                   table, or of an L1 table that it names */
  struct names *by_name, *by_id;
};

/* Reads and checks the snapshot table, and nothing that it points to.  Returns 0, or -1
 * (reported; errno EINVAL if the table is invalid).  Free with snapshots_free in any
 * case. */
extern int snapshots_list (struct storage *, const struct header *, struct snapshots *);
/* The same.  Registers with OVERLAP the clusters of the table,
 * of the L1 tables of snapshots, and (up to a limit) of their L2 tables. */
extern int snapshots_read (struct storage *, const struct header *,
                           struct overlap *, struct snapshots *);
extern void snapshots_free (struct snapshots *);

/* The first snapshot with this name, or else the first with this id; or else, of
 * "snapshot.id=ID" and "snapshot.name=NAME", the first with that.  NULL if there is
 * none. */
extern const struct snapshot *snapshots_find (const struct snapshots *,
                                              const char *name);
/* Is NAME the name of one snapshot of the image PATH, and the id of another?  Reported
 * then, with errno EINVAL. */
extern bool snapshots_differ (const char *path, const struct snapshots *, const char *name);
/* Does the L1 table of a snapshot of the image PATH cover its disk?  Returns 0, or -1
 * (reported; errno EINVAL). */
extern int snapshot_check_table (const char *path, const struct header *,
                                 const struct snapshot *);

#endif /* QCOW2_SNAPSHOT_H */
