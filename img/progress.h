/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How far is a command?  See progress.c.
 */

#ifndef QCOW2_IMG_PROGRESS_H
#define QCOW2_IMG_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "copy/chunks.h"
#include "check/pace.h"
#include "img/command.h"

/* One command at a time.  NAME is the word on the terminal.  DATA: what the command
 * prints is data, so -p prints nothing. */
extern void progress_begin (const struct arguments *, bool data);
/* What follows is the part of the command from BEGIN to END, of 1. */
extern void progress_within (double begin, double end);
/* For jobs of the core.  OPAQUE is ignored.  Returns whether to continue. */
extern bool progress_step (void *opaque, uint64_t done, uint64_t total, uint64_t copied);
#define PROGRESS_WATCH ((struct chunks_watch) { .step = progress_step })
#define PROGRESS_CHECK_WATCH ((struct check_watch) { .step = progress_step })
/* DONE: all of it was done. */
extern void progress_end (bool done);

/* Removes the line from the terminal, before something else is printed. */
extern void progress_hide (void);
/* The signal that has stopped a job, or 0. */
extern int progress_signal (void);

#endif /* QCOW2_IMG_PROGRESS_H */
