/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Creates a new image.  See create.c.
 */

#ifndef QCOW2_CREATE_H
#define QCOW2_CREATE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "image/filename.h"
#include "image/secret.h"
#include "change/newimage.h"

struct create_options {
  const char *path;             /* absolute */
  struct newimage_options image;        /* create_image sets luks_bytes */
  bool size_of_backing;         /* use the size of the backing file's disk */
  bool unsafe;                  /* the backing file need not exist, nor be an image */
  const char *data_path;        /* absolute; not NULL if image.data_file is not */
  bool overwrite;               /* a device may contain data */
  bool replace;                 /* a file may exist, and is replaced: see
                                   created_publish */
  bool encrypt;                 /* with LUKS and the passphrase in SECRET */
  unsigned iter_ms;             /* target time to test one passphrase */
  struct image_secret secret;   /* of the new image, and of the backing file */
  struct filename_rules rules;  /* for the names in the header */
  struct storage_options file; /* lock is for the backing file and for what is replaced;
                                   try_writable is ignored */

  /* NULL, or called before the first file is created, and then from time to time: DONE of
   * TOTAL bytes were written (TOTAL is an estimate in the first call).  Returns -1 to
   * stop (reported by it). */
  int (*progress) (void *opaque, uint64_t done, uint64_t total);
  void *opaque;
};

/* The name for the header of the data file at DATA_PATH, of the image at PATH: as GIVEN
 * if that is a relative name in the directory of the image, so that both can be moved;
 * otherwise DATA_PATH, which means the same from everywhere. */
extern const char *create_data_name (const char *given, const char *data_path,
                                     const char *path);

/* A new image, with its data file if it has one, until the caller decides whether to keep
 * it. */
struct created;

/* Creates an image: in a new file, or on a block device or an NBD export, which exists.
 * 0: the image is complete and durable, and *CREATED, which OPTIONS must outlive, refers
 * to it until it is kept or withdrawn.  -1 (reported): no file was created, and a device
 * has no new image.  EEXIST: a file of that name exists, or the device has data; neither
 * was changed. */
extern int create_image (const struct create_options *, struct created **created);
/* With `replace': gives a new file, whose contents are complete by now, its name.  (Until
 * then, created_place says how to open it; NULL in it: by its path, which it has.)  -1:
 * reported; to be withdrawn. */
extern int created_publish (struct created *);
extern struct dirfile created_place (const struct created *);
/* Of the disk, in bytes. */
extern uint64_t created_disk_size (const struct created *);
/* Is the new image on a device that is smaller than the image can become?  *MOST: how
 * large that is; UINT64_MAX: unknown.  *SIZE: of the device. */
extern bool created_may_outgrow (const struct created *, uint64_t *most, uint64_t *size);
/* Keeps the new image.  NULL is allowed. */
extern void created_keep (struct created *);
/* Removes the new image, whatever has been written to it.  A device reads as zeros again
 * if it did before.  This process must not have it open in any other way.  Files that
 * another program uses (reported) or has replaced are not removed.  NULL is allowed. */
extern void created_withdraw (struct created *);

#endif /* QCOW2_CREATE_H */
