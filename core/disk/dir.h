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

/* OPTIONS are for all images.  `path' is the absolute path of the directory; of
 * `in_dir', only `follow' is used, and `map' is not.  Everything to which they point must
 * outlive the result.  Returns 0, or -1 (reported). */
extern int dir_open (const struct disk_options *options, struct dir **);
/* No request may be running.  Images that clients have not left are closed, too.  Returns
 * 0, or -1 if an image could not be closed properly (reported). */
extern int dir_close (struct dir *);

/* Calls EMIT for each image that is in the directory now, in no order, until it returns a
 * value other than 0, which is returned.  *UNLISTED is the number of images whose names
 * cannot be sent to a client (exports_may_list).  Reads the first bytes of each file.
 * -1: reported, or returned by EMIT. */
extern int dir_list (struct dir *, export_fn emit, void *opaque, unsigned *unlisted);

/* An export is called "IMAGE" or "IMAGE/EXPORT".  Adds a user to the image, and opens it
 * unless it is open.  *EXPORT is the rest of NAME, or "".  NAME may be any string from a
 * client.  Returns NULL if there is no such image, or it cannot be opened (reported).
 * Any thread. */
extern struct dir_image *dir_enter (struct dir *, const char *name,
                                    const char **export);
/* dir_enter has failed for this export, though there is such a file: WHY is for
 * dir_each_bad. */
extern void dir_refused (struct dir *, const char *export, const char *why);
/* Removes a user; the last one closes the image, unless that would lose changes for which
 * there is no space now. */
extern void dir_leave (struct dir *, struct dir_image *);

/* A user of the image keeps it open from now on until dir_close. */
extern void dir_keep (struct dir *, struct dir_image *);

extern struct disk *dir_disk (struct dir_image *);
extern const char *dir_name (const struct dir_image *);

/* Calls FN for each image that is open now, with its name, until FN returns a value other
 * than 0, which is returned. */
typedef int (*dir_fn) (void *opaque, const char *name, struct disk *);
extern int dir_each (struct dir *, dir_fn, void *opaque);

/* Calls FN for each image that had failed or was corrupt when it was closed, or could not
 * be opened, and was not opened again since; the last ones.  (One may be met twice, or
 * not, if the list changes meanwhile.) */
typedef void (*dir_bad_fn) (void *opaque, const char *name, const struct disk_state *);
extern void dir_each_bad (struct dir *, dir_bad_fn, void *opaque);

/* disk_hang_up of all images that are open now. */
extern void dir_hang_up (struct dir *);

/* Sums over all images, including those that were closed. */
extern void dir_get_stats (struct dir *, struct disk_stats *);

#endif /* QCOW2_DIR_H */
