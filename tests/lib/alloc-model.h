/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the allocator has handed out, and may hand out.  See alloc-model.c.
 */

#ifndef TEST_ALLOC_MODEL_H
#define TEST_ALLOC_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/alloc-image.h"

enum state { FREE, OWNED, TABLE, PENDING, WAITING };

/* What we own: of the first nruns. */
#define MAX_RUNS 4000
extern struct alloc_run runs[MAX_RUNS];
extern size_t nruns;

/* Requests that are under way. */
#define MAX_PINS 8
struct model_pin {
  struct grace_pin pin;
  uint64_t since;
};
extern struct model_pin pins[MAX_PINS];
extern size_t npins;

/* A step of the test. */
extern uint64_t now;

/* For an image that was just made and opened. */
extern void reset_model (void);

/* Judges what the allocator gave us, and dirties it. */
extern void handed_out (const struct alloc_run *, enum state);
/* All its clusters, which must have been in state FROM. */
extern void set_state (const struct alloc_run *, enum state from, enum state to);

/* One of our runs, or (often) a part of one. */
extern struct alloc_run take_run (bool *table);
/* Frees N of them. */
extern void free_some (unsigned n);
/* Frees this one. */
extern void release (const struct alloc_run *);

/* Writes what has changed; unless OK, that failed. */
extern void checkpoint (bool ok);
/* As at the end of a session, and compares all counts. */
extern void quiesce (void);

#endif /* TEST_ALLOC_MODEL_H */
