/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens when the host fails: no space, no data, no sync?
 *
 * The same work is done again and again on a simulated file (simdisk.c), and each time
 * another of its operations fails:
 *
 *   ENOSPC once       the request (or flush) that got it fails, all others succeed
 *   ENOSPC for long   nothing that was flushed is lost; when there is space again, the
 *                     same request succeeds
 *   a full disk       the same, but only operations that make the file longer fail
 *   EIO               requests fail with EIO and with no other error
 *   a failed sync     no more changes are accepted, reads still work (R9)
 *   a failed read     the request that needed it fails with EIO, and the next reads
 *                     succeed
 *
 * After each failure the power is cut in various ways, and the file that is left is
 * judged as in crash/requests.  If space came back, nothing is leaked at the end.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 7); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "lib/attempt.h"
#include "lib/reach.h"
#include "lib/trials.h"

#define ATTEMPTS 150

/* What runs out of space. */
#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)
#define CHANGING (GROWING | 1 << STORAGE_OP_PUNCH)
#define SYNCING (1 << STORAGE_OP_SYNC)

static atomic_uint nr_failed_requests;

/* --- runs --- */

static void
space_is_back (struct attempt *r)
{
  simdisk_fault (r->sim, NULL);
  simdisk_limit (r->sim, UINT64_MAX);
}

/* A request that may meet ENOSPC: then, with space, it must succeed. */
static bool
step_nospace (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  int err = attempt_execute (r, q, buf);

  if (err == 0)
    return true;
  if (err != ENOSPC)
    FAIL ("request of kind %d fails with %s, not with ENOSPC", q->kind,
          strerror (err));
  if (q->kind == READ)
    FAIL ("a read fails for lack of space");
  nr_failed_requests++;
  attempt_judge_some (r, "without space");
  if (simdisk_failures (r->sim) == 0)
    FAIL ("a request failed although no operation did");
  space_is_back (r);
  err = attempt_execute (r, q, buf);
  if (err != 0)
    FAIL ("request of kind %d fails again with %s, though there is space",
          q->kind, strerror (err));
  return true;
}

static void
run_nospace (const struct attempt_image *t, const char *name, uint64_t k,
             uint64_t times, bool only_growth)
{
  const struct fault fault = {
    .ops = GROWING, .after = k, .times = times, .err = ENOSPC, .partial = k % 2,
  };
  struct attempt r;
  int err;

  attempt_begin (&r, t, name, k);
  err = attempt_come (&r);
  CHECK (err == 0);
  if (only_growth)
    simdisk_limit (r.sim, simdisk_size (r.sim) + k * 1024);
  else
    simdisk_fault (r.sim, &fault);
  attempt_work (&r, step_nospace);

  err = attempt_leave (&r);
  if (err != 0) {
    if (err != ENOSPC)
      FAIL ("leaving fails with %s, not with ENOSPC", strerror (err));
    attempt_judge_some (&r, "leaving without space");
    space_is_back (&r);
    /* The last chance is when somebody comes again. */
    if (attempt_come (&r) != 0 || attempt_leave (&r) != 0)
      FAIL ("leaving fails again, though there is space");
  }
  space_is_back (&r);
  attempt_read_all (&r, "in the end");
  attempt_judge (&r, CUT_ALL, false, "in the end");
  attempt_judge (&r, CUT_NOTHING, true, "in the end");
  attempt_end (&r);
}

/* After EIO anything may fail, with EIO. */
static bool
step_eio (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  const uint64_t before = simdisk_failures (r->sim);
  int err = attempt_execute (r, q, buf);

  if (err == 0)
    return true;
  if (err != EIO)
    FAIL ("request of kind %d fails with %s, not with EIO", q->kind,
          strerror (err));
  if (q->kind == READ || simdisk_failures (r->sim) == 0)
    FAIL ("request of kind %d fails, but why?", q->kind);
  nr_failed_requests++;
  if (simdisk_failures (r->sim) > before)
    attempt_judge_some (r, "after EIO");
  return true;
}

static void
run_eio (const struct attempt_image *t, uint64_t k)
{
  const struct fault fault = {
    .ops = CHANGING, .after = k, .times = 1, .err = EIO, .partial = k % 2,
  };
  struct attempt r;
  int err;

  attempt_begin (&r, t, "EIO", k);
  err = attempt_come (&r);
  CHECK (err == 0);
  simdisk_fault (r.sim, &fault);
  attempt_work (&r, step_eio);
  err = attempt_leave (&r);
  if (err != 0 && (err != EIO || simdisk_failures (r.sim) == 0))
    FAIL ("leaving fails with %s", strerror (err));
  attempt_read_all (&r, "after EIO");
  attempt_judge_some (&r, "in the end");
  attempt_end (&r);
}

