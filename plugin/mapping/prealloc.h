/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an image have clusters that nothing was written to yet?
 * See prealloc.c.  Pure but for reading the file.
 */

#ifndef QCOW2_PREALLOC_H
#define QCOW2_PREALLOC_H

#include "storage/storage.h"
#include "format/header.h"

/* 1: the image has clearly more clusters in use than the host has allocated, as
 * preallocation leaves it, so that its holes are worth looking for; 0: no, or
 * it can't be told.  Reads refcounts if the length of the file does not
 * rule it out. */
extern int prealloc_detect (struct storage *, const struct header *);

#endif /* QCOW2_PREALLOC_H */
