/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files lie below the top image?  See chain.c.
 */

#ifndef QCOW2_CHAIN_H
#define QCOW2_CHAIN_H

#include <stdbool.h>

#include "format/header.h"
#include "image/image.h"
#include "mapping/layers.h"

enum backing_policy {
  BACKING_FOLLOW,       /* what the header says */
  BACKING_DENY,         /* refuse images that have one */
  BACKING_PATH,         /* this file, whatever the header says */
};

struct chain_options {
  enum backing_policy backing;
  const char *backing_path;     /* absolute; BACKING_PATH only */
  const char *backing_format;   /* "qcow2", "raw" or NULL; of the top image's
                                   backing file */
  bool below_top;               /* not the top image's backing file is looked for */
  struct image_options image;   /* of all of them; try_writable is for the top image */
};

/* *PATH (to be freed) and *FORMAT ("qcow2" or "raw") of what lies below the image at
 * OVERLAY; NULL if there is nothing.  H: its header, NULL if it is raw.  -1: that is not
 * clear, or not allowed (reported). */
extern int chain_below (const char *overlay, const struct header *h,
                        const struct chain_options *, char **path,
                        const char **format);
/* From the top image to the one below it. */
extern void chain_go_below_top (struct chain_options *);

#define CHAIN_MAX_LAYERS 4096

/* That many will be open. */
extern void chain_reserve_files (unsigned layers);

/* Adds all that lies below the image at the bottom of LAYERS (which is the top image). */
extern int chain_open (struct layers *, const struct chain_options *);

#endif /* QCOW2_CHAIN_H */
