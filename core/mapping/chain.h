/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files are below the top image?  See chain.c.
 */

#ifndef QCOW2_CHAIN_H
#define QCOW2_CHAIN_H

#include <stdbool.h>

#include "format/header.h"
#include "image/image.h"
#include "mapping/layers.h"

enum backing_policy {
  BACKING_FOLLOW,       /* what the header says */
  BACKING_DENY,         /* refuse images with a backing file */
  BACKING_PATH,         /* this file, whatever the header says */
  BACKING_IGNORE,       /* none, whatever the header says */
};

struct chain_options {
  enum backing_policy backing;
  const char *backing_path;     /* absolute; BACKING_PATH only */
  const char *backing_format;   /* of the top image's backing file: "qcow2", "raw" or
                                   NULL */
  bool below_top;               /* look for something other than the top image's backing
                                   file */
  struct image_options image;   /* for all images; try_writable applies to the top
                                   image */
};

/* Finds what is below the image at OVERLAY: sets *PATH (the caller frees it) and *FORMAT
 * ("qcow2" or "raw"), or both to NULL if there is nothing.  H is the header of that
 * image, NULL if it is raw.  Returns 0, or -1 if the backing file is not certain or not
 * allowed (reported). */
extern int chain_below (const char *overlay, const struct header *h,
                        const struct chain_options *, char **path,
                        const char **format);
/* The FORMAT that a header states for the backing file at PATH; "raw" for a driver of
 * QEMU that is for such a file: "file", or for a block device "host_device" and
 * "host_cdrom".  (Where nothing is, all are.) */
extern const char *chain_format (const char *format, const char *path);
/* Is the file at PATH, which chain_below has found, there?  -1, errno ENOENT: no
 * (reported, with the image that wants it). */
extern int chain_check_there (const char *overlay, const char *path,
                              const struct chain_options *);
/* Changes options for the top image into those for the image below it. */
extern void chain_go_below_top (struct chain_options *);

#define CHAIN_MAX_LAYERS 4096

/* Allows N files to be opened. */
extern void chain_reserve_files (unsigned n);

/* Adds all layers below the image at the bottom of LAYERS (which is the top image).
 * Returns 0 or -1 (reported). */
extern int chain_open (struct layers *, const struct chain_options *);

#endif /* QCOW2_CHAIN_H */
