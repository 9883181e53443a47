/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that amend.c and amendzero.c share.  No other file includes this.
 */

#ifndef QCOW2_AMEND_IMPL_H
#define QCOW2_AMEND_IMPL_H

#include "change/amend.h"
#include "change/shadow.h"

/* Replaces all zero clusters, also those of snapshots.  HIDES: they may hide data of a
 * backing file.  The new places of the L1 tables: that of the active disk in *SH, those
 * of the snapshots in PLACES. */
extern int amend_replace_zeros (const struct image *, bool hides, struct shadow *,
                                struct shadow_header *sh, uint64_t *places);

#endif /* QCOW2_AMEND_IMPL_H */
