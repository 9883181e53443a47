/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The name of the backing file in an image's header.  See backlink.c.
 */

#ifndef QCOW2_BACKLINK_H
#define QCOW2_BACKLINK_H

#include "storage/storage.h"
#include "format/header.h"

/* Makes the image in FILE, with this HEADER, one that has no backing file.  All else
 * that is to be so then must be durable before.  It is durable on return.  -1:
 * reported; a crash or a failure leaves the image with its backing file or without. */
extern int backlink_remove (struct storage *, const struct header *);

#endif /* QCOW2_BACKLINK_H */
