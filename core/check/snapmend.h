/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes a snapshot table without faults.  See snapmend.c.
 */

#ifndef QCOW2_SNAPMEND_H
#define QCOW2_SNAPMEND_H

#include "image/snaptable.h"
#include "check/findings.h"

/* Makes *TABLE, all fields of which are 0, from the one of an image in which nothing is
 * wrong but FINDING_ENTRIES.  Adds to LOST what it leaves out.  -1: reported. */
extern int snapmend_table (struct storage *, const struct header *,
                           struct snaptable *table, struct findings *lost);

#endif /* QCOW2_SNAPMEND_H */
