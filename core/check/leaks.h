/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Frees clusters that nothing uses.  See leaks.c.
 */

#ifndef QCOW2_LEAKS_H
#define QCOW2_LEAKS_H

#include "image/image.h"

/* Lowers refcounts that are higher than the number of references in the metadata.  The
 * image's snapshot table must have been read.  On return all is durable.  Nothing else
 * may change the image in the meantime; reads are allowed.  Returns 0, or -1 (reported):
 * the image is valid, and may have fewer leaks.  EUCLEAN: a refcount is too low, or
 * other metadata is wrong, so the image must not be changed. */
extern int leaks_free (struct image *);

#endif /* QCOW2_LEAKS_H */
