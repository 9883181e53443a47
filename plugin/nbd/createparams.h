/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The parameters for new images: see createparams.c.
 */

#ifndef QCOW2_CREATEPARAMS_H
#define QCOW2_CREATEPARAMS_H

#include <stdbool.h>

#include "disk/disk.h"
#include "offline/create.h"

struct createparams {
  struct create_options options;        /* its strings outlive it */
  bool wanted;                  /* create= was given */
  const char *backing_file;
  /* data-file=PATH, which params.c knows: as given; options.data_path is absolute. */
  const char *data_file;
  struct created *created;      /* what createparams_run made, until it is settled */
};

#define CREATEPARAMS_DEFAULT {                                               \
  .options = {                                                               \
    .image = { .cluster_size = 65536, .version = 3, .refcount_bits = 16 },    \
    .iter_ms = 2000,                                                         \
  },                                                                         \
}

/* There are no more parameters, and they go together.  PATH is the image, DISK how it
 * will be opened. */
extern void createparams_complete (struct createparams *, const char *path,
                                   const struct disk_options *disk);
/* Makes the image, if that is wanted, with the passphrase of DISK, and shows on a
 * terminal how far it is.  0, or -1 (reported). */
extern int createparams_run (struct createparams *, const struct disk_options *disk);
/* Whatever was made stays if it is going to be served, and else is removed.  Nothing may
 * have it open then. */
extern void createparams_settle (struct createparams *, bool served);

#endif /* QCOW2_CREATEPARAMS_H */
