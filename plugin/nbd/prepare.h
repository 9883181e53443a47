/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Before an image is served: see prepare.c.
 */

#ifndef QCOW2_PREPARE_H
#define QCOW2_PREPARE_H

#include "disk/disk.h"
#include "nbd/params.h"

/* Does what the parameters ask for, and opens the disk.  The passphrase is forgotten
 * afterwards.  0, or -1 (reported): what was done before stays done; *DISK may be open.
 */
extern int prepare_disk (struct params *, struct disk **disk);

#endif /* QCOW2_PREPARE_H */
