/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The parameters of the plugin: see params.c.
 */

#ifndef QCOW2_PARAMS_H
#define QCOW2_PARAMS_H

#include <stdbool.h>

#include "check.h"
#include "createparams.h"
#include "disk.h"
#include "edit.h"

struct params {
  struct disk_options options;  /* its strings are those below */
  struct createparams create;   /* an image that is to be made first */
  const char *snapshot;         /* serve this one, and nothing else; or NULL */
  bool flatten;                 /* copy what is below, before serving */
  struct bitmapedit *bitmaps;   /* to be made before the image is served */
  size_t nr_bitmaps;
  unsigned bitmap_granularity_bits;     /* 0: as QEMU would choose */
  char *path, *backing_path, *data_file_path, *passphrase, *stats, *report;
  char *dir;                    /* or NULL; then it is options.path, too */
  bool backing_set, data_file_set, preallocation_set;
  struct check_options check;   /* complete after params_complete */
  struct edit *edits;           /* in the order in which they were given */
  unsigned nr_edits;
  struct edit_options edit_options;
};

#define PARAMS_DEFAULT {                                                     \
  .options = {                                                               \
    .l2_cache = 32 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,        \
    .discard = true, .lock = true,                                           \
  },                                                                         \
  .create = CREATEPARAMS_DEFAULT,                                            \
}

/* One parameter.  0, or -1 (reported). */
extern int params_set (struct params *, const char *key, const char *value);
/* There are no more: do they go together? */
extern int params_complete (struct params *);
/* Wipes it. */
extern void params_forget_passphrase (struct params *);
extern void params_free (struct params *);

#endif /* QCOW2_PARAMS_H */
