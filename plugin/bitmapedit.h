/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do bitmaps come and go, and how are they emptied?  See bitmapedit.c.
 */

#ifndef QCOW2_BITMAPEDIT_H
#define QCOW2_BITMAPEDIT_H

#include <stddef.h>

#include "alloc.h"
#include "bitmapdir.h"
#include "checkpoint.h"
#include "header.h"
#include "health.h"
#include "hostfile.h"
#include "overlap.h"

enum bitmapedit_what { BITMAP_REMOVE, BITMAP_CLEAR, BITMAP_ADD };

struct bitmapedit {
  enum bitmapedit_what what;
  const char *name;
  unsigned granularity_bits;    /* of what is added; 0: as QEMU would choose */
};

struct bitmapedit_image {
  struct hostfile *file;
  struct header *header;
  struct overlap *overlap;
  struct alloc *alloc;
  struct checkpoint *checkpoint;
  struct health *health;
};

/* Makes N changes, all or none of them, in this order, of an image that is writable and
 * that nobody else uses.  DIR: its bitmaps now (n = nr_all = 0: none); it is out of date after
 * that, and so is the image's struct bitmaps: open it anew.  Durable on return,
 * but for what is freed, which the next checkpoint does.
 * -1: reported; nothing has changed, unless the image has failed (R9). */
extern int bitmapedit_apply (const struct bitmapedit_image *,
                             const struct bitmapdir *dir,
                             const struct bitmapedit *, size_t n);

#endif /* QCOW2_BITMAPEDIT_H */
