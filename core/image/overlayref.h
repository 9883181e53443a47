/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image names the one in which its disk has gone on.  See overlayref.c.
 */

#ifndef QCOW2_OVERLAYREF_H
#define QCOW2_OVERLAYREF_H

#include "image/image.h"

/* Has the header name the image at path OVER (NULL: none) as the one on top of this
 * image, which is at rest, and locked as by a writer.  1: durable on return.  AHEAD:
 * while clients write, does what is possible of that, or all.  0: an image that is not a
 * local file, or whose header has no space for it, stays as it is.  -1 (reported): it is
 * unknown which the header names, or it is as before. */
extern int overlayref_set (const struct image *, const char *over, bool ahead);

/* --- a disk that moves from one image to another, both locked as by a writer --- */

/* Does its header name an image in which its disk might have gone on?  (If nobody knows,
 * yes.)  Reports nothing. */
extern bool overlayref_names_one (const struct image *);
/* While both may be written, and the image at path FROM names none: does what is possible
 * of the next one beforehand.  Reports nothing. */
extern void overlayref_announce (const struct image *to, const char *from);
/* TO is at rest, complete and durable.  Its header names no image on top from now on, and
 * FROM as its origin, durably.  FROM, at rest, names none.  Returns 1, 0: TO does not
 * name FROM, or -1 (reported): it is unknown what its header says, or it is as before. */
extern int overlayref_arrive (struct image *to, const struct image *from);
/* The disk stays: the header names again what it did when it was read, as TO.  Reports
 * that this is not possible. */
extern void overlayref_stay (const struct image *to);
/* The disk is in TO now, and nothing has been written to it there.  FROM, at rest, names
 * TO from now on, if that names it (NAMED).  Tells the user, in any case. */
extern void overlayref_moved (const struct image *from, const struct image *to, bool named);

/* May the image be written as a disk?  Not if the disk has gone on in the image that it
 * names: -1 (reported).  It should be locked as by a writer. */
extern int overlayref_check (const struct image *, const struct storage_hooks *);

#endif /* QCOW2_OVERLAYREF_H */
