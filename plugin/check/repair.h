/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image that was not closed properly get right refcounts?
 * See repair.c.
 */

#ifndef QCOW2_REPAIR_H
#define QCOW2_REPAIR_H

#include <stdbool.h>

#include "image/image.h"

/* Gives the image, whose snapshots were read, new refcounts, made from what its metadata
 * name, and COPIED flags that agree with them; all is durable on return, and the image's
 * header and overlap know the new places.  The dirty bit is left to the caller.  Nobody
 * may change the image meanwhile; it may be read.  ASKED: what messages say: the user
 * asked for it, or the image was not closed properly.
 *
 * -1: reported; the image is as usable as it was, and as dirty.  After a
 * failure don't try again before the image has been opened anew (R9).
 */
extern int repair_refcounts (struct image *, bool asked);

#endif /* QCOW2_REPAIR_H */
