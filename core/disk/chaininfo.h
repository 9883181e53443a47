/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What qemu-img info says about an image.  See chaininfo.c.
 */

#ifndef QCOW2_CHAININFO_H
#define QCOW2_CHAININFO_H

#include <stdbool.h>

#include <jansson.h>

#include "disk/disk.h"

/* An object that describes the image, which is called NAME, or for a CHAIN an array of
 * those of its files.  Opens only the image, or all files of its chain but no data files.
 * The caller frees it.  NULL: reported. */
extern json_t *chaininfo_describe (const struct disk_options *, const char *name,
                                   bool chain);

#endif /* QCOW2_CHAININFO_H */
