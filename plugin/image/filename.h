/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in an image's header mean?  See filename.c.
 */

#ifndef QCOW2_FILENAME_H
#define QCOW2_FILENAME_H

/* The path that NAME means as the backing file, or as the external data file, of the
 * image at OVERLAY; to be freed.  NULL: none that is served, or (for a data file) not
 * clear which (reported). */
extern char *filename_of_backing (const char *overlay, const char *name);
extern char *filename_of_data (const char *overlay, const char *name);

#endif /* QCOW2_FILENAME_H */
