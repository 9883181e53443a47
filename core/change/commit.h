/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Moves the data of an image into its backing file.  See commit.c.
 */

#ifndef QCOW2_COMMIT_H
#define QCOW2_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "change/chunks.h"

/* Writes to the backing file all that the image itself contains, so that both show the
 * same (if the backing file is larger, in the part that the image has).  Then makes the
 * image empty, unless KEEP.  The image was opened with the same options
 * (disk_open_image); no disk uses it, and afterwards it is to be read anew (image_again).
 * *COPIED: bytes of data written.
 *
 * -1: reported; the image is unchanged and complete.  The backing file may already
 * contain some of the data, which the image hides.  The next call does all of it
 * again. */
extern int commit_image (const struct image *, const struct disk_options *, bool keep,
                         const struct chunks_watch *, uint64_t *copied);

#endif /* QCOW2_COMMIT_H */
