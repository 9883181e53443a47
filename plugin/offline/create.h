/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Making a new image: see create.c.
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
  struct newimage_options image;        /* luks_bytes is set by create_image */
  bool size_of_backing;         /* the disk's size is the backing file's */
  const char *data_path;        /* absolute; not NULL if image.data_file is not */
  bool encrypt;                 /* LUKS, with the passphrase of SECRET */
  unsigned iter_ms;             /* how long trying a passphrase takes */
  struct image_secret secret;   /* of the new image, and of the backing file */
  struct filename_rules rules;  /* for the names that it has */
  struct storage_options file; /* lock: of the backing file; try_writable is ignored */

  /* Called before the first file is made, and then every now and then (or NULL): of TOTAL
   * bytes (about, the first time) DONE are written.  -1: stop; reported. */
  int (*progress) (void *opaque, uint64_t done, uint64_t total);
  void *opaque;
};

/* A new image, and its data file if it has one, until it is certain that they stay. */
struct created;

/* Makes it.  0: it is there, whole and durable, and *CREATED says so until one of the two
 * below.  -1 (reported): there is nothing.  EEXIST: there was something, which was left
 * alone. */
extern int create_image (const struct create_options *, struct created **created);
/* It stays.  NULL is fine. */
extern void created_keep (struct created *);
/* Takes it away again, whatever has been written to it.  This process must not have it
 * open otherwise.  What somebody else uses (reported), or has put in its place, stays.
 * NULL is fine. */
extern void created_withdraw (struct created *);

#endif /* QCOW2_CREATE_H */
