/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One random trial after the other.  See trials.c.
 */

#ifndef TEST_TRIALS_H
#define TEST_TRIALS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/stubs.h"

/* Of the trial that runs.  With SEED=trials_seed and FIRST=trials_number in the
 * environment it is the first one. */
extern uint64_t trials_seed;
extern unsigned trials_number;

/* Goes to a private directory (images_enter) and calls TRIAL again and again, each time
 * with a generator of its own: ITERATIONS times if that is in the environment, else for
 * SECONDS (from there, too), but at least LEAST times.  Removes the directory, and
 * returns how many there were. */
extern unsigned trials_run (const char *name, unsigned seconds, unsigned least,
                            void (*trial) (struct rng *));

/* May a trial do more of what it can do without?  Always with ITERATIONS, so that it
 * can be replayed. */
extern bool trials_time_left (void);

/* Says how to replay the trial, what it is about now (trials_about) and why it
 * failed, and ends the program.  %m is errno. */
extern void trials_fail (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2), noreturn));
#define FAIL(...) trials_fail (__VA_ARGS__)

/* Before any threads of the trial. */
extern void trials_about (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2)));

#endif /* TEST_TRIALS_H */
