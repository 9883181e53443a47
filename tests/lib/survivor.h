/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Checks of a file after a power cut or a failure.  See survivor.c.
 */

#ifndef TEST_SURVIVOR_H
#define TEST_SURVIVOR_H

#include <stdbool.h>

#include "lib/images.h"

/* The name under which the file is saved, for QEMU, for the core, or for examining a
 * failure. */
#define SURVIVOR "crashed.qcow2"

/* Saves the file and fails the trial. */
extern void survivor_fail (const struct blob *, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3), noreturn));

/* Fails the trial if there is corruption, or if there are leaks and they are not allowed.
 * Returns the number of leaks.  WHEN describes the accident, for the message. */
extern unsigned long survivor_check (const struct blob *, bool leaks_allowed,
                                     const char *when);

/* Does the header name this backing file, or a path that ends so?  NAME: "": none. */
extern bool survivor_names (const struct blob *, const char *name);

/* Does the disk have the expected size and contents?  BELOW is the contents of its
 * backing file, or NULL. */
extern bool survivor_shows (const struct blob *, const struct blob *below,
                            const struct blob *expected);

/* Is the entry of the snapshot table at *AT this snapshot, with those contents?  Moves
 * *AT to the next entry. */
extern bool survivor_shows_snapshot (const struct blob *, uint64_t *at,
                                     const struct blob *below, const char *name,
                                     const struct blob *expected);

/* Lets qemu-img check the file SURVIVOR: its metadata, its contents and the contents of
 * the internal snapshot "before" (unless BEFORE has no data).  Fails the trial if
 * anything is wrong. */
extern void survivor_ask_qemu (bool leaks_allowed, const struct blob *expected,
                               const struct blob *before);

#endif /* TEST_SURVIVOR_H */
