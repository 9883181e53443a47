/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Puts a new image on top of a disk: an external snapshot.  See overlay.c.
 */

#ifndef QCOW2_OVERLAY_H
#define QCOW2_OVERLAY_H

#include <stdbool.h>

#include "disk/disk.h"

struct overlay {
  const char *path;             /* absolute, of the new image */
  bool create;                  /* there must be no file yet; else the image is there, and
                                   is empty */
  struct image *image;          /* NULL, or: it is open already, and loaded */
};

/* From now on the disk writes the new image, and what was its image is the backing file,
 * which is not written any more.  What the disk shows does not change.  Internal
 * snapshots and bitmaps stay in the backing file.  0: done; to use the disk later, open
 * the new image.  -1 (reported): as before; an image that was created is removed. */
extern int overlay_disk (struct disk *, const struct overlay *);

/* The same in steps. */
struct overlaying;
/* Creates or opens the new image, and checks it; clients go on.  NULL: reported. */
extern struct overlaying *overlay_prepare (struct disk *, const struct overlay *);
/* Will the change be refused?  Locks both images as a writer.  0, or -1 (reported). */
extern int overlay_check (struct overlaying *);
/* The new image.  It belongs to the plan. */
extern const struct image *overlay_top (const struct overlaying *);
/* The change, once.  0 or -1, as above. */
extern int overlay_make (struct overlaying *);
/* The disk goes on as before that; its gate was closed all the time, and nothing was
 * written to it since.  -1: reported. */
extern int overlay_take_back (struct overlaying *);
/* MADE: it is, and was not taken back.  Accepts NULL. */
extern void overlay_end (struct overlaying *, bool made);

#endif /* QCOW2_OVERLAY_H */
