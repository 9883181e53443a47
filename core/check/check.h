/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is this image fit to be served?  See check.c.
 */

#ifndef QCOW2_CHECK_H
#define QCOW2_CHECK_H

#include <stdbool.h>

#include "storage/storage.h"
#include "mapping/chain.h"
#include "check/pace.h"

enum check_mode {
  CHECK_OFF, CHECK_QUICK, CHECK_FULL, CHECK_REPAIR, CHECK_REPAIR_LEAKS
};

static inline bool
check_mode_repairs (enum check_mode mode)
{
  return mode == CHECK_REPAIR || mode == CHECK_REPAIR_LEAKS;
}

struct check_options {
  enum check_mode mode;
  bool untrusted;               /* limit the work that an image causes */
  const char *path;             /* absolute */
  struct chain_options chain;   /* the passphrase in it is not needed */
  const char *report;           /* where to write the JSON report, or NULL */
  struct check_watch watch;     /* all 0: none */
};

struct check;
struct check_result;            /* see checkreport.h */

/* Checks the image (with CHECK_FULL also its backing chain), and repairs it if the mode
 * asks for that, without a word about the faults.  0: *CHECK has the result, whatever it
 * is; -1: reported. */
extern int check_run (const struct check_options *, struct check **);
/* Belongs to the check. */
extern const struct check_result *check_get_result (const struct check *);

/* The same, for an image that is to be served.  Checks the image (with CHECK_FULL also
 * its backing chain), and repairs it if the mode asks for that and it is necessary.  The
 * files stay open, locked as by a reader, until check_free, so that no other program
 * changes them before the disk is opened.  (NBD has no locks, and a server may admit only
 * one client: it is free for the disk.)  The strings in the options must outlive the
 * check.  Returns 0 and *CHECK if the image may be served; -1 if it may not (reported,
 * also in the JSON report): EUCLEAN if the image is corrupt, ENOENT if a file below it is
 * missing, another errno if it could not be opened, or not be checked or repaired
 * completely (EINTR: it was stopped). */
extern int check_image (const struct check_options *, struct check **);
extern void check_free (struct check *);        /* NULL is allowed */

/* Writes the report.  Call this once, because the report may go to a pipe.  OPENED: the
 * disk could be opened.  If it could not, errno says why (ENOENT: a file is missing), and
 * the report and check_line say that the disk is incomplete, or that the check failed.
 * -1: the report could not be written (reported). */
extern int check_finish (struct check *, bool opened);

/* One line that sums up the check; valid after check_finish.  Belongs to the check. */
extern const char *check_line (const struct check *);

#endif /* QCOW2_CHECK_H */
