/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done to an image before it is served?  See edit.c.
 */

#ifndef QCOW2_EDIT_H
#define QCOW2_EDIT_H

#include "format/preallocation.h"
#include "disk/disk.h"

enum edit_kind {
  EDIT_SNAPSHOT_CREATE,
  EDIT_SNAPSHOT_APPLY,
  EDIT_SNAPSHOT_DELETE,
  EDIT_RESIZE,
};

struct edit {
  enum edit_kind kind;
  const char *name;             /* of the snapshot, or its id */
  int sign;                     /* EDIT_RESIZE: 0: to SIZE; +1, -1: by SIZE */
  uint64_t size;                /* bytes */
};

struct edit_options {
  bool shrink;                  /* a smaller size is meant */
  enum preallocation preallocation;     /* when growing */
};

/* The size (bytes) that an EDIT_RESIZE gives a disk of OLD bytes.  NULL, or why it is
 * refused. */
extern const char *edit_choose_size (const struct edit *, const struct edit_options *,
                                     uint64_t old, uint64_t *size);
/* Does N edits of an image, which was opened with the same options (disk_open_image), one
 * after the other; each is complete and durable, or has not happened.  The image is
 * nobody else's from then on, until it is closed, and what is known of it is out of date.
 * 0, or -1 (reported): those before are done. */
extern int edit_image (struct image *, const struct disk_options *,
                       const struct edit_options *, const struct edit *,
                       unsigned n);

#endif /* QCOW2_EDIT_H */
