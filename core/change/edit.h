/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes an image before it is served.  See edit.c.
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
  const char *name;             /* name or id of the snapshot */
  int sign;                     /* EDIT_RESIZE: 0: to SIZE; +1, -1: by SIZE */
  uint64_t size;                /* bytes */
};

struct edit_options {
  bool shrink;                  /* allow a smaller size */
  enum preallocation preallocation;     /* when growing */
};

/* The size, in bytes, that an EDIT_RESIZE gives to a disk of OLD bytes.  Returns NULL, or
 * the reason why the size is refused. */
extern const char *edit_choose_size (const struct edit *, const struct edit_options *,
                                     uint64_t old, uint64_t *size);
/* Makes N changes of an image, one after the other; each is complete and durable, or has
 * not happened.  The image was opened with the same options (disk_open_image).  It is
 * locked as by a writer from then on, until it is closed, and its fields are out of date.
 * Returns 0, or -1 (reported): the changes before the one that failed are done. */
extern int edit_image (struct image *, const struct disk_options *,
                       const struct edit_options *, const struct edit *,
                       unsigned n);

/* For any such change: on return, no other program uses the image (it is locked as by a
 * writer until it is closed), its fields agree with the file, and it is in order if a
 * crash has left it marked.  DATA_FILE: the change is possible with an external data
 * file.  -1: reported. */
extern int edit_begin (struct image *, const struct disk_options *, bool data_file);

/* Does NAME, in the header of the image, mean FILE?  It may mean nothing that exists.  (A
 * server is not asked.) */
extern bool edit_name_means (const struct disk_options *, const char *name,
                             const struct storage *file);

#endif /* QCOW2_EDIT_H */
