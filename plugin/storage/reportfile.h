/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that programs read: see reportfile.c.
 */

#ifndef QCOW2_REPORTFILE_H
#define QCOW2_REPORTFILE_H

#include <stdbool.h>
#include <stdio.h>

struct report_kind {
  const char *key;              /* the parameter that asks for it, for messages */
  const char *begins;           /* how all of this kind begin, and no other file */
};

/* May a report be written to PATH, an absolute one?  What this process has open itself
 * when it is asked (the files of a disk) is refused.  REPEATEDLY: again and again, so
 * that it must be a file that can be replaced.  -1: no; reported. */
extern int reportfile_check (const struct report_kind *, const char *path,
                             bool repeatedly);

/* Would one of these paths, both absolute, replace what is written to the other? */
extern bool reportfile_same (const char *path, const char *other);

/* Writes what PRINT does, which begins as KIND says.  A file that is there is replaced,
 * at once, or not at all; a link to one stays a link.  Terminals and pipes are written
 * to, and what this process has open (/dev/stdout) through its descriptor, where that
 * stands.  What may not be written to is refused, as in reportfile_check.  DURABLE: a
 * file is, on return.  -1: reported.  Any thread. */
extern int reportfile_write (const struct report_kind *, const char *path,
                             bool durable, void (*print) (FILE *, const void *opaque),
                             const void *opaque);

#endif /* QCOW2_REPORTFILE_H */