/* May a change still be accepted after a failed sync?  If that belonged to a durable
 * write, the next sync is the first to find out, and must fail. */
static bool
may_go_on (const struct attempt_request *q)
{
  return !reach_writes_durably () && q->kind != FLUSH && !q->fua;
}

/* R9: a sync failed, and somebody was told. */
static bool
step_no_sync (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  const bool failed = simdisk_failures (r->sim) > 0;
  int err = attempt_execute (r, q, buf);

  if (q->kind == READ) {
    if (err != 0)
      FAIL ("a read fails with %s", strerror (err));
    return true;
  }
  if (failed && err != EIO && (err != 0 || !may_go_on (q)))
    FAIL ("request of kind %d after a failed sync: %s", q->kind,
          strerror (err));
  if (err == 0)
    return true;
  if (err != EIO || simdisk_failures (r->sim) == 0)
    FAIL ("request of kind %d fails with %s", q->kind, strerror (err));
  nr_failed_requests++;
  if (!failed)
    attempt_judge_some (r, "after a failed sync");
  return true;
}

static void
run_no_sync (const struct attempt_image *t, uint64_t k)
{
  const struct fault fault = {
    .ops = SYNCING, .after = k, .times = 1, .err = EIO,
  };
  struct attempt r;
  bool met;
  int err;

  attempt_begin (&r, t, "failed sync", k);
  err = attempt_come (&r);
  CHECK (err == 0);
  simdisk_fault (r.sim, &fault);
  attempt_work (&r, step_no_sync);
  met = simdisk_failures (r.sim) > 0;
  err = attempt_leave (&r);
  if (met && err == 0)
    FAIL ("leaving after a failed sync says that all is well");
  attempt_read_all (&r, "after a failed sync");
  attempt_judge_some (&r, "in the end");
  attempt_end (&r);
}

/* A read of the file fails: only who needed it may notice, and only once.  (Changes that
 * could not be completed may stop all that follow.) */
static bool
step_no_read (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  const uint64_t before = simdisk_failures (r->sim);
  int err = attempt_execute (r, q, buf);

  if (err == 0)
    return true;
  if (err != EIO)
    FAIL ("request of kind %d fails with %s, not with EIO", q->kind, strerror (err));
  if (simdisk_failures (r->sim) == (q->kind == READ ? before : 0))
    FAIL ("request of kind %d fails, but why?", q->kind);
  nr_failed_requests++;
  attempt_judge_some (r, "after a failed read");
  err = attempt_execute (r, q, buf);
  if (err != 0 && (err != EIO || q->kind == READ))
    FAIL ("request of kind %d fails again with %s", q->kind, strerror (err));
  return true;
}

static void
run_no_read (const struct attempt_image *t, uint64_t k)
{
  const struct fault fault = {
    .ops = 1 << STORAGE_OP_READ, .after = k, .times = 1, .err = EIO,
  };
  struct attempt r;
  int err;

  attempt_begin (&r, t, "failed read", k);
  simdisk_fault (r.sim, &fault);
  err = attempt_come (&r);
  if (err == EIO && simdisk_failures (r.sim) > 0)
    err = attempt_come (&r);
  if (err != 0)
    FAIL ("connecting fails with %s", strerror (err));
  attempt_work (&r, step_no_read);
  err = attempt_leave (&r);
  if (err != 0 && (err != EIO || simdisk_failures (r.sim) == 0))
    FAIL ("leaving fails with %s", strerror (err));
  simdisk_fault (r.sim, NULL);
  attempt_read_all (&r, "after a failed read");
  attempt_judge_some (&r, "in the end");
  attempt_end (&r);
}

/* --- threads that run out of space --- */

struct worker {
  struct attempt *r;
  const struct pieces *pieces;
  unsigned id;
  pthread_t thread;
  atomic_uint *working;
};

/* Like step_nospace, but space comes and goes by itself. */
static void *
work (void *opaque)
{
  struct worker *w = opaque;
  struct attempt *r = w->r;
  unsigned char *buf = malloc (ATTEMPT_LONGEST);
  struct attempt_request q;
  struct rng rng;
  unsigned i;
  int err;

  CHECK (buf != NULL);
  rng_init (&rng, r->image->work_seed, 100 + w->id);
  for (i = 0; i < ATTEMPT_REQUESTS; i++) {
    attempt_make_request (r->image, pieces_pick (w->pieces, &rng, w->id), &rng, &q);
    while ((err = attempt_execute (r, &q, buf)) != 0) {
      if (err != ENOSPC)
        FAIL ("request of kind %d fails with %s, not with ENOSPC", q.kind,
              strerror (err));
      nr_failed_requests++;
      usleep (50);
    }
  }
  free (buf);
  atomic_fetch_sub (w->working, 1);
  return NULL;
}

