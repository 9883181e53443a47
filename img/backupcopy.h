/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The copy that becomes a generation.  See backupcopy.c.
 *
 * Functions return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_BACKUPCOPY_H
#define QCOW2_IMG_BACKUPCOPY_H

#include <stdbool.h>
#include <stdint.h>

#include "img/copytarget.h"

struct backupcopy {
  const char *file;             /* for messages */
  const struct copy_end *all;   /* what the disk showed at the instant, ... */
  const struct copy_end *changes;       /* ... and of that what has changed; NULL: all
                                           is copied */
  bool compress;
  uint64_t rate;                /* see copy.h */
  uint64_t begin;               /* what is before that is in the target */
  /* See copy.h. */
  int (*settled) (void *opaque, uint64_t before, uint64_t copied);
  void *opaque;
};

/* Opens the file of a new generation, of SIZE bytes: makes it, or (BEGIN > 0) goes on
 * with the one that is there.  copytarget_free in any case. */
extern int backupcopy_open (const struct backupcopy *, struct copytarget *,
                            struct imagefile *, struct newoptions *, uint64_t size);
/* *BYTES: of data that were copied. */
extern int backupcopy_run (const struct backupcopy *, struct copytarget *,
                           uint64_t *bytes);
/* What is stored shows the same as the disk of the instant, of SIZE bytes.  EBADMSG: it
 * does not. */
extern int backupcopy_verify (const struct backupcopy *, const struct copytarget *,
                              uint64_t size);

#endif /* QCOW2_IMG_BACKUPCOPY_H */
