/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is known about an image, for several commands.  See info.c.
 */

#ifndef QCOW2_IMG_INFO_H
#define QCOW2_IMG_INFO_H

#include <stdbool.h>

#include <jansson.h>

#include "img/imagefile.h"

/* An object with the keys of qemu-img info --output=json; for a CHAIN, an array of those
 * of all its files.  The caller frees it.  NULL: reported. */
extern json_t *info_describe (const struct imagefile *, bool chain);
/* Prints the list of its internal snapshots, if it has any. */
extern void info_print_snapshots (const json_t *info);

#endif /* QCOW2_IMG_INFO_H */
