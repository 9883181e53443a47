/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which new image does the user want to create?  See createparams.c.
 */

#ifndef QCOW2_CREATEPARAMS_H
#define QCOW2_CREATEPARAMS_H

#include <stdbool.h>

#include "disk/disk.h"
#include "change/create.h"

struct createparams {
  struct create_options options;        /* its strings must outlive it */
  bool wanted;                  /* create= was given */
  const char *backing_file;
  /* The value of data-file=PATH as given (params.c); options.data_path is absolute. */
  const char *data_file;
  struct created *created;      /* made by createparams_run; NULL after
                                   createparams_settle */
};

#define CREATEPARAMS_DEFAULT {                                               \
  .options = {                                                               \
    .image = { .cluster_size = 65536, .version = 3, .refcount_bits = 16 },    \
    .iter_ms = 2000,                                                         \
  },                                                                         \
}

/* Call it after all parameters were set and checked.  PATH is the image, DISK the options
 * with which it will be opened. */
extern void createparams_complete (struct createparams *, const char *path,
                                   const struct disk_options *disk);
/* Creates the image if create= was given, with the passphrase of DISK, and shows progress
 * on a terminal.  Returns 0, or -1 (reported). */
extern int createparams_run (struct createparams *, const struct disk_options *disk);
/* SERVED: keeps the image that was created; otherwise removes it, and nothing may have it
 * open. */
extern void createparams_settle (struct createparams *, bool served);

#endif /* QCOW2_CREATEPARAMS_H */
