/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Making an image independent of the files below it.  See flatten.c.
 */

#ifndef QCOW2_FLATTEN_H
#define QCOW2_FLATTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"

struct flatten_watch {
  /* Called by the thread that called flatten_image, before the first change and then now
   * and again: DONE of TOTAL bytes of the disk have been looked at, and COPIED bytes have
   * been written.  Returns whether to go on. */
  bool (*step) (void *opaque, uint64_t done, uint64_t total, uint64_t copied);
  void *opaque;
  /* If it fails, the caller removes the image: messages don't speak of a next time. */
  bool image_goes;
};

/* Copies all that the image, which was opened with the same options (disk_open_image),
 * shows of the files below it into the image, then takes the backing file's name from its
 * header.  Without such files it does
 * nothing. *COPIED: bytes of host clusters written.  -1: reported; the image is as
 * good as it was, shows the same, and the next call goes on with what is left. */
extern int flatten_image (struct image *, const struct disk_options *,
                          const struct flatten_watch *, uint64_t *copied);

#endif /* QCOW2_FLATTEN_H */
