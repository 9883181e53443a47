/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in an image's header mean?  See filename.c.
 */

#ifndef QCOW2_FILENAME_H
#define QCOW2_FILENAME_H

#include <stddef.h>

/* Which connections may a name in an image open?  Only to what is below one of these NBD
 * URIs, in normal form. */
struct filename_rules {
  const char *const *allow_uri;
  size_t nr_allow_uri;
};

/* What NAME means as the backing file, or as the external data file, of the image at
 * OVERLAY: a path or an NBD URI; to be freed.  RULES: NULL allows no connections.  *FORMAT:
 * the name says that it is "qcow2" or "raw", else NULL.  NULL: nothing that is served, or
 * not allowed, or (for a data file) not clear which (reported). */
extern char *filename_of_backing (const char *overlay, const char *name,
                                  const struct filename_rules *, const char **format);
extern char *filename_of_data (const char *overlay, const char *name,
                               const struct filename_rules *);

#endif /* QCOW2_FILENAME_H */
