/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an image have allocated clusters to which nothing was written yet?  See
 * prealloc.c.  No state; reads the file only.
 */

#ifndef QCOW2_PREALLOC_H
#define QCOW2_PREALLOC_H

#include "storage/storage.h"
#include "format/header.h"

/* Returns 1 if the image has clearly more clusters in use than the host has allocated, as
 * after preallocation, so that looking for its holes is worthwhile; 0 if not, or if it
 * cannot be determined.  Reads refcounts unless the length of the file rules it out. */
extern int prealloc_detect (struct storage *, const struct header *);

#endif /* QCOW2_PREALLOC_H */
