/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the name of the backing file in the header of an image.  See backingref.c.
 */

#ifndef QCOW2_BACKINGREF_H
#define QCOW2_BACKINGREF_H

#include "storage/storage.h"
#include "format/header.h"
#include "image/health.h"

/* NAME, with the name of its FORMAT; or "" and NULL: no backing file. */
struct backingref {
  const char *name, *format;
};

/* Can the header of the image in FILE have that name (which has at most
 * QCOW2_MAX_BACKING_NAME bytes), and has it enough space for it?  Changes nothing.  -1:
 * no (reported). */
extern int backingref_check (struct storage *, const struct header *,
                             const struct backingref *);
/* Makes the image in FILE, with this HEADER, an image with this backing file.  Everything
 * else that it then needs must already be durable.  The change is durable on return.  -1:
 * reported; the image is as before, or it is unknown which of the two backing files it
 * has, and its health has failed. */
extern int backingref_change (struct storage *, const struct header *, struct health *,
                              const struct backingref *);

#endif /* QCOW2_BACKINGREF_H */
