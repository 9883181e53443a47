/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the header come to name another bitmap directory?  See bitmapext.c.
 */

#ifndef QCOW2_BITMAPEXT_H
#define QCOW2_BITMAPEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "header.h"
#include "hostfile.h"

/* Can bitmapext_set be done, with a count that is 0 (NONE) or not?  Changes nothing.
 * -1: no (reported). */
extern int bitmapext_check (struct hostfile *, const struct header *, bool none);

/* The image has COUNT bitmaps; their directory of SIZE bytes at OFFSET is durable
 * already.  COUNT 0: it has none.  Durable on return.  Nobody else changes the header
 * meanwhile.  -1 (reported): the file names the old directory, or the new one, or none. */
extern int bitmapext_set (struct hostfile *, struct header *, uint32_t count,
                          uint64_t size, uint64_t offset);

/* The extension that is there becomes the first one, unless it lies within the first
 * sector already, so that it can be changed together with the header's fields.  *AT
 * receives where its data (struct qcow2_ext_bitmaps) are then, in bytes.  Durable on
 * return, and a power cut at any time leaves a header that means the same.  AT is
 * NULL: changes nothing, only looks whether it can be done.  -1: reported. */
extern int bitmapext_lead (struct hostfile *, const struct header *, uint64_t *at);

#endif /* QCOW2_BITMAPEXT_H */
