/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Have all requests ended that began before now?  See epoch.c.
 *
 * R4 (b): a freed host cluster may be reused only when no request is left that may have
 * looked up the old mapping.  Requests enter and
 * leave a read section.  A thread that frees something
 * takes a stamp after the old mapping has been removed, and asks later whether the stamp
 * has passed.  No thread ever waits.
 */

#ifndef QCOW2_EPOCH_H
#define QCOW2_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

struct epoch;

extern struct epoch *epoch_new (void);  /* NULL on ENOMEM */
extern void epoch_free (struct epoch *);

/* A read section.  The thread that enters leaves; sections may nest (there are less than
 * 65536).  Cheap: there is no lock, and threads on different cores touch
 * different cache lines. */
struct epoch_section { uint32_t slot; };
extern struct epoch_section epoch_enter (struct epoch *);
extern void epoch_leave (struct epoch *, struct epoch_section);
/* A section that any thread may end, with epoch_leave. */
extern struct epoch_section epoch_hold (struct epoch *);

/* The same, and counts one: something that threads do often, on a cache line that they
 * write anyway.  epoch_counted is the sum. */
extern void epoch_leave_counting (struct epoch *, struct epoch_section);
extern uint64_t epoch_counted (struct epoch *);

/* A number of the calling thread, from 0 to EPOCH_THREADS - 1, which stays the same.
 * *ALONE: no other thread has it now.  (One that ended before may have had it.) */
#define EPOCH_THREADS 64
extern unsigned epoch_thread (bool *alone);

/* Returns a stamp that covers all requests that entered before this call. */
extern uint64_t epoch_stamp (struct epoch *);

/* Have all requests left that entered before STAMP was taken?  Moves the epoch on if it
 * can; never blocks.  Once true for a stamp, true forever. */
extern bool epoch_passed (struct epoch *, uint64_t stamp);

#endif /* QCOW2_EPOCH_H */
