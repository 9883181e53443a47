/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes how an image in use names its backing file.  See relink.c.
 */

#ifndef QCOW2_RELINK_H
#define QCOW2_RELINK_H

#include "disk/disk.h"

/* Has the header of the image name its backing file so (1 to QCOW2_MAX_BACKING_NAME
 * bytes, or "": it has none).  Returns 0: durable; or -1 (reported): after an error of
 * the file, it has either name. */
extern int relink_disk (struct disk *, const char *name);

#endif /* QCOW2_RELINK_H */
