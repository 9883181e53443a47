/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What convert and dd write to.  See copytarget.c.
 */

#ifndef QCOW2_IMG_COPYTARGET_H
#define QCOW2_IMG_COPYTARGET_H

#include "change/bitmapedit.h"
#include "change/create.h"
#include "copy/copy.h"
#include "storage/newfile.h"
#include "img/imagefile.h"
#include "img/newoptions.h"

struct copytarget {
  struct copy_end end;
  enum copy_zeros zeros;        /* what becomes of the zeros of the source */
  bool disappears;              /* nothing is left of it without copytarget_finish */
  /* Belong to copytarget.c: */
  struct imagefile *file;
  bool durable;
  struct created *created;      /* a new image, ... */
  struct newfile *newfile;      /* ... or a new raw file, ... */
  struct storage *raw;          /* ... or a device, or an export; belongs to it */
  struct disk *disk;            /* of a qcow2 image, and its export */
  struct export *export;
};

/* All of them set *T, which copytarget_free then accepts in any case.  The image F must
 * outlive it.  SIZE: bytes, a multiple of 512.  0, or -1 (reported). */

/* A new image with these options, which must outlive the target, too.  What exists is
 * replaced by copytarget_finish. */
extern int copytarget_new (struct copytarget *t, struct imagefile *f, struct newoptions *,
                           uint64_t size);
/* An image that exists, and is at least as large.  IS_ZERO: it reads as zeros. */
extern int copytarget_old (struct copytarget *t, struct imagefile *f, bool is_zero,
                           uint64_t size);

/* Changes the bitmaps of the qcow2 image, after everything was written: see
 * bitmapedit_disk. */
extern int copytarget_edit_bitmaps (struct copytarget *, const struct bitmapedit *,
                                    size_t n, const char *source);
/* Everything was written to a new qcow2 image in a file: closes it, and opens the file
 * that has no name yet, to read it.  The caller closes it. */
extern int copytarget_reopen (struct copytarget *, struct storage **);
/* Everything was written: makes it durable, unless the cache is unsafe, and gives a new
 * image its name. */
extern int copytarget_finish (struct copytarget *);
/* Without copytarget_finish before, a new image disappears.  Keeps errno. */
extern void copytarget_free (struct copytarget *);

#endif /* QCOW2_IMG_COPYTARGET_H */
