/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What commands that change an image have in common.  See edit.c.
 */

#ifndef QCOW2_IMG_CHANGE_H
#define QCOW2_IMG_CHANGE_H

#include <stdbool.h>

#include <jansson.h>

#include "disk/disk.h"
#include "change/bitmapedit.h"
#include "img/command.h"
#include "img/imagefile.h"
#include "img/secrets.h"

/* Calls FN with the disk in the image; with a CHAIN, over its backing files.  Returns
 * what FN does; or -1, reported. */
extern int change_image (struct imagefile *, bool chain,
                         int (*fn) (void *opaque, struct disk *), void *opaque);
/* Calls FN with the image that the first operand names, which must be qcow2 for WHAT,
 * unless that is NULL.  FN returns 0, or -1 (reported).  Returns the exit status. */
extern int change_command (const struct arguments *, const char *what,
                           int (*fn) (const struct arguments *, struct imagefile *,
                                      const struct secrets *));

/* The change as an action of QMP's transaction, for the disk that QMP calls DEVICE. */
extern json_t *change_bitmap_action (const char *device, const struct bitmapedit *);

#endif /* QCOW2_IMG_CHANGE_H */
