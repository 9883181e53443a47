/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A long job before the server starts: see progress.c.
 */

#ifndef QCOW2_PROGRESS_H
#define QCOW2_PROGRESS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* One at a time.  The fields belong to progress.c. */
struct progress {
  const char *what;
  bool terminal, shown, caught;
  double begun, last;
  struct sigaction before[3];
};

/* WHAT names the job.  From the first progress_step until progress_end the signals that
 * end a program only make progress_step say so. */
extern void progress_begin (struct progress *, const char *what);
/* DONE of TOTAL bytes have been dealt with; COPIED were written.  OPAQUE is the progress.
 * Returns false if the user wants it to stop. */
extern bool progress_step (void *opaque, uint64_t done, uint64_t total,
                           uint64_t copied);
extern void progress_end (struct progress *);

#endif /* QCOW2_PROGRESS_H */
