/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that programs read: see reportfile.c.
 */

#ifndef QCOW2_REPORTFILE_H
#define QCOW2_REPORTFILE_H

#include <stdbool.h>
#include <stdio.h>

/* May JSON be written to PATH, an absolute one?  REPEATEDLY: again and again, so that
 * it must be a file that can be replaced.  KEY: the parameter, for messages.  -1: no;
 * reported. */
extern int reportfile_check (const char *key, const char *path, bool repeatedly);

/* Writes what PRINT does.  A file that is there is replaced, at once, or not at all; a
 * link to one stays a link.  Terminals and pipes are written to, and what this process
 * has open (/dev/stdout) through its descriptor, where that stands.  What may not be
 * written to is refused, as in reportfile_check.  DURABLE: a file is, on return.  -1:
 * reported.  Any thread. */
extern int reportfile_write (const char *key, const char *path, bool durable,
                             void (*print) (FILE *, const void *opaque),
                             const void *opaque);

#endif /* QCOW2_REPORTFILE_H */
