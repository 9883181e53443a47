/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which internal snapshots does an image have?  See snapshot.c.
 */

#ifndef QCOW2_SNAPSHOT_H
#define QCOW2_SNAPSHOT_H

#include <stdint.h>

#include "header.h"
#include "hostfile.h"
#include "overlap.h"

/* Reads and checks the snapshot table and registers with OVERLAP the clusters of the
 * table, of the snapshots' L1 tables and (as far as they are of a sane size)
 * L2 tables.  0, or -1 (reported; errno EINVAL for a table that is no good). */
extern int snapshot_register (struct hostfile *, const struct header *,
                              struct overlap *);

#endif /* QCOW2_SNAPSHOT_H */
