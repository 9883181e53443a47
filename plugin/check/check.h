/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is this image fit to be served?  See check.c.
 */

#ifndef QCOW2_CHECK_H
#define QCOW2_CHECK_H

#include <stdbool.h>

#include "storage/storage.h"
#include "mapping/chain.h"

enum check_mode { CHECK_OFF, CHECK_QUICK, CHECK_FULL, CHECK_REPAIR };

struct check_options {
  enum check_mode mode;
  const char *path;             /* absolute */
  struct chain_options chain;   /* its secret is not needed */
  const char *report;           /* a path for JSON, or NULL */
};

struct check;

/* Checks the image (and with CHECK_FULL all that lies below it), and repairs it if that
 * was asked for and is needed.  The files stay open, with a reader's locks, until
 * check_free, so that nobody changes them before the disk is opened. 0 and *CHECK: the
 * image may be served.  -1: it may not (reported, also in the report). */
extern int check_image (const struct check_options *, struct check **);
extern void check_free (struct check *);        /* NULL is fine */

/* Writes the report, once: it may go to a pipe.  OPENED: could the disk be opened?  If
 * not (a wrong passphrase, no backing file ...), the report, and one line, say that the
 * check has failed.  -1: the report could not be written (reported). */
extern int check_finish (struct check *, bool opened);

/* One line that says what was found, after check_finish.  Belongs to the check. */
extern const char *check_line (const struct check *);

#endif /* QCOW2_CHECK_H */
