/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Have all requests ended that began before now?  See grace.c.
 *
 * R4 (b): a freed host cluster may be reused only when no request is left that may have
 * looked up the old mapping.  Requests enter and leave.  A thread that frees something
 * takes a stamp after the old mapping has been removed, and asks later whether the stamp
 * has passed.  No thread ever waits.
 */

#ifndef QCOW2_GRACE_H
#define QCOW2_GRACE_H

#include <stdbool.h>
#include <stdint.h>

struct grace;

extern struct grace *grace_new (void);  /* NULL on ENOMEM */
extern void grace_free (struct grace *);

/* The pin of a request.  The thread that enters leaves; pins may nest (there are less than
 * 65536).  Cheap: there is no lock, and threads on different cores touch different cache
 * lines. */
struct grace_pin { uint32_t slot; };
extern struct grace_pin grace_enter (struct grace *);
extern void grace_leave (struct grace *, struct grace_pin);
/* A pin that any thread may give back, with grace_leave. */
extern struct grace_pin grace_hold (struct grace *);

/* The same, and counts one: something that threads do often, on a cache line that they
 * write anyway.  grace_counted is the sum. */
extern void grace_leave_counting (struct grace *, struct grace_pin);
extern uint64_t grace_counted (struct grace *);

/* Returns a stamp that covers all requests that entered before this call. */
extern uint64_t grace_stamp (struct grace *);

/* Have all requests left that entered before STAMP was taken?  Moves the epoch on if it
 * can; never blocks.  Once true for a stamp, true forever. */
extern bool grace_passed (struct grace *, uint64_t stamp);

#endif /* QCOW2_GRACE_H */
