/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens in the thread of a job?  Part of qmpjobs.c.
 *
 * Between two pieces of its work it says how far it is, and waits while it is paused or
 * faster than it may be.  It changes the state only between running and ready, and as it
 * pauses.  While it waits, the thread of a command does that, so that a command and its
 * events belong together.
 *
 * Events wait here until they are sent.
 *
 * Locks: see qmpjobs.c.
 */

#include <config.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "plugin/qmpjobs-impl.h"

#define NS_PER_SECOND UINT64_C (1000000000)

/* With so many events that were not sent, failures that are ignored add no more. */
#define MOST_EVENTS 1000

const char *const job_status_names[] = {
  [CREATED] = "created", [RUNNING] = "running", [PAUSED] = "paused", [READY] = "ready",
  [STANDBY] = "standby", [WAITING] = "waiting", [PENDING] = "pending",
  [ABORTING] = "aborting", [CONCLUDED] = "concluded", [GONE] = "null",
};

static uint64_t
now_ns (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

/* --- events; under the lock --- */

void
jobs_wake (const struct jobs *jobs)
{
  /* (If the pipe is full, that thread will wake anyway.) */
  while (write (jobs->wake[1], "", 1) == -1 && errno == EINTR)
    ;
}

void
job_add_event (struct jobs *jobs, const char *event, json_t *data)
{
  json_t *one = jsontext_object ({ "event", jsontext_string (event) }, { "data", data });

  if (jobs->events == NULL)
    jobs->events = json_array ();
  jobs->events = jsontext_append (jobs->events, one);
  jobs_wake (jobs);
}

void
job_set_status (struct job *j, enum status status)
{
  j->status = status;
  job_add_event (j->jobs, "JOB_STATUS_CHANGE", jsontext_object (
    { "status", jsontext_string (job_status_names[status]) },
    { "id", jsontext_string (j->id) }));
}

const char *
job_why (const struct job *j)
{
  return j->err == ECANCELED ? "Operation canceled" : j->why ? j->why : strerror (j->err);
}

void
job_add_progress_event (struct job *j, const char *event)
{
  json_t *data = jsontext_object (
    { "device", jsontext_string (j->id) },
    { "len", jsontext_number (j->len) },
    { "offset", jsontext_number (j->offset) },
    { "speed", jsontext_number (j->speed) },
    { "type", jsontext_string (j->kind->type) });

  if (j->err && j->err != ECANCELED)
    data = jsontext_add (data, { "error", jsontext_string (job_why (j)) });
  job_add_event (j->jobs, event, data);
}

/* --- the job's thread --- */

/* While the job's thread waits: is it paused? */
static void
show_pause (struct job *j)
{
  const bool paused = j->paused && !j->cancelled;

  if (paused && j->status == RUNNING)
    job_set_status (j, PAUSED);
  else if (paused && j->status == READY)
    job_set_status (j, STANDBY);
  else if (!paused && j->status == PAUSED)
    job_set_status (j, RUNNING);
  else if (!paused && j->status == STANDBY)
    job_set_status (j, READY);
}

void
job_tell_thread (struct job *j)
{
  if (j->waits)
    show_pause (j);
  pthread_cond_signal (&j->wake);
}

static void
wait_until (struct job *j, pthread_cond_t *cond, uint64_t ns)
{
  const struct timespec t = {
    .tv_sec = ns / NS_PER_SECOND, .tv_nsec = ns % NS_PER_SECOND,
  };

  pthread_cond_timedwait (cond, &j->jobs->lock, &t);
}

void
job_await_end (struct job *j)
{
  const uint64_t until = now_ns () + NS_PER_SECOND / 10;

  while (!j->ended && now_ns () < until)
    wait_until (j, &j->jobs->ended, until);
}

/* A pause point.  Returns 0, or -1 with ECANCELED. */
static int
pause_here (struct job *j)
{
  j->waits = true;
  show_pause (j);
  while (!j->cancelled && (j->paused || (j->speed > 0 && now_ns () < j->next_at)))
    if (j->paused)
      pthread_cond_wait (&j->wake, &j->jobs->lock);
    else
      wait_until (j, &j->wake, j->next_at);
  j->waits = false;
  errno = ECANCELED;
  return j->cancelled ? -1 : 0;
}

/* In ns; a century at most. */
static uint64_t
time_for (uint64_t bytes, uint64_t speed)
{
  const double seconds = (double) bytes / speed;

  return seconds < 3e9 ? seconds * NS_PER_SECOND : 3e9 * NS_PER_SECOND;
}

int
job_step (struct job *j, uint64_t done, uint64_t total, uint64_t copied)
{
  const uint64_t now = now_ns ();
  LOCK_FOR_BLOCK (&j->jobs->lock);

  j->offset = done;
  j->len = total;
  if (j->speed > 0)
    j->next_at = max64 (j->next_at, now) + time_for (copied, j->speed);
  return pause_here (j);
}

/* What on-error says.  QEMU's word for it, too. */
static enum job_fate
decide (struct job *j, bool reads, int err, const char **word)
{
  const enum job_on_error o = reads ? j->settings.on_error : j->settings.on_write_error;

  if (o == ON_ERROR_STOP || (o == ON_ERROR_ENOSPC && err == ENOSPC)) {
    *word = "stop";
    return JOB_AGAIN;
  }
  *word = o == ON_ERROR_IGNORE ? "ignore" : "report";
  return o == ON_ERROR_IGNORE ? JOB_SKIP : JOB_FAIL;
}

enum job_fate
job_fails (struct job *j, bool reads, int err)
{
  LOCK_FOR_BLOCK (&j->jobs->lock);
  const char *word;
  enum job_fate fate = decide (j, reads, err, &word);

  if (fate != JOB_SKIP || json_array_size (j->jobs->events) < MOST_EVENTS)
    job_add_event (j->jobs, "BLOCK_JOB_ERROR", jsontext_object (
      { "device", jsontext_string (j->id) },
      { "operation", jsontext_string (reads ? "read" : "write") },
      { "action", jsontext_string (word) }));
  if (fate == JOB_SKIP && j->skipped == 0 && !j->kind->repeats)
    j->skipped = err;
  if (fate == JOB_AGAIN) {
    j->paused = true;
    j->io_status = err == ENOSPC ? "nospace" : "failed";
    if (pause_here (j) == -1) {
      err = ECANCELED;
      fate = JOB_FAIL;
    }
  }
  errno = err;
  return fate;
}

int
job_told (struct job *j, int r)
{
  KEEP_ERRNO_FOR_BLOCK;
  char *const why = report_first ();

  if (r == 0) {
    free (why);
    return 0;
  }
  LOCK_FOR_BLOCK (&j->jobs->lock);
  free (j->why);
  j->why = why;
  return r;
}

void
job_ready (struct job *j)
{
  LOCK_FOR_BLOCK (&j->jobs->lock);

  job_set_status (j, READY);
  job_add_progress_event (j, "BLOCK_JOB_READY");
}

bool
job_completes (struct job *j)
{
  LOCK_FOR_BLOCK (&j->jobs->lock);

  return j->completes;
}

bool
job_pivots (struct job *j)
{
  LOCK_FOR_BLOCK (&j->jobs->lock);

  return j->completes && !j->softly;
}

void
job_sleep (struct job *j, unsigned ms)
{
  const uint64_t until = now_ns () + ms * UINT64_C (1000000);
  LOCK_FOR_BLOCK (&j->jobs->lock);

  j->waits = true;
  show_pause (j);
  while (!j->cancelled && !j->paused && !j->completes && now_ns () < until)
    wait_until (j, &j->wake, until);
  j->waits = false;
}

struct disk *
job_disk (struct job *j)
{
  return j->target.disk;
}

static void *
work (void *opaque)
{
  struct job *j = opaque;
  /* (Constant while this thread runs.) */
  const int r = j->prepares ? j->kind->prepare (j, j->opaque) : j->kind->run (j, j->opaque);
  const int err = r == 0 ? 0 : errno;
  LOCK_FOR_BLOCK (&j->jobs->lock);

  j->err = err ? err : j->skipped;
  j->ended = true;
  pthread_cond_signal (&j->jobs->ended);
  jobs_wake (j->jobs);
  return NULL;
}

/* Signals are for the threads of nbdkit.  Returns an errno. */
int
job_start_thread (struct job *j)
{
  sigset_t all, old;
  int err;

  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  err = pthread_create (&j->thread, NULL, work, j);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  return err;
}
