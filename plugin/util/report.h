/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the core report errors?  See report.c.
 *
 * nbdkit_error and nbdkit_debug are all that the core needs from nbdkit; test programs
 * link their own.  Report an error once, in the function that knows most about it:
 * operation, file, offset, what was found, %m.  Then return -1 with errno set (both
 * functions preserve errno).  Callers only pass it on.
 */

#ifndef QCOW2_REPORT_H
#define QCOW2_REPORT_H

#include <stdbool.h>

/* Control characters are escaped, wherever they come from, before nbdkit gets the text.
 */
extern void report_error (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));
#define nbdkit_error report_error

/* SILENT: errors of this thread are not reported until it is false again.  For a look at
 * something that will be looked at once more in earnest. */
extern void report_silence (bool silent);

/* For threads that may all meet the same fault: what this thread reports from now on is
 * kept, until report_end_keeping says it, or forgets it unless TELL.  The same twice in a
 * row is said once. */
extern void report_keep (void);
extern void report_end_keeping (bool tell);

extern void nbdkit_debug (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));

#endif /* QCOW2_REPORT_H */
