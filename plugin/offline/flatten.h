/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes an image independent of its backing chain.  See flatten.c.
 */

#ifndef QCOW2_FLATTEN_H
#define QCOW2_FLATTEN_H

#include <stdint.h>

#include "disk/disk.h"
#include "offline/chunks.h"

/* Copies all data that the image shows from its backing chain into the image, then
 * removes the name of the backing file from its header.  The image was opened with the
 * same options (disk_open_image).  Does nothing if the image has no backing file.
 * *COPIED: bytes of host clusters written.  -1: reported; the image is as valid as before
 * and shows the same data, and the next call resumes with the rest. */
extern int flatten_image (struct image *, const struct disk_options *,
                          const struct chunks_watch *, uint64_t *copied);

#endif /* QCOW2_FLATTEN_H */
