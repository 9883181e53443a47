/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Puts in order what a crash has left.  See recover.c.
 */

#ifndef QCOW2_RECOVER_H
#define QCOW2_RECOVER_H

#include "image/image.h"

/* Call it with the writer's lock and after the snapshot table was read, before the image
 * is changed.  On return refcounts are correct and durable, and the image has no mark of
 * being changed.  Nothing else may change the image in the meantime; reads are allowed.
 * Returns 0 or -1 (reported): the image is as valid as before, but must not be changed,
 * nor this be called again, before it has been opened again (R9; except after ENOMEM). */
extern int recover_image (struct image *);

#endif /* QCOW2_RECOVER_H */
