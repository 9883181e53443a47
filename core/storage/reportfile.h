/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that other programs read.  See reportfile.c.
 */

#ifndef QCOW2_REPORTFILE_H
#define QCOW2_REPORTFILE_H

#include <stdbool.h>
#include <stdio.h>

struct report_kind {
  const char *key;              /* the parameter that asks for the report, for messages */
  const char *begins[2];        /* the first bytes of all files of this kind, and of no
                                   other; the second NULL if there is one form only */
};

/* May a report be written to PATH (absolute)?  Files that this process has opened itself
 * (the files of a disk) are refused.  REPEATEDLY: the report is written again and again,
 * so it must be a file that can be replaced.  Returns 0, or -1 (reported) if not. */
extern int reportfile_check (const struct report_kind *, const char *path,
                             bool repeatedly);

/* Would a report written to one of these absolute paths replace that of the other? */
extern bool reportfile_same (const char *path, const char *other);

/* Writes the output of PRINT, which must begin as KIND says.  PRINT returns 0, or -1 with
 * errno; it may be called twice.
 * An existing file is replaced at once, or not at all; a link to a file stays a link.
 * Terminals and pipes are written to.  A file that this process inherited
 * (/dev/stdout) is written through its descriptor, at its position.  Files that must not
 * be replaced are refused, as in reportfile_check.  DURABLE: a file and its name
 * are durable on return.
 * Returns 0 or -1 (reported).  Any thread may call this. */
extern int reportfile_write (const struct report_kind *, const char *path,
                             bool durable, int (*print) (FILE *, const void *opaque),
                             const void *opaque);

#endif /* QCOW2_REPORTFILE_H */
