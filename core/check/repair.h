/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes new refcounts for an image.  See repair.c.
 */

#ifndef QCOW2_REPAIR_H
#define QCOW2_REPAIR_H

#include <stdbool.h>

#include "image/image.h"
#include "image/snaptable.h"
#include "check/pace.h"

/* Gives the image new refcounts, computed from its metadata, and COPIED flags that agree
 * with them.  The snapshot table of the image must have been read.  On return all is
 * durable, and the header and overlap of the image contain the new places.  The caller
 * clears the dirty bit.  Nothing else may change the image in the meantime; reads are
 * allowed.  ASKED selects the wording of messages: the user asked for the repair, or the
 * image was not closed properly.  SNAPSHOTS (NULL: it stays) becomes the snapshot table
 * with the same write; then the old one need not have been read.  PACE, or NULL, is told
 * how far the count of references is.
 *
 * Returns -1 on error (reported): the image is as usable as before, and as dirty.
 * EUCLEAN or EINTR (it was stopped): nothing was written.  After
 * a failure, do not try again before the image has been closed and opened again (R9).
 */
extern int repair_refcounts (struct image *, bool asked,
                             const struct snaptable *snapshots, struct pace *);

#endif /* QCOW2_REPAIR_H */
