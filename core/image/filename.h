/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Finds the file that a name in the header of an image means.  See filename.c.
 */

#ifndef QCOW2_FILENAME_H
#define QCOW2_FILENAME_H

#include <stdbool.h>
#include <stddef.h>

#include "storage/storage.h"

/* Which connections may names in an image open?  Only those to exports below one of these
 * NBD URIs, which are in normal form. */
struct filename_rules {
  const char *const *allow_uri;
  size_t nr_allow_uri;
};

/* The meaning of NAME as the backing file, or as the external data file, of the image at
 * OVERLAY: a path or an NBD URI, which the caller frees.  RULES: NULL allows no
 * connections.  *FORMAT: "qcow2" or "raw" if the name states it, else NULL.  NULL if the
 * name is not supported, not allowed, or (for a data file) ambiguous (reported). */
extern char *filename_of_backing (const char *overlay, const char *name,
                                  const struct filename_rules *, const char **format);
extern char *filename_of_data (const char *overlay, const char *name,
                               const struct filename_rules *);

/* Is the file at PATH, which is the WHAT ("backing file") of the image at OVERLAY, there?
 * -1, errno ENOENT: no (reported, with CURE, which may be NULL). */
extern int filename_check_there (const char *path, const char *what, const char *overlay,
                                 const char *cure);

/* Is the one at PATH, or an NBD URI, that FILE?  (A server is not asked.)  Reports what
 * cannot be opened. */
extern bool filename_is_file (const char *path, const struct storage_hooks *,
                              const struct storage *file);
/* Does NAME, as the backing file of the image at path IMAGE, mean FILE?  It may mean
 * nothing that exists (ENOENT).  False with ENOMEM: nobody knows.  Reports nothing. */
extern bool filename_means (const char *image, const char *name,
                            const struct filename_rules *, const struct storage_hooks *,
                            const struct storage *file);

/* Does NAME begin with a protocol ("nbd:", "json:", "file:")? */
extern bool filename_has_protocol (const char *name);
/* The same backing file as qemu-img shows it: a relative NAME is appended to the
 * directory of OVERLAY, which may be relative too.  Anything else is NAME itself.  The
 * file need not exist, nor be allowed.  The caller frees the result.  NULL on ENOMEM. */
extern char *filename_shown (const char *overlay, const char *name);

#endif /* QCOW2_FILENAME_H */
