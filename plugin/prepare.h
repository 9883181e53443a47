/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done to an image before it is served, and in which order?  See prepare.c.
 */

#ifndef QCOW2_PREPARE_H
#define QCOW2_PREPARE_H

#include "disk/disk.h"
#include "plugin/params.h"

/* Does what the parameters ask for, and opens the disk.  Wipes the passphrase afterwards.
 * Returns 0, or -1 (reported): changes that were made before stay; *DISK may be open, and
 * then the caller closes it. */
extern int prepare_disk (struct params *, struct disk **disk);

#endif /* QCOW2_PREPARE_H */
