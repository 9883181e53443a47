/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an internal snapshot show data of the layers below its image?  See snapbelow.c.
 */

#ifndef QCOW2_SNAPBELOW_H
#define QCOW2_SNAPBELOW_H

#include "mapping/layers.h"

/* S is of the top image of these layers.  Reads all of its mapping, through MAP, in slices
 * of so many bytes.  1, 0, or -1 (reported). */
extern int snapbelow_needs (struct layers *, struct map *, uint64_t slice_size,
                            const struct snapshot *s);

#endif /* QCOW2_SNAPBELOW_H */
