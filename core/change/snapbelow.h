/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an internal snapshot show data of the layers below its image?  See snapbelow.c.
 */

#ifndef QCOW2_SNAPBELOW_H
#define QCOW2_SNAPBELOW_H

#include "util/printable.h"
#include "mapping/layers.h"

/* Of the top image of these layers.  Reads all of the mapping of each snapshot, through
 * MAP, in slices of so many bytes.  Returns 1, with the NAME of the first one that does,
 * for messages; 0: none does; or -1 (reported). */
extern int snapbelow_needs (struct layers *, struct map *, uint64_t slice_size,
                            char name[PRINTABLE_SIZE (64)]);

#endif /* QCOW2_SNAPBELOW_H */
