/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The size of a raw image.  See rawsize.c.
 */

#ifndef QCOW2_IMG_RAWSIZE_H
#define QCOW2_IMG_RAWSIZE_H

#include <stdint.h>

#include "format/preallocation.h"
#include "storage/storage.h"

/* Gives a raw image SIZE bytes, with space for what is new, durably.  A device keeps its
 * size, which must suffice.  Shows progress.  -1 (reported): it has its old size. */
extern int rawsize_set (struct storage *, uint64_t size, enum preallocation);

#endif /* QCOW2_IMG_RAWSIZE_H */
