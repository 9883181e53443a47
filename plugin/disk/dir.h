/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which images of a directory are open?  See dir.c.
 */

#ifndef QCOW2_DIR_H
#define QCOW2_DIR_H

#include "disk/disk.h"
#include "disk/export.h"

struct dir;
struct dir_image;

/* OPTIONS: of all images; `path' is absolute, and that of the directory; `name', `dir'
 * and `map' are not used.  What it points to must outlive the result.
 * -1: reported. */
extern int dir_open (const struct disk_options *options, struct dir **);
/* No request may be running.  Images that clients have not left are closed, too.
 * -1: some image could not be closed in order (reported). */
extern int dir_close (struct dir *);

/* Calls EMIT for each image that is there now, in no order, until it returns other than
 * 0, which is returned; *UNLISTED: how many have no name for a client (exports_may_list).
 * It looks at the first bytes of each file.  -1: reported, or EMIT returned that. */
extern int dir_list (struct dir *, export_fn emit, void *opaque, unsigned *unlisted);

/* Exports are called "IMAGE", or "IMAGE/EXPORT": the image comes into use, and is opened
 * unless it is open; *EXPORT is the rest of NAME, "" if there is none.  Any name may be
 * given.  NULL: there is no such image, or it can't be opened (reported).  Any thread. */
extern struct dir_image *dir_enter (struct dir *, const char *name,
                                    const char **export);
/* Leaves it: the last one closes it. */
extern void dir_leave (struct dir *, struct dir_image *);

extern struct disk *dir_disk (struct dir_image *);

/* Sums over all images, also those that are closed. */
extern void dir_get_stats (struct dir *, struct disk_stats *);

#endif /* QCOW2_DIR_H */
