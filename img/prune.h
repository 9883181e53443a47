/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Only the newest generations are kept.  See prune.c.
 */

#ifndef QCOW2_IMG_PRUNE_H
#define QCOW2_IMG_PRUNE_H

#include <stdint.h>

#include "img/command.h"
#include "img/repository.h"

/* Removes all but the newest KEEP > 0 generations.  SUM: read what changes again, to know
 * its checksum.  *REMOVED: how many.  -1: reported; what is left is right, and the next
 * call does the rest. */
extern int prune (const struct arguments *, struct repository *, uint64_t keep, bool sum,
                  unsigned *removed);

#endif /* QCOW2_IMG_PRUNE_H */
