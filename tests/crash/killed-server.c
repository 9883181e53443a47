/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens when the NBD server with the image is killed?
 *
 * Its disk loses any subset of what was not flushed (simdisk.c), and it comes back.
 *
 *   at rest          after a flush: nothing is lost, and all requests succeed
 *   during requests  before one of any kind, behind it, or just after the answer: if
 *                    anything was lost, the next flush fails, and from then on all that
 *                    changes the image, with EIO; reads do not
 *   then             what was flushed is there, nothing is corrupt, and who opens the
 *                    image again can write it
 *
 * Environment: SEED repeats a run (with one thread, exactly); ITERATIONS: how many images
 * (default: as many as are possible in SECONDS, 14); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/attempt.h"
#include "lib/reach.h"
#include "lib/trials.h"

#define ATTEMPTS 60
/* Threads.  Enough for several connections. */
#define MANY 24

/* What a thread does.  A request that was in progress at the death is one until it ends:
 * what was lost of it, it finds out itself, and flushes beside it may succeed. */
enum state { IDLE, BUSY, BUSY_AT_DEATH };

/* What the server does to the disk when it dies, and what that meant. */
struct death {
  struct attempt *attempt;
  struct rng rng;
  unsigned before;              /* how often it had died before */
  atomic_bool lost;             /* something that was not flushed */
  _Atomic enum state states[MANY];
};

static atomic_uint nr_deaths, nr_losses, nr_failed;
static unsigned nr_rests;

/* The first client comes after it was killed. */
static void
reborn (void *opaque)
{
  struct death *d = opaque;
  const enum power_cut kind = simdisk_random_cut (&d->rng);

  nr_deaths++;
  for (unsigned i = 0; i < MANY; i++) {
    enum state busy = BUSY;

    atomic_compare_exchange_strong (&d->states[i], &busy, BUSY_AT_DEATH);
  }
  if (!simdisk_is_durable (d->attempt->sim, d->attempt->image->spec.data_file_raw)) {
    nr_losses++;
    d->lost = d->attempt->lost = true;
  }
  simdisk_lose (d->attempt->sim, &d->rng, kind);
}

static void
begin (struct attempt *r, struct death *d, const struct attempt_image *t,
       const char *name, uint64_t k)
{
  attempt_begin (r, t, name, k);
  d->attempt = r;
  d->lost = false;
  for (unsigned i = 0; i < MANY; i++)
    d->states[i] = IDLE;
  d->before = remoteserver_kills (reach_server ());
  rng_init (&d->rng, t->work_seed, 1000 + k);
  remoteserver_reborn (reach_server (), reborn, d);
  if (attempt_come (r) != 0)
    FAIL ("connect failed");
}

/* Nobody was told a lie, and the image can be used again. */
static void
end (struct attempt *r, const struct death *d)
{
  const bool lost = d->lost;

  remoteserver_kill_after (reach_server (), UINT64_MAX, REMOTE_ANSWERED);
  if (attempt_leave (r) != 0)
    r->lost = true;             /* together with what the core had in memory */
  else if (lost)
    FAIL ("leaving after a loss says that all is well");
  attempt_close (r);
  remoteserver_rest (reach_server ());
  attempt_judge_some (r, "after a death");
  if (attempt_open (r) != 0 || attempt_come (r) != 0)
    FAIL ("the image cannot be written again");
  /* (The ledger hears nothing of this flush: what was lost does not become durable.) */
  if (export_flush (r->client) == -1 || export_close (r->client) == -1)
    FAIL ("the image cannot be flushed again: %m");
  attempt_read_all (r, "opened again");
  attempt_judge (r, CUT_NOTHING, true, "opened again");
  remoteserver_reborn (reach_server (), NULL, NULL);
  attempt_end (r);
}

/* --- at rest --- */

static bool
step_at_rest (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  static const struct attempt_request flush = { .kind = FLUSH };
  int err = attempt_execute (r, q, buf);

  if (err == 0 && rng_below (&r->cut_rng, 4) == 0) {
    err = attempt_execute (r, &flush, buf);
    remoteserver_kill (reach_server ());
    nr_rests++;
  }
  if (err != 0)
    FAIL ("request of kind %d: %s, though nothing was lost", q->kind, strerror (err));
  return true;
}

