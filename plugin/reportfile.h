/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that programs read: see reportfile.c.
 */

#ifndef QCOW2_REPORTFILE_H
#define QCOW2_REPORTFILE_H

#include <stdbool.h>
#include <stdio.h>

/* May JSON be written to PATH?  REPEATEDLY: again and again, so that it must be a file that
 * can be replaced.  KEY: the parameter, for messages.  -1: no; reported. */
extern int reportfile_check (const char *key, const char *path, bool repeatedly);

/* Writes what PRINT does.  A file that is there is replaced, at once, or not at all; a link
 * to one stays a link.  Terminals, pipes, and what /dev and /proc lead to are written to
 * in place.  DURABLE: on return.  -1: reported.  Any thread. */
extern int reportfile_write (const char *key, const char *path, bool durable,
                             void (*print) (FILE *, const void *opaque),
                             const void *opaque);

#endif /* QCOW2_REPORTFILE_H */
