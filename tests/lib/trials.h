/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Random trials, one after another.  See trials.c.
 */

#ifndef TEST_TRIALS_H
#define TEST_TRIALS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/stubs.h"

/* Of the current trial.  With SEED=trials_seed and FIRST=trials_number in the
 * environment, it is the first one. */
extern uint64_t trials_seed;
extern unsigned trials_number;

/* Changes to a private directory (images_enter) and calls TRIAL repeatedly, each time
 * with its own random generator: ITERATIONS times if that is set in the environment,
 * otherwise for SECONDS of the processor (which the environment can also set; half of it
 * over NBD or with a sanitizer), but at least LEAST times; in the short suite for a third
 * of both.
 * Removes the directory, and returns the number of trials. */
extern unsigned trials_run (const char *name, unsigned seconds, unsigned least,
                            void (*trial) (struct rng *));

/* Is this the short suite, over NBD or with a sanitizer? */
extern bool trials_repeat_others (void);

/* May a trial still do its optional parts?  Always true with ITERATIONS, so that trials
 * can be replayed. */
extern bool trials_time_left (void);

/* Says how to replay the trial, what it is about (trials_about) and why it failed, and
 * ends the program.  %m is errno. */
extern void trials_fail (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2), noreturn));
#define FAIL(...) trials_fail (__VA_ARGS__)

/* To be called before the trial starts threads. */
extern void trials_about (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2)));

#endif /* TEST_TRIALS_H */