static void
run_at_rest (const struct attempt_image *t, uint64_t k)
{
  struct attempt r;
  struct death d;

  begin (&r, &d, t, "at rest", k);
  attempt_work (&r, step_at_rest);
  attempt_read_all (&r, "at rest");
  if (d.lost)
    FAIL ("something was lost at rest");
  end (&r, &d);
}

/* --- during requests --- */

struct worker {
  struct attempt *r;
  struct death *d;
  const struct pieces *pieces;
  unsigned id;
};

static bool
is_dead (const struct death *d)
{
  return remoteserver_kills (reach_server ()) > d->before;
}

/* Must flushes that begin now fail? */
static bool
is_lost (const struct death *d)
{
  if (!d->lost)
    return false;
  for (unsigned i = 0; i < MANY; i++)
    if (d->states[i] == BUSY_AT_DEATH)
      return false;
  return true;
}

/* Carries out one request.  FAILED: a flush of this client has failed. */
static void
one_request (struct worker *w, struct rng *rng, unsigned char *buf, bool *failed)
{
  const bool lost = is_lost (w->d);
  struct attempt_request q;
  int err;

  attempt_make_request (w->r->image, pieces_pick (w->pieces, rng, w->id), rng, &q);
  w->d->states[w->id] = BUSY;
  err = attempt_execute (w->r, &q, buf);
  w->d->states[w->id] = IDLE;
  if (err != 0 && (err != EIO || !is_dead (w->d)))
    FAIL ("request of kind %d: %s", q.kind, strerror (err));
  if (q.kind >= READ) {
    /* What it needed to find its data may be lost, too. */
    if (err != 0 && !w->r->lost)
      FAIL ("a read fails");
    return;
  }
  if (q.kind == FLUSH && lost && err == 0)
    FAIL ("a flush succeeds after a loss");
  if (*failed && err == 0)
    FAIL ("request of kind %d succeeds after a flush has failed", q.kind);
  *failed |= q.kind == FLUSH && err != 0;
  nr_failed += err != 0;
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  unsigned char *buf = malloc (ATTEMPT_LONGEST);
  bool failed = false;
  struct rng rng;

  CHECK (buf != NULL);
  rng_init (&rng, w->r->image->work_seed, 100 + w->id);
  for (unsigned i = 0; i < ATTEMPT_REQUESTS; i++)
    one_request (w, &rng, buf, &failed);
  free (buf);
  return NULL;
}

static void
run_killed (const struct attempt_image *t, struct rng *rng, uint64_t k, unsigned threads)
{
  const enum remotemoment moment = rng_below (rng, 3);
  struct worker workers[MANY];
  struct pieces pieces;
  struct attempt r;
  struct death d;

  begin (&r, &d, t, threads == 1 ? "killed" : "killed, threads", k);
  pieces_make (&pieces, rng, t->spec.size, t->spec.cluster_size, 512, threads, false);
  for (unsigned i = 0; i < pieces.owners; i++)
    workers[i] = (struct worker) { .r = &r, .d = &d, .pieces = &pieces, .id = i };
  remoteserver_kill_after (reach_server (), k, moment);
  if (pieces.owners == 1)
    work (&workers[0]);
  else
    run_threads (work, workers, sizeof workers[0], pieces.owners);
  pieces_free (&pieces);
  end (&r, &d);
}

/* --- images --- */

static void
one_image (struct rng *rng)
{
  struct attempt_image t;

  quiet_errors = true;          /* they are what we want */
  attempt_make_image (&t, rng);
  for (unsigned i = 0; i < ATTEMPTS && (i == 0 || trials_time_left ()); i++)
    switch (rng_below (rng, 4)) {
    case 0:
      run_at_rest (&t, i);
      break;
    case 1:
      run_killed (&t, rng, rng_below (rng, 800), MANY);
      break;
    default:
      run_killed (&t, rng, rng_below (rng, 300), 1);
    }
  attempt_free_image (&t);
}

int
main (void)
{
  unsigned done;

  setenv ("QCOW2_TEST_STORAGE", "nbd", true);
  done = trials_run ("killed-server", 14, 1, one_image);
  printf ("%u images, %u attempts, %u deaths, %u with losses, %u requests failed after "
          "them, %u at rest, %u power cuts\n", done, attempt_counts.attempts, nr_deaths,
          nr_losses, nr_failed, nr_rests, attempt_counts.cuts);
  return 0;
}
