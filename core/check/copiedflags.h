/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Corrects COPIED flags.  See copiedflags.c.
 */

#ifndef QCOW2_COPIEDFLAGS_H
#define QCOW2_COPIEDFLAGS_H

#include "storage/storage.h"
#include "format/header.h"
#include "check/recount.h"

/* In the active disk, of entries whose clusters are in the last window of the recount.
 * CLUSTER: a buffer of that size.  0, or -1 (reported). */
extern int copiedflags_correct (struct storage *, const struct header *,
                                const struct recount *, unsigned char *cluster);

#endif /* QCOW2_COPIEDFLAGS_H */
