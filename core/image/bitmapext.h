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
#include "image/headerwrite.h"

/* Is there space in the header for bitmapext_put, with a count of 0 (NONE) or more,
 * together with changes of all fields?  Changes nothing.  -1: no (reported). */
extern int bitmapext_check (struct storage *, const struct header *, bool none);

/* Plans that the header says that the image has COUNT bitmaps, whose directory of SIZE
 * bytes is at OFFSET; COUNT 0: no bitmaps.  STAYS: only the autoclear bit then
 * says so, for which there is always space. */
extern void bitmapext_put (struct headerwrite *, uint32_t count, uint64_t size,
                           uint64_t offset, bool stays);

#endif /* QCOW2_BITMAPEXT_H */
