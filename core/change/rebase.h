/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Puts an image over another backing file, or makes it independent.  See rebase.c.
 */

#ifndef QCOW2_REBASE_H
#define QCOW2_REBASE_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "copy/chunks.h"

struct rebase {
  const char *name;             /* of the new backing file, for the header; relative names
                                   are relative to the image.  "": none */
  const char *format;           /* its format, "qcow2" or "raw"; NULL without a name */
  bool unsafe;                  /* only the header changes: the disk shows whatever the
                                   new backing file, which may not exist, contains */
};

/* Copies into the image what the disk shows of its backing chain and would not show of
 * the new one, then has the header name the new one.  Does nothing if it has no backing
 * file and is to have none.  *COPIED: bytes of data written.  -1: reported; the image is
 * as valid as before and shows the same data, and the next call resumes with the rest.
 * No client may use the disk.  SECRET: unlocks the new chain.  (For the unsafe mode, the
 * disk is opened without its chain.) */
extern int rebase_disk (struct disk *, const struct image_secret *, const struct rebase *,
                        const struct chunks_watch *, uint64_t *copied);

#endif /* QCOW2_REBASE_H */
