/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the header come to name another bitmap directory?  See bitmapext.c.
 */

#ifndef QCOW2_BITMAPEXT_H
#define QCOW2_BITMAPEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

/* Can bitmapext_set be done, with a count that is 0 (NONE) or not?  Changes nothing.
 * -1: no (reported). */
extern int bitmapext_check (struct storage *, const struct header *, bool none);

/* The image has COUNT bitmaps; their directory of SIZE bytes at OFFSET is durable
 * already.  COUNT 0: it has none.  Durable on return.  Nobody else changes the header
 * meanwhile.  -1 (reported): the file names the old directory, or the new one. */
extern int bitmapext_set (struct storage *, struct header *, uint32_t count,
                          uint64_t size, uint64_t offset);

#endif /* QCOW2_BITMAPEXT_H */
