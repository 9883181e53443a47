/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The parameters for new images: see createparams.c.
 */

#ifndef QCOW2_CREATEPARAMS_H
#define QCOW2_CREATEPARAMS_H

#include <stdbool.h>

#include "create.h"
#include "disk.h"

struct createparams {
  struct create_options options;        /* its strings outlive it */
  bool wanted;                  /* create= was given */
  const char *first;            /* the first parameter that needs it */
  const char *backing_file;
  /* data-file=PATH, which params.c knows: as given; options.data_path is absolute. */
  const char *data_file;
};

#define CREATEPARAMS_DEFAULT {                                               \
  .options = {                                                               \
    .image = { .cluster_size = 65536, .version = 3, .refcount_bits = 16 },    \
    .iter_ms = 2000,                                                         \
  },                                                                         \
}

/* One parameter.  1: it was one of these; 0: it is none; -1: reported. */
extern int createparams_set (struct createparams *, const char *key,
                             const char *value);
/* There are no more.  PATH is the image, DISK how it will be opened, SNAPSHOT what of it
 * will be served (or NULL).  0, or -1 (reported). */
extern int createparams_complete (struct createparams *, const char *path,
                                  const struct disk_options *disk,
                                  const char *snapshot);
/* Makes the image, if that is wanted, with the passphrase of DISK, and shows on a
 * terminal how far it is.  0, or -1 (reported). */
extern int createparams_run (struct createparams *, const struct disk_options *disk);

#endif /* QCOW2_CREATEPARAMS_H */
