/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A session of a client, in which something fails.  See session.c.
 */

#ifndef TEST_SESSION_H
#define TEST_SESSION_H

#include "lib/attempt.h"

#define GROWING (1u << STORAGE_OP_WRITE | 1u << STORAGE_OP_TRUNCATE | \
                 1u << STORAGE_OP_ALLOCATE)
#define CHANGING (GROWING | 1u << STORAGE_OP_PUNCH)

/* A kind of failure: of the operations on files in OPS (0: of the allocations), some
 * succeed, then TIMES ones fail with ERR. */
struct accident {
  const char *name;
  unsigned ops;
  uint64_t times;
  int err;
  bool ends;                    /* when a call has failed, all works again */
  bool full;                    /* instead, the file cannot become longer */
  unsigned one_in;              /* instead, one allocation of so many fails */
};

/* Those of which each operation can be tried, and then some for random ones. */
#define EACH_ACCIDENT 8
#define ACCIDENTS 11
extern const struct accident accidents[ACCIDENTS];

/* Can a session survive it?  (An image that was not closed, and cannot be repaired for
 * lack of space, is read-only until it is opened again.  A server has no sync that does
 * not begin.) */
extern bool accident_concerns (const struct accident *, const struct attempt_image *);

struct session {
  struct attempt attempt;       /* (first: steps get a pointer to it) */
  const struct accident *accident;
  uint64_t k;
  bool under_way;               /* memory runs out */
  bool met;                     /* something has failed */
  bool rests;                   /* in the end, all was durable and in order */
  unsigned failed_calls;
  uint64_t before_work;         /* so many operations had failed */
};

/* Failed calls of the core, in all sessions. */
extern unsigned session_failed_calls;

/* Opens the image, makes the requests of the attempt, leaves, and closes it, while the
 * accident happens after K operations, and judges all of that. */
extern void session_run (struct session *, const struct attempt_image *,
                         const struct accident *, uint64_t k);
/* Frees it. */
extern void session_end (struct session *);

#endif /* TEST_SESSION_H */
