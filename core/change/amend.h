/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the version and the features of an image.  See amend.c.
 */

#ifndef QCOW2_AMEND_H
#define QCOW2_AMEND_H

#include <stdbool.h>

#include "disk/disk.h"

enum amend_choice { AMEND_KEEP, AMEND_OFF, AMEND_ON };

struct amend {
  unsigned version;             /* 2 or 3; 0: as it is */
  unsigned refcount_bits;       /* 0: as they are */
  enum amend_choice lazy_refcounts;
  enum amend_choice data_file_raw;
  const char *data_file;        /* its name in the header; "": none; NULL: as it is */
};

/* Makes all of these changes in one step; the disk shows the same data, and goes on with
 * the data file that it has opened, whatever the header names.  Returns 0, or -1
 * (reported): the image is unchanged, unless its health has failed. */
extern int amend_disk (struct disk *, const struct amend *);

#endif /* QCOW2_AMEND_H */
