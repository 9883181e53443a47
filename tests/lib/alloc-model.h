/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which clusters the allocator has allocated, and may allocate.  See alloc-model.c.
 */

#ifndef TEST_ALLOC_MODEL_H
#define TEST_ALLOC_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/alloc-image.h"

enum state { FREE, OWNED, TABLE, PENDING, WAITING, ASIDE };

/* The runs that belong to the test: the first nruns of these. */
#define MAX_RUNS 4000
extern struct alloc_run runs[MAX_RUNS];
extern size_t nruns;

/* Requests in progress. */
#define MAX_SECTIONS 8
struct model_section {
  struct epoch_section section;
  uint64_t since;
};
extern struct model_section sections[MAX_SECTIONS];
extern size_t nr_sections;

/* The step of the test. */
extern uint64_t now;

/* To be called for an image that was just made and opened. */
extern void reset_model (void);

/* Checks a run that was just allocated, and writes to it. */
extern void handed_out (const struct alloc_run *, enum state);
/* Changes the state of all clusters in the run, which must be FROM. */
extern void set_state (const struct alloc_run *, enum state from, enum state to);

/* Sets clusters aside, and gives all that are back. */
extern void set_aside (uint64_t n);
extern void end_aside (void);

/* Takes one of the test's runs or, often, a part of one. */
extern struct alloc_run take_run (bool *table);
/* Frees N of the test's runs. */
extern void free_some (unsigned n);
/* Frees this run. */
extern void release (const struct alloc_run *);

/* Writes what has changed; if not OK, simulates a failure. */
extern void checkpoint (bool ok);
/* Does what happens at the end of a session, and compares all counts. */
extern void quiesce (void);

#endif /* TEST_ALLOC_MODEL_H */
