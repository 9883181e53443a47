/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Images as ends of what is copied or compared.  See diskend.c.
 */

#ifndef QCOW2_IMG_DISKEND_H
#define QCOW2_IMG_DISKEND_H

#include "copy/copyend.h"
#include "img/imagefile.h"

struct diskend {
  struct copy_end end;
  /* Belong to diskend.c: */
  struct storage *raw;          /* or a disk, and its export */
  struct disk *disk;
  struct export *export;
};

/* Opens the image to read it: the disk, or that of the internal SNAPSHOT, a name or an id
 * (NULL: none).  -1: reported. */
extern int diskend_open (const struct imagefile *, const char *snapshot,
                         struct diskend *);
/* From now on it is only what the qcow2 image itself contains, without its backing file.
 * -1: reported. */
extern int diskend_use_layer (struct diskend *);
/* All zeros, or what was opened.  Keeps errno. */
extern void diskend_close (const struct diskend *);

#endif /* QCOW2_IMG_DISKEND_H */
