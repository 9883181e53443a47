/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which image does the user name, and how is it opened?  See imagefile.c.
 */

#ifndef QCOW2_IMG_IMAGEFILE_H
#define QCOW2_IMG_IMAGEFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "disk/disk.h"
#include "img/command.h"
#include "img/secrets.h"

struct imagefile {
  char *given;                  /* as the user calls it, without secrets: for messages */
  bool raw;                     /* its format; otherwise qcow2 */
  bool uri;                     /* it is an NBD export */
  /* For disk_open and the like; the strings are those of the imagefile and of the
   * secrets.  No lock with -U. */
  struct disk_options options;
  /* Belong to imagefile.c: */
  char *path, *backing_path, *data_file_path;
  char **uris;                  /* with their secrets */
  const char **allow;           /* some of them */
  size_t nr_uris, nr_allow;
  const char **passphrases;
};

/* The existing image that OPERAND means with the IMAGE_OPTIONS, and -U if the command has
 * it.  FORMAT: "qcow2", "raw", or NULL: it is probed.  NULL: reported. */
extern struct imagefile *imagefile_named (const struct arguments *, const char *operand,
                                          const char *format, const struct secrets *);
/* The same with a NAME that --image-opts does not concern. */
extern struct imagefile *imagefile_other (const struct arguments *, const char *name,
                                          const char *format, const struct secrets *);
/* The same for an image that need not exist, with a NAME that --image-opts does not
 * concern, and with FORMAT. */
extern struct imagefile *imagefile_new (const struct arguments *, const char *name,
                                        const char *format, const char *passphrase);
extern void imagefile_free (struct imagefile *);        /* NULL is allowed */

/* Images may name what is below this NBD URI.  -1: reported. */
extern int imagefile_allow_uri (struct imagefile *, const char *uri);
/* The absolute path of the file that a user calls NAME; the caller frees it.  NULL:
 * reported. */
extern char *imagefile_path (const char *name);

/* The passphrase of the next encrypted image of the chain, from the top; and those of the
 * chain of OTHER that are below ABOVE encrypted images.  -1: reported. */
extern int imagefile_add_passphrase (struct imagefile *, const char *passphrase);
extern int imagefile_add_passphrases_below (struct imagefile *,
                                            const struct imagefile *other, size_t above);

/* -1 (reported) if it is raw: raw images do not support WHAT. */
extern int imagefile_need_qcow2 (const struct imagefile *, const char *what);
/* Before the image is written: an NBD export has no locks, and qemu-img needs none. */
extern void imagefile_will_write (struct imagefile *);

/* How option_cache or option_src_cache, if it was given, has the host cache an image.
 * (UNSAFE is up to the caller.) */
extern enum storage_cache imagefile_cache (const struct arguments *, const struct option *);

/* "qcow2" or "raw"?  -1: it is neither (reported, for the option WHAT). */
extern int imagefile_parse_format (const char *what, const char *format, bool *raw);

#endif /* QCOW2_IMG_IMAGEFILE_H */
