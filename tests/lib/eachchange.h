/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Each kind of change of an image that nothing else uses, with a small image that has
 * something of everything that this kind touches; and what else reads or writes such an
 * image in a way of its own.  See eachchange.c.
 */

#ifndef TEST_EACHCHANGE_H
#define TEST_EACHCHANGE_H

#include <stdbool.h>

#include "disk/disk.h"
#include "lib/images.h"

#define EACHCHANGE_IMAGE "top.qcow2"

struct each_change {
  const char *name;
  /* Makes EACHCHANGE_IMAGE, and the files that belong to it, in the current directory. */
  void (*make) (void);
  /* Makes the change of the image that OPTIONS name, with their hooks.  0 or -1. */
  int (*run) (const struct disk_options *options);
  const char *second;           /* a second file that it changes, or NULL */
  bool huge;                    /* a disk too large to be read as a whole */
  bool stops_anywhere;          /* if it fails, it may leave a part of the change, or
                                   leaks */
  bool once;                    /* cannot be made again, if it was only after it that
                                   something failed */
  bool judges;                  /* may call an image corrupt that cannot be read */
  bool repairs;                 /* the image is not in order before */
  bool reads;                   /* it changes nothing */
  bool needs_files;             /* it cannot be had over NBD */
  bool slow;                    /* many times would take long */
};

/* trials_run; but each change is made if FAULTS is in the environment. */
extern unsigned each_change_run (const char *name, void (*trial) (struct rng *));
/* The one that the current trial is about. */
extern const struct each_change *each_change_now (void);
/* From 0; NULL: there are not so many. */
extern const struct each_change *each_change_number (unsigned);

/* What the backing file of all these images contains; its memory belongs to this
 * module. */
extern const struct blob *each_change_below (void);
/* For an image at PATH (absolute). */
extern struct disk_options each_change_options (const char *path,
                                                const struct storage_hooks *);

#endif /* TEST_EACHCHANGE_H */
