/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image names the one that was put on top of it.  See overlayref.c.
 */

#ifndef QCOW2_OVERLAYREF_H
#define QCOW2_OVERLAYREF_H

#include "image/image.h"

/* Has the header name the image at path OVER (NULL: none) as the one on top of this
 * image, which is at rest, and locked as by a writer.  Durable on return.  AHEAD: while
 * clients write, does what is possible of that, or all.  An image that is not a local
 * file, or whose header has no space for it, stays as it is.  -1 (reported): it is
 * unknown which the header names, or it is as before. */
extern int overlayref_set (const struct image *, const char *over, bool ahead);

/* May the image be written as a disk?  Not below an image that it names, if the disk has
 * gone on there: -1 (reported).  It should be locked as by a writer. */
extern int overlayref_check (const struct image *, const struct storage_hooks *);

#endif /* QCOW2_OVERLAYREF_H */
