/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One opened qcow2 image.  See image.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_IMAGE_H
#define QCOW2_IMAGE_H

#include <stdbool.h>

#include "util/bytes.h"
#include "storage/storage.h"
#include "format/crypt.h"
#include "format/header.h"
#include "format/overlap.h"
#include "image/filename.h"
#include "image/health.h"
#include "image/guestdata.h"
#include "image/secret.h"
#include "image/snapshot.h"

/* Which external data file is used. */
enum data_file_policy {
  DATA_FILE_FOLLOW,     /* the one that the header names */
  DATA_FILE_DENY,       /* refuse images that have one */
  DATA_FILE_PATH,       /* data_file_path, whatever the header says */
};

struct image_options {
  struct storage_options file; /* except `name', also for the data file */
  struct image_secret secret;
  enum data_file_policy data_file;
  const char *data_file_path;   /* absolute; DATA_FILE_PATH only */
  struct filename_rules rules;  /* for names in headers */
  uint64_t most_places;         /* limit of L2 tables, refcount blocks and other clusters
                                   of metadata whose places are kept; 0: none */
  bool below_top;               /* a layer below the image that the user named:
                                   DATA_FILE_PATH counts as DATA_FILE_FOLLOW */
};

/* A reader keeps out programs that change the image, a writer keeps out all others. */
enum image_role { IMAGE_READER, IMAGE_WRITER };

struct image_base;

/* All code may read the fields; only the functions below, and code that writes the
 * header, change them.  The comment before each group names the function that sets it. */
struct image {
  /* What lasts as long as the image is open: the same in all of its generations
   * (image_again). */
  struct image_base *base;

  /* image_open_file */
  struct storage *file;

  /* image_read_header, image_open; code that writes the header also updates `header' */
  struct header header;
  struct crypt_cipher *cipher;  /* of the base; NULL: not encrypted */

  /* image_open_data */
  struct storage *data;        /* external data file; NULL: guest data is in `file' */

  /* image_load */
  struct guestdata *guestdata;  /* access to guest data, in one of the two files */
  struct overlap *overlap;      /* the places of metadata */
  struct health *health;        /* of the base */
  struct be64 *l1;              /* NULL, or: the active L1 table as it was then, with
                                   l1_needed entries, because reading entries of it takes
                                   long.  The writable image has its own, in l2.c. */

  /* image_read_snapshots */
  struct snapshots snapshots;

  unsigned owners;              /* atomic */
};

/* --- opening, step by step; callers go only as far as they need --- */

/* Opens the file at PATH (as the user or a header gave it, made absolute), as a reader.
 * For a file that is not a qcow2 image this is the only step.  NULL on error
 * (reported). */
extern struct image *image_open_file (const char *path, const struct storage_options *);
/* Reads and checks the header.  If it says that the image was not closed properly, what
 * is read from now on is durable.  errno EINVAL: the header is invalid. */
extern int image_read_header (struct image *);
/* The same, but the image may lack a refcount table (reftable_clusters is 0), or have
 * more snapshots than QCOW2_MAX_SNAPSHOTS. */
extern int image_read_header_to_check (struct image *);
/* The same for a file that may have been cut off: what the header names may lie beyond
 * its end.  Only for a description of the image. */
extern int image_read_cut_header (struct image *);
/* Does both steps, refuses images with features that are not supported, and unlocks
 * encrypted ones.  NULL on error (reported). */
extern struct image *image_open (const char *path, const struct image_options *);

/* Opens the external data file, if the image has one.  Fails if its name is ambiguous or
 * not allowed, or does not agree with the options. */
extern int image_open_data (struct image *, const struct image_options *);
/* Reports that the data file is already in use, as AS, and sets errno to ELOOP. */
extern void image_data_in_use (const struct image *, const struct storage *as);

/* Keeps image_load and image_read_snapshots from remembering more places than that: they
 * fail with EPERM.  (image_open does this.)  0: no limit. */
extern void image_limit_places (struct image *, uint64_t most);
/* Reads the places of metadata: header, L1 table, refcount table, and the clusters that
 * their entries point to.  Ignores invalid entries; code that follows them reports
 * these. */
extern int image_load (struct image *);
/* Reads the internal snapshots, and registers their metadata.  Without image_load before,
 * `overlap' contains only these.  errno EINVAL: the snapshot table is invalid. */
extern int image_read_snapshots (struct image *);

/* Reads the image anew, after the file was changed, or may have been: returns its next
 * generation, with all that image_read_header, image_load and image_read_snapshots read.
 * Files, locks, cipher and health are those of the old one, which does not change.  NULL:
 * reported. */
extern struct image *image_again (const struct image *);
/* From now on this is the generation whose features are those of the file: see
 * health_adopt. */
extern void image_adopt (struct image *);

/* --- while the image is open --- */

/* Why the image, or its data file, cannot be written.  NULL: it can. */
extern const char *image_why_readonly (const struct image *);

/* Is this the only generation of the image that is in memory? */
extern bool image_is_alone (const struct image *);

/* Does its L1 table lead nowhere, so that it shows what is below it?  1, 0, or -1
 * (reported).  Needs the header only. */
extern int image_is_empty (const struct image *);

/* Opens both read-write, if they are not: see storage_become_writable. */
extern int image_become_writable (struct image *);

extern enum image_role image_role (const struct image *);
/* Locks the image and the data file for the role, both or neither, as QEMU does.  On
 * failure the role does not change.  Without locks (storage_options) it only notes the
 * role. */
extern int image_lock (struct image *, enum image_role);

/* Closes the connections to NBD servers: see storage_disconnect. */
extern void image_disconnect (struct image *);

/* Is the external data file a raw disk image? */
extern bool image_data_is_raw (const struct image *);

/* Adds an owner, which must call image_close. */
extern struct image *image_ref (struct image *);
/* Removes an owner.  After the last one of all generations, closes the files, which drops
 * the locks.  NULL is allowed. */
extern void image_close (struct image *);

#endif /* QCOW2_IMAGE_H */