static void
run_workers (const struct attempt_image *t, struct rng *rng)
{
  struct worker workers[4];
  struct pieces pieces;
  atomic_uint working;
  struct attempt r;
  unsigned i;
  int err;

  attempt_begin (&r, t, "threads", 0);
  pieces_make (&pieces, rng, t->spec.size, t->spec.cluster_size, 512, 4,
               false);
  atomic_init (&working, pieces.owners);
  err = attempt_come (&r);
  CHECK (err == 0);
  for (i = 0; i < pieces.owners; i++) {
    workers[i] = (struct worker) {
      .r = &r, .pieces = &pieces, .id = i, .working = &working,
    };
    CHECK (pthread_create (&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  while (atomic_load (&working) > 0) {
    const struct fault fault = {
      .ops = GROWING, .after = rng_below (rng, 30), .times = 1 + rng_below (rng, 20),
      .err = ENOSPC, .partial = true,
    };

    simdisk_fault (r.sim, &fault);
    usleep (500);
    simdisk_fault (r.sim, NULL);
    usleep (200);
  }
  for (i = 0; i < pieces.owners; i++)
    CHECK (pthread_join (workers[i].thread, NULL) == 0);
  space_is_back (&r);
  attempt_read_all (&r, "after all");
  if (attempt_leave (&r) != 0)
    FAIL ("leaving fails, though there is space");
  attempt_judge (&r, CUT_ALL, false, "in the end");
  attempt_judge (&r, CUT_NOTHING, true, "in the end");
  pieces_free (&pieces);
  attempt_end (&r);
}

/* --- images --- */

/* How many operations are there that can fail? */
static void
count_operations (const struct attempt_image *t, uint64_t *growing, uint64_t *changing,
                  uint64_t *syncing, uint64_t *growth, uint64_t *reads)
{
  struct attempt r;
  uint64_t size;

  attempt_begin (&r, t, "no fault", 0);
  size = simdisk_size (r.sim);
  if (attempt_come (&r) != 0)
    FAIL ("connect failed");
  attempt_work (&r, step_nospace);
  *growth = simdisk_size (r.sim) - size;
  if (attempt_leave (&r) != 0)
    FAIL ("disconnect: %m");
  attempt_judge (&r, CUT_ALL, false, "in the end");
  *growing = simdisk_operations (r.sim, GROWING);
  *changing = simdisk_operations (r.sim, CHANGING);
  *syncing = simdisk_operations (r.sim, SYNCING);
  *reads = simdisk_operations (r.sim, 1 << STORAGE_OP_READ);
  attempt_end (&r);
}

static void
one_image (struct rng *rng)
{
  uint64_t growing, changing, syncing, growth, reads;
  struct attempt_image t;
  unsigned i;

  quiet_errors = true;          /* they are what we want */
  attempt_make_image (&t, rng);
  count_operations (&t, &growing, &changing, &syncing, &growth, &reads);
  for (i = 0; i < ATTEMPTS && (i == 0 || trials_time_left ()); i++)
    switch (rng_below (rng, 12)) {
    case 0: case 1: case 2:
      run_nospace (&t, "ENOSPC once", rng_below (rng, growing), 1, false);
      break;
    case 3: case 4: case 5:
      run_nospace (&t, "ENOSPC for long", rng_below (rng, growing),
                   UINT64_MAX, false);
      break;
    case 6:
      run_nospace (&t, "full disk", rng_below (rng, growth / 1024 + 1), 0,
                   true);
      break;
    case 7:
      run_eio (&t, rng_below (rng, changing));
      break;
    case 8:
      run_no_sync (&t, rng_below (rng, syncing));
      break;
    case 9:
      /* Two who write to one block: whose write found no space, and was it durable? */
      if (!reach_shares_blocks () || !reach_writes_durably ())
        run_workers (&t, rng);
      break;
    case 10: case 11:
      run_no_read (&t, rng_below (rng, reads));
    }

  attempt_free_image (&t);
}

int
main (void)
{
  const unsigned done = trials_run ("faults", 7, 1, one_image);

  printf ("%u images, %u attempts, %u failed requests, %u power cuts\n",
          done, attempt_counts.attempts, nr_failed_requests, attempt_counts.cuts);
  return 0;
}
