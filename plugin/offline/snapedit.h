/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are internal snapshots made, applied and deleted?  See snapedit.c.
 *
 * DISCARD: punch holes into what is freed.  0: done, and durable; what is known of the
 * image is out of date (image_reload).  -1: reported, and the image is as it was
 * (unless the message says otherwise).
 */

#ifndef QCOW2_SNAPEDIT_H
#define QCOW2_SNAPEDIT_H

#include "offline/shadow.h"

/* Of the active disk as it is now.  NAME: 1 to 255 bytes. */
extern int snapedit_create (const struct image *, bool discard, const char *name);
/* The active disk becomes what the snapshot is, its size included. */
extern int snapedit_apply (const struct image *, bool discard, const char *name_or_id);
extern int snapedit_delete (const struct image *, bool discard, const char *name_or_id);

#endif /* QCOW2_SNAPEDIT_H */
