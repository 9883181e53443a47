/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Describes an image as qemu-img info does.  See imageinfo.c.
 */

#ifndef QCOW2_IMAGEINFO_H
#define QCOW2_IMAGEINFO_H

#include <jansson.h>

#include "image/image.h"

/* A JSON object with the keys of qemu-img info --output=json.  IMAGE: its file is open,
 * and its header was read, unless it is a RAW file.  NAME: how the user calls the file.
 * Reads at most the snapshot table, the bitmap directory and the LUKS header.  NULL on
 * error (reported; errno EINVAL: one of these is invalid). */
extern json_t *imageinfo_describe (const struct image *, bool raw, const char *name);

/* The same object for an internal snapshot.  NULL on ENOMEM. */
extern json_t *imageinfo_snapshot (const struct snapshot *);

#endif /* QCOW2_IMAGEINFO_H */
