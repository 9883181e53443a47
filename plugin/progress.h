/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can the user follow and stop a long job?  See progress.c.
 */

#ifndef QCOW2_PROGRESS_H
#define QCOW2_PROGRESS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* Only one job at a time.  The fields belong to progress.c. */
struct progress {
  const char *what;
  bool terminal, shown, caught;
  double begun, last;
  struct sigaction before[3];
};

/* WHAT names the job.  From the first progress_step until progress_end, the signals that
 * would end the program only make progress_step return false. */
extern void progress_begin (struct progress *, const char *what);
/* DONE of TOTAL bytes are finished; COPIED bytes were written
 * (UINT64_MAX: that does not matter).  OPAQUE is the struct
 * progress.  Returns false if the user wants the job to stop. */
extern bool progress_step (void *opaque, uint64_t done, uint64_t total,
                           uint64_t copied);
extern void progress_end (struct progress *);

#endif /* QCOW2_PROGRESS_H */
