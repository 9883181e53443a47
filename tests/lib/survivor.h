/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is asked of a file that an accident has left.  See survivor.c.
 */

#ifndef TEST_SURVIVOR_H
#define TEST_SURVIVOR_H

#include <stdbool.h>

#include "lib/images.h"

/* The name under which it is kept, for QEMU, for us, or for those who look into a
 * failure. */
#define SURVIVOR "crashed.qcow2"

/* Keeps it and fails the trial. */
extern void survivor_fail (const struct blob *, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3), noreturn));

/* There is no corruption, and no leak unless they are allowed; or the trial fails.
 * Returns how many leaks there are.  WHEN: the accident, for the message. */
extern unsigned long survivor_check (const struct blob *, bool leaks_allowed,
                                     const char *when);

/* Has the disk the size and the contents that are expected?  BELOW: of its backing file,
 * or NULL. */
extern bool survivor_shows (const struct blob *, const struct blob *below,
                            const struct blob *expected);

/* qemu-img looks at the file SURVIVOR: at its metadata, at its contents and at the
 * contents of the internal snapshot "before" (unless BEFORE has no data); or the trial
 * fails. */
extern void survivor_ask_qemu (bool leaks_allowed, const struct blob *expected,
                               const struct blob *before);

#endif /* TEST_SURVIVOR_H */
