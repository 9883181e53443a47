/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The options -o of a new image.  See newoptions.c.
 */

#ifndef QCOW2_IMG_NEWOPTIONS_H
#define QCOW2_IMG_NEWOPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "change/create.h"
#include "img/imagefile.h"
#include "img/secrets.h"
#include "img/values.h"

extern const struct option option_options;

struct newoptions {
  struct create_options create; /* all but what newoptions_complete adds; raw images: only
                                   image.preallocation */
  bool has_size;                /* create.image.size was given */
  const char *passphrase;       /* of the new image, or NULL */
  struct key_values given;
  /* Belong to newoptions.c: */
  char *data_path;
};

/* Is OPTION help given? */
extern bool newoptions_asks_for_help (const struct arguments *, const struct option *);
/* Is -o help given?  Then the options of a new image are printed. */
extern bool newoptions_help (const struct arguments *, bool raw);
/* Reads -o.  BACKING, BACKING_FORMAT: the same as the options backing_file and
 * backing_fmt, or NULL.  The secrets must outlive it.  0; -1: reported; newoptions_free
 * in any case. */
extern int newoptions_read (const struct arguments *, bool raw, const char *backing,
                            const char *backing_format, const struct secrets *,
                            struct newoptions *);
/* Is there a backing file, and its format, or neither?  -1: reported. */
extern int newoptions_check_backing (const struct newoptions *);
/* Those without -o. */
extern void newoptions_default (struct newoptions *);
/* For the image F, which must outlive it: a file there is replaced, and a device or an
 * export overwritten.  -1: reported. */
extern int newoptions_complete (struct newoptions *, struct imagefile *);
extern void newoptions_free (struct newoptions *);

/* Milliseconds; luksmake.c limits the result anyway. */
#define MAX_ITER_TIME 60000

/* 2 or 3, as QEMU spells them.  -1: reported. */
extern int parse_compat (const char *what, const char *text, unsigned *version);
/* "off", "metadata", "falloc" or "full"?  -1: none of them (reported). */
extern int parse_preallocation (const char *what, const char *text, enum preallocation *);

#endif /* QCOW2_IMG_NEWOPTIONS_H */
