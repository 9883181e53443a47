/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One opened qcow2 image: see image.c.
 *
 * Functions that return int return 0, or -1 with errno and the error reported.
 */

#ifndef QCOW2_IMAGE_H
#define QCOW2_IMAGE_H

#include <stdbool.h>

#include "storage/storage.h"
#include "format/crypt.h"
#include "format/header.h"
#include "format/overlap.h"
#include "image/filename.h"
#include "image/health.h"
#include "image/payload.h"
#include "image/secret.h"
#include "image/snapshot.h"

/* About the external data file. */
enum data_file_policy {
  DATA_FILE_FOLLOW,     /* what the header says */
  DATA_FILE_DENY,       /* refuse images that have one */
  DATA_FILE_PATH,       /* this file, whatever the header says */
};

struct image_options {
  struct storage_options file; /* and of the data file, but for `name' */
  struct image_secret secret;
  enum data_file_policy data_file;
  const char *data_file_path;   /* absolute; DATA_FILE_PATH only */
  struct filename_rules rules;  /* for names in headers */
  bool below_top;               /* not the image that the user named, so DATA_FILE_PATH is
                                   not about it: as DATA_FILE_FOLLOW */
};

/* Who is to be kept out: those who change the image, or all others. */
enum image_role { IMAGE_READER, IMAGE_WRITER };

/* The fields may be read by all; only the functions below, and what writes the header,
 * change them.  Those of each group are set by the function that is named. */
struct image {
  /* image_open_file */
  struct storage *file;

  /* image_open; the header is also kept up to date by those who write it */
  struct header header;
  struct crypt_cipher *cipher;  /* NULL: not encrypted */

  /* image_open_data */
  struct storage *data;        /* external data file; NULL: guest data are in `file' */

  /* image_load */
  struct payload *payload;      /* the way to guest data, in one of the two */
  struct overlap *overlap;      /* where metadata are */
  struct health *health;

  /* image_read_snapshots */
  struct snapshots snapshots;

  /* image.c only */
  bool locked;                  /* else nobody is kept out */
  enum image_role role;
  unsigned owners;
};

/* --- opening, step by step; each goes as far as it needs --- */

/* Opens the file at PATH (as the user or a header gave it, made absolute), as a reader.
 * That is all there is of a file that is no image.  NULL on error (reported). */
extern struct image *image_open_file (const char *path, const struct storage_options *);
/* Reads and checks the header.  errno EINVAL: it is no good. */
extern int image_read_header (struct image *);
/* Both, refuses by name what is not served, and unlocks it.  NULL: reported. */
extern struct image *image_open (const char *path, const struct image_options *);

/* Opens the external data file, if it has one.  Fails if it is not clear which, or not
 * allowed, or not what the user says. */
extern int image_open_data (struct image *, const struct image_options *);
/* Reports that its data file is in use already, as AS, and sets errno to ELOOP. */
extern void image_data_in_use (const struct image *, const struct storage *as);

/* Reads where the metadata are: header, L1 table, refcount table, and all that these
 * name.  Entries that are no good are left to those who follow them. */
extern int image_load (struct image *);
/* The image's internal snapshots, whose metadata become known as well; without image_load
 * before, only theirs.  errno EINVAL: a table that is no good. */
extern int image_read_snapshots (struct image *);

/* After the image has changed as a whole, or perhaps has: reads everything anew that
 * image_read_header, image_load and image_read_snapshots read.  Files, locks and cipher
 * stay.  No disk may use the image.  After an error do it again, or close the image. */
extern int image_reload (struct image *);

/* --- while it is open --- */

/* Keeps others out of image file and data file, both or neither, as QEMU does.  On
 * failure the role is what it was.  Without locks (storage_options) it does nothing. */
extern int image_lock (struct image *, enum image_role);

/* Is the external data file a raw image of the disk by itself? */
extern bool image_data_is_raw (const struct image *);

/* One more owner, who calls image_close. */
extern struct image *image_ref (struct image *);
/* The last owner's closes the files, which drops the locks.  NULL is fine. */
extern void image_close (struct image *);

#endif /* QCOW2_IMAGE_H */
