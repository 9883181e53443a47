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
#include "offline/newimage.h"

struct create_options {
  const char *path;             /* absolute */
  struct newimage_options image;        /* create_image sets luks_bytes */
  bool size_of_backing;         /* use the size of the backing file's disk */
  const char *data_path;        /* absolute; not NULL if image.data_file is not */
  bool encrypt;                 /* with LUKS and the passphrase in SECRET */
  unsigned iter_ms;             /* target time to test one passphrase */
  struct image_secret secret;   /* of the new image, and of the backing file */
  struct filename_rules rules;  /* for the names in the header */
  struct storage_options file; /* lock is for the backing file; try_writable is ignored */

  /* NULL, or called before the first file is created, and then from time to time: DONE of
   * TOTAL bytes were written (TOTAL is an estimate in the first call).  Returns -1 to
   * stop (reported by it). */
  int (*progress) (void *opaque, uint64_t done, uint64_t total);
  void *opaque;
};

/* A new image, with its data file if it has one, until the caller decides whether to keep
 * it. */
struct created;

/* Creates an image.  0: the image is complete and durable, and *CREATED refers to it
 * until one of the two functions below is called.  -1 (reported): no file was created.
 * EEXIST: a file of that name exists; it was not changed. */
extern int create_image (const struct create_options *, struct created **created);
/* Keeps the new image.  NULL is allowed. */
extern void created_keep (struct created *);
/* Removes the new image, whatever has been written to it.  This process must not have it
 * open in any other way.  Files that another program uses (reported) or has replaced are
 * not removed.  NULL is allowed. */
extern void created_withdraw (struct created *);

#endif /* QCOW2_CREATE_H */
