/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Has the header point to another bitmap directory.  See bitmapext.c.
 */

#ifndef QCOW2_BITMAPEXT_H
#define QCOW2_BITMAPEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

/* Is there space in the header for bitmapext_set, with a count of 0 (NONE) or more?
 * Changes nothing.  -1: no (reported). */
extern int bitmapext_check (struct storage *, const struct header *, bool none);

/* Has the header say that the image has COUNT bitmaps, whose directory of SIZE bytes at
 * OFFSET is already durable; COUNT 0: no bitmaps.  Durable on return.  No other thread
 * may change the header in the meantime.  -1 (reported): *BEGUN says whether the header
 * may point to the new directory. */
extern int bitmapext_set (struct storage *, struct header *, uint32_t count,
                          uint64_t size, uint64_t offset, bool *begun);

#endif /* QCOW2_BITMAPEXT_H */
