/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the snapshots and the size of a disk.  See edit.c.
 */

#ifndef QCOW2_EDIT_H
#define QCOW2_EDIT_H

#include "format/preallocation.h"
#include "image/backingref.h"
#include "disk/disk.h"
#include "copy/chunks.h"

enum edit_kind {
  EDIT_SNAPSHOT_CREATE,
  EDIT_SNAPSHOT_APPLY,
  EDIT_SNAPSHOT_DELETE,
  EDIT_RESIZE,
};

struct edit {
  enum edit_kind kind;
  const char *name;             /* name or id of the snapshot */
  int sign;                     /* EDIT_RESIZE: 0: to SIZE; +1, -1: by SIZE */
  uint64_t size;                /* bytes */
};

struct edit_options {
  bool shrink;                  /* allow a smaller size */
  enum preallocation preallocation;     /* when growing */
  const struct chunks_watch *watch;     /* of that, or NULL */
  /* NULL, or is called with OPAQUE when nothing in the disk uses the clusters any more
   * that the change has replaced: is that so elsewhere, too?  (Otherwise they get no
   * holes.) */
  bool (*may_free) (void *opaque);
  void *opaque;
};

/* The size, in bytes, that an EDIT_RESIZE gives to a disk of OLD bytes.  Returns NULL, or
 * the reason why the size is refused. */
extern const char *edit_choose_size (const struct edit *, const struct edit_options *,
                                     uint64_t old, uint64_t *size);
/* Makes N changes of a disk, one after the other; each is complete and durable, or has
 * not happened.  Returns 0, or -1 (reported): the changes before the one that failed are
 * done. */
extern int edit_disk (struct disk *, const struct edit_options *, const struct edit *,
                      unsigned n);

/* Does NAME, in the header of the image at path IMAGE, mean FILE?  It may mean nothing
 * that exists.  (A server is not asked.)  False with ENOMEM (reported): nobody knows. */
extern bool edit_name_means (const struct disk_options *, const char *image,
                             const char *name, const struct storage *file);
/* May the header of the image, which is FILE, name its backing file so?  Such a file may
 * not exist.  But no image lies over itself: -1 (reported). */
extern int edit_check_backing (const struct disk_options *, const struct backingref *,
                               const struct storage *file);

#endif /* QCOW2_EDIT_H */
