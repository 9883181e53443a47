/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Removes the name of the backing file from the header of an image.  See backlink.c.
 */

#ifndef QCOW2_BACKLINK_H
#define QCOW2_BACKLINK_H

#include "storage/storage.h"
#include "format/header.h"

/* Makes the image in FILE, with this HEADER, an image without a backing file.  Everything
 * else that it then needs must already be durable.  The change is durable on return.  -1:
 * reported; after a crash or a failure the image either has its backing file or none. */
extern int backlink_remove (struct storage *, const struct header *);

#endif /* QCOW2_BACKLINK_H */
