/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a session survive any operation on files that fails, and any allocation?
 *
 * The session opens a small image on a simulated disk, makes one request of each kind,
 * leaves and closes it.  It is repeated from the beginning, and each time another
 * operation fails, until all have failed once, for images of each shape (lib/attempt).
 * (Of the allocations, those that lib/shortage chooses.)
 *
 *   growth   ENOSPC: what met it fails with that, and succeeds the next time
 *   begin    of a sync: ENOMEM, twice: the same
 *   change   EIO: whatever changes the disk may fail from then on, with EIO
 *   sync     the same; and leaving fails, as nobody can say what is durable (R9)
 *   read     EIO: what needed it fails with that, and reads succeed the next time
 *   memory   ENOMEM: as for growth
 *
 * The first failure is reported.  Reads return the right data.  After the first call that
 * failed, and at the end, a power cut leaves a file that crash/requests allows.  If
 * nothing lasts, there are no leaks at the end.
 *
 * (crash/faults and crash/every-allocation do the same at random, with longer work on
 * images of all kinds.)
 *
 * Environment: SEED repeats a run, and chooses the first shape; FIRST: start with this
 * one, and ITERATIONS: so many of them (default: all, a third in the short suite);
 * ALLOCATIONS=all: see lib/shortage.h.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/allocations.h"
#include "lib/attempt.h"
#include "lib/trials.h"

#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)

static const struct kind {
  const char *name;
  unsigned ops;                 /* 0: allocations */
  unsigned times;
  int err;
} kinds[] = {
  { "growth", GROWING, 1, ENOSPC },
  { "begin", 1 << STORAGE_OP_SYNC, 2, ENOMEM },
  { "change", GROWING | 1 << STORAGE_OP_PUNCH, 1, EIO },
  { "sync", 1 << STORAGE_OP_SYNC, 1, EIO },
  { "read", 1 << STORAGE_OP_READ, 1, EIO },
  { "memory", 0, 1, ENOMEM },
};
#define NR_KINDS (sizeof kinds / sizeof kinds[0])
enum { SYNC = 3, READING = 4 };

static unsigned nr_sessions, nr_failed_calls;

struct session {
  struct attempt attempt;       /* (first: steps get a pointer to it) */
  const struct kind *kind;
  unsigned failed_calls;
};

/* --- what fails --- */

static bool
fault_was_met (const struct session *s)
{
  return (s->kind->ops ? simdisk_failures (s->attempt.sim) : shortage_failures ()) > 0;
}

/* Is everything as if nothing had failed, once it has succeeded the next time? */
static bool
passes (const struct session *s)
{
  return s->kind->err != EIO;
}

/* A call returned this errno, or 0.  Returns whether it succeeded. */
static bool
succeeds (struct session *s, int err, const char *what)
{
  if (err == 0)
    return true;
  if (err != s->kind->err)
    FAIL ("%s fails with %s, not %s (%s)", what, strerror (err), strerror (s->kind->err),
          last_error ());
  if (!fault_was_met (s))
    FAIL ("%s fails without a reason: %s", what, last_error ());
  if (s->failed_calls == 0 && last_error ()[0] == '\0')
    FAIL ("%s fails, and does not say why", what);
  if (++s->failed_calls > s->kind->times && passes (s))
    FAIL ("%s fails, though nothing is missing any more: %s", what, last_error ());
  nr_failed_calls++;
  clear_last_error ();
  return false;
}

static void
judge_random (struct attempt *r, const char *when)
{
  attempt_judge (r, simdisk_random_cut (&r->cut_rng), true, when);
}

static bool
step (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  struct session *s = (struct session *) r;
  char what[40];

  snprintf (what, sizeof what, "request of kind %d", q->kind);
  if (succeeds (s, attempt_execute (r, q, buf), what))
    return true;
  if (q->kind == READ && (s->kind < &kinds[READING] || s->failed_calls > 1))
    FAIL ("a read fails, though nothing that it needs does");
  if (s->failed_calls == 1)
    judge_random (r, "after the first failure");
  while (!succeeds (s, attempt_execute (r, q, buf), what) && passes (s))
    ;
  return true;
}

/* --- one session --- */

static void
open_and_come (struct session *s)
{
  struct attempt *r = &s->attempt;

  if (!succeeds (s, attempt_open (r), "opening") && attempt_open (r) != 0)
    FAIL ("opening fails again: %s", last_error ());
  while (!succeeds (s, attempt_come (r), "connecting") &&
         (passes (s) || s->failed_calls == 1))
    ;
}

/* Returns whether all is durable and in order. */
static bool
leave (struct session *s)
{
  struct attempt *r = &s->attempt;
  bool left;

  if (r->client == NULL)
    return false;
  left = succeeds (s, attempt_leave (r), "leaving");
  if (s->kind == &kinds[SYNC] && fault_was_met (s) && left)
    FAIL ("leaving after a failed sync says that all is well");
  /* The last chance is when somebody comes again. */
  while (!left && passes (s))
    left = succeeds (s, attempt_come (r), "connecting again") &&
      succeeds (s, attempt_leave (r), "leaving again");
  return left && (passes (s) || !fault_was_met (s));
}

/* Operation number K of the kind, and those after it, fail TIMES times.  Returns whether
 * there was one. */
static bool
run_session (const struct attempt_image *t, const struct kind *kind, uint64_t k,
             unsigned times)
{
  const struct fault fault = {
    .ops = kind->ops, .after = k, .times = times, .err = kind->err, .partial = k % 2,
  };
  struct session s = { .kind = kind };
  bool met, rests;

  attempt_prepare (&s.attempt, t, kind->name, k);
  if (kind->ops)
    simdisk_fault (s.attempt.sim, &fault);
  else
    shortage_begin ((struct shortage) { k, times });
  clear_last_error ();
  open_and_come (&s);
  if (s.attempt.client)
    attempt_work (&s.attempt, step);
  rests = leave (&s);
  succeeds (&s, attempt_close (&s.attempt), "closing");
  met = fault_was_met (&s);
  if (kind->ops == 0)
    shortage_end ();
  attempt_judge (&s.attempt, CUT_ALL, !rests, "in the end");
  judge_random (&s.attempt, "in the end");
  attempt_end (&s.attempt);
  nr_sessions++;
  return met;
}

static void
fail_each (const struct attempt_image *t, const struct kind *kind)
{
  for (uint64_t k = 0; run_session (t, kind, k, kind->times); k++)
    ;
}

static void
fail_allocations (const struct attempt_image *t, const struct kind *kind, struct rng *rng)
{
  uint64_t *which;
  size_t n;

  run_session (t, kind, 0, 0);
  which = shortage_choose (rng, SIZE_MAX, &n);
  for (size_t i = 0; i < n; i++)
    run_session (t, kind, which[i], kind->times);
  free (which);
}

static void
one_shape (struct rng *rng)
{
  struct attempt_image t;

  quiet_errors = true;          /* they are what we want */
  attempt_make_shape (&t, (trials_number + trials_seed) % ATTEMPT_SHAPES);
  for (size_t i = 0; i < NR_KINDS; i++)
    if (kinds[i].ops)
      fail_each (&t, &kinds[i]);
    else
      fail_allocations (&t, &kinds[i], rng);
  attempt_free_image (&t);
}

int
main (void)
{
  unsigned done;

  shortage_spare (true);
  done = trials_run ("each-operation", 0, ATTEMPT_SHAPES, one_shape);
  printf ("%u images, %u sessions, %u calls failed, %u power cuts\n", done, nr_sessions,
          nr_failed_calls, attempt_counts.cuts);
  return 0;
}
