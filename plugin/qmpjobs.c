/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command go on after its answer?
 *
 * States and events are QEMU's:
 *
 *   created -> running <-> paused           its thread works
 *              running -> ready <-> standby everything is copied; what clients write is,
 *              too
 *   running, ready -> waiting -> pending    the thread has ended well ...
 *   pending -> concluded                    ... and the result counts (`finish'); its
 *                                           thread works once more before, if it has to
 *                                           (`prepare')
 *   any of these -> aborting -> concluded   it failed, or was cancelled
 *   concluded -> null                       it is forgotten
 *
 * Each job has a thread for its long work (qmpjobwork.c).  All else is done by the thread
 * that runs commands, which waits for the work of a job only at the end of the server;
 * but it does the last step (`finish') itself, which is short unless a file hangs then.
 * So the disk changes as a whole only there, as commands change it.
 *
 * A job holds its disk open, as a client does: it stays open when the last client leaves.
 * While it lasts, other commands do not change what the disk consists of
 * (jobs_check_idle).
 *
 * Bounded: MOST_JOBS of them, a thread each, and a few events each that no client has
 * taken yet.
 *
 * Locks: `lock' guards what the jobs say of it (qmpjobs-impl.h).  It is not held during
 * I/O.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "plugin/eventlog.h"
#include "plugin/qmpjobs-impl.h"

/* Together with those that wait for job-dismiss. */
#define MOST_JOBS 64

static const struct { const char *name; unsigned in; } verbs[] = {
  [JOB_CANCEL] = { "cancel", AT_WORK | IN (WAITING) | IN (PENDING) | IN (ABORTING) },
  [JOB_PAUSE] = { "pause", AT_WORK },
  /* (QEMU copies the last part before a job is pending; here it can stop there.) */
  [JOB_RESUME] = { "resume", AT_WORK | IN (PENDING) },
  [JOB_SET_SPEED] = { "set-speed", AT_WORK },
  [JOB_COMPLETE] = { "complete", IN (READY) | IN (STANDBY) },
  [JOB_FINALIZE] = { "finalize", IN (PENDING) },
  [JOB_DISMISS] = { "dismiss", IN (CONCLUDED) },
};

/* --- the end of a job; in the thread that runs commands --- */

static void
leave_disk (struct job *j)
{
  if (j->target.disk && j->kind->writes)
    disk_disconnect (j->target.disk, true);
  qmptarget_leave (&j->target);
}

void
job_keep_open (struct job *j)
{
  if (j->target.dir)
    dir_keep (j->target.dir, j->target.image);
}

static void
free_job (struct job *j)
{
  leave_disk (j);
  pthread_cond_destroy (&j->wake);
  free (j->id);
  free (j->why);
  free (j);
}

/* No client asks for it any more. */
static void
dismiss (struct job *j)
{
  struct jobs *const jobs = j->jobs;
  {
    LOCK_FOR_BLOCK (&jobs->lock);

    job_set_status (j, GONE);
    for (struct job **p = &jobs->first; *p; p = &(*p)->next)
      if (*p == j) {
        *p = j->next;
        break;
      }
  }
  free_job (j);
}

/* Under the lock, while it has its disk.  END: it is over. */
static void
log_job (const struct job *j, bool end)
{
  const bool failed = end && j->err && j->err != ECANCELED;
  json_t *line = !eventlog_is_open () ? NULL : jsontext_object (
    { "image", eventlog_text (disk_get_options (j->target.disk)->path) },
    { "job", eventlog_text (j->id) },
    { "type", eventlog_text (j->kind->type) },
    { "status", eventlog_text (!end ? "started" : failed ? "failed"
                               : j->err ? "cancelled" : "completed") });

  eventlog_write (failed ? EVENTLOG_ERROR : EVENTLOG_INFO, "job", !failed ? line
                  : jsontext_add (line, { "text", eventlog_text (job_why (j)) }));
}

/* It has failed or not: j->err. */
static void
conclude (struct job *j)
{
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    if (j->err)
      job_set_status (j, ABORTING);
    log_job (j, true);
  }
  j->kind->free (j->opaque);
  j->opaque = NULL;
  leave_disk (j);
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    if (!j->kind->no_block_job)
      job_add_progress_event (j, j->err == ECANCELED ? "BLOCK_JOB_CANCELLED"
                              : "BLOCK_JOB_COMPLETED");
    job_set_status (j, CONCLUDED);
  }
  if (j->settings.auto_dismiss)
    dismiss (j);
}

static void
prepare (struct job *j)
{
  int err;
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    j->prepares = true;
    err = j->err = job_start_thread (j);
    j->prepares = err == 0;
  }
  if (err)
    conclude (j);
}

static void
finalize (struct job *j)
{
  char *why;
  int r, err;

  report_watch ();
  r = j->kind->finish (j, j->opaque);
  err = errno;
  why = report_first ();
  if (r == -1 && err == EAGAIN && j->kind->prepare) {
    free (why);
    prepare (j);
    return;
  }
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    if (r == -1) {
      j->err = err;
      j->why = why;
      why = NULL;
    }
  }
  free (why);
  conclude (j);
}

/* Its thread has ended. */
static void
go_on (struct job *j)
{
  bool failed, finalizes, prepared;

  pthread_join (j->thread, NULL);
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    j->ended = false;
    if (j->cancelled)
      j->err = ECANCELED;
    failed = j->err != 0;
    prepared = j->prepares || j->kind->prepare == NULL;
    finalizes = j->settings.auto_finalize || j->prepares;
    j->prepares = false;
    if (!failed && j->status != PENDING) {
      job_set_status (j, WAITING);
      job_set_status (j, PENDING);
      if (!j->settings.auto_finalize)
        job_add_event (j->jobs, "BLOCK_JOB_PENDING", jsontext_object (
          { "type", jsontext_string (j->kind->type) },
          { "id", jsontext_string (j->id) }));
    }
  }
  if (failed)
    conclude (j);
  else if (finalizes && !prepared)
    prepare (j);
  else if (finalizes)
    finalize (j);
}

void
jobs_work (struct jobs *jobs)
{
  char bytes[64];
  struct job *next;
  bool ended;

  while (read (jobs->wake[0], bytes, sizeof bytes) > 0)
    ;
  /* (Only this thread changes the list.) */
  for (struct job *j = jobs->first; j; j = next) {
    next = j->next;
    {
      LOCK_FOR_BLOCK (&jobs->lock);

      ended = j->ended;
    }
    if (ended)
      go_on (j);
  }
}

/* --- the beginning of a job --- */

int
jobs_read_on_error (const json_t *arguments, const char *key, enum job_on_error *result,
                    struct qmp_error *e)
{
  static const struct { const char *word; enum job_on_error meaning; } words[] = {
    { "report", ON_ERROR_REPORT }, { "ignore", ON_ERROR_IGNORE },
    { "stop", ON_ERROR_STOP }, { "enospc", ON_ERROR_ENOSPC }, { "auto", ON_ERROR_ENOSPC },
  };
  const char *word = qmpargs_text (arguments, key);
  size_t i = 0;

  if (word == NULL)
    word = "report";
  while (i < sizeof words / sizeof words[0] && strcmp (words[i].word, word) != 0)
    i++;
  if (i == sizeof words / sizeof words[0])
    return qmp_refuse (e, "Parameter '%s' does not accept value '%s'", key, word);
  *result = words[i].meaning;
  return 0;
}

int
jobs_read_settings (struct job_command *c)
{
  const json_t *const arguments = c->arguments;
  enum job_on_error on_error;

  if (jobs_read_on_error (arguments, "on-error", &on_error, c->e) == -1)
    return -1;
  c->settings = (struct job_settings) {
    .id = qmpargs_text (arguments, "job-id"), .on_error = on_error,
    .on_write_error = on_error,
    .speed = json_integer_value (json_object_get (arguments, "speed")),
    .auto_finalize = !json_is_false (json_object_get (arguments, "auto-finalize")),
    .auto_dismiss = !json_is_false (json_object_get (arguments, "auto-dismiss")),
  };
  return 0;
}

json_t *
jobs_run_command (const struct qmp_host *host, const json_t *arguments,
                  int (*start) (struct job_command *), struct qmp_error *e)
{
  struct job_command c = {
    .host = host, .arguments = arguments, .device = qmpargs_text (arguments, "device"),
    .e = e,
  };
  const int r = start (&c);

  qmptarget_leave (&c.target);
  return r == -1 ? NULL : json_object ();
}

/* (A job that has concluded uses no disk.) */
int
jobs_check_idle (const struct jobs *jobs, const struct qmp_target *t, const char *name,
                 struct qmp_error *e)
{
  for (const struct job *j = jobs->first; j; j = j->next)
    if (j->target.disk == t->disk)
      return qmp_refuse (e, "Node '%s' is busy: block device is in use by block job: %s",
                         name, j->kind->type);
  return 0;
}

static int
check_id (const struct jobs *jobs, const char *id, struct qmp_error *e)
{
  unsigned n = 0;

  if (!qmpargs_is_id (id))
    return qmp_refuse (e, "Invalid job ID '%s'", id);
  for (const struct job *j = jobs->first; j; j = j->next, n++)
    if (strcmp (j->id, id) == 0)
      return qmp_refuse (e, "Job ID '%s' already in use", id);
  return n < MOST_JOBS ? 0
    : qmp_refuse (e, "There are %u jobs: dismiss some that have concluded", n);
}

/* The disk stays open for it, as for a client. */
static int
use_disk (struct disk *disk, bool writes, const char *name, struct qmp_error *e)
{
  CLEANUP_FREE char *why = NULL;
  bool writable = writes;
  int r;

  report_watch ();
  r = disk_connect (disk, &writable);
  why = report_first ();
  if (r == 0 && writable == writes)
    return 0;
  return qmp_refuse (e, "Node '%s' is read-only: %s", name,
                     why ? why : disk_why_readonly (disk) ? disk_why_readonly (disk)
                     : "out of memory");
}

static struct job *
new_job (struct jobs *jobs, const struct job_settings *s, const char *id,
         const struct job_kind *kind)
{
  struct job *j = calloc (1, sizeof *j);

  if (j == NULL)
    return NULL;
  *j = (struct job) {
    .jobs = jobs, .settings = *s, .id = strdup (id), .kind = kind, .io_status = "ok",
    .speed = s->speed, .len = s->total,
  };
  clock_init_condition (&j->wake);
  if (j->id)
    return j;
  free_job (j);
  return NULL;
}

/* Under the lock. */
static int
start (struct job *j, struct qmp_error *e)
{
  int err;

  job_set_status (j, CREATED);
  if (j->settings.speed < 0) {
    job_set_status (j, GONE);
    return qmp_refuse (e, "Parameter 'speed' expects a non-negative value");
  }
  job_set_status (j, RUNNING);
  err = job_start_thread (j);
  if (err == 0)
    return 0;
  job_set_status (j, GONE);
  return qmp_refuse (e, "Cannot start a thread: %s", strerror (err));
}

int
jobs_start (struct job_command *c, const struct job_kind *kind, void *opaque)
{
  struct jobs *const jobs = c->host->jobs;
  const char *const id = c->settings.id ? c->settings.id : c->device;
  struct qmp_target *const t = &c->target;
  struct job *j;
  int r;

  if (jobs_check_idle (jobs, t, c->device, c->e) == -1 ||
      check_id (jobs, id, c->e) == -1 ||
      use_disk (t->disk, kind->writes, c->device, c->e) == -1)
    return -1;
  j = new_job (jobs, &c->settings, id, kind);
  if (j) {
    LOCK_FOR_BLOCK (&jobs->lock);

    j->opaque = opaque;
    j->target = *t;
    r = start (j, c->e);
    if (r == 0) {
      log_job (j, false);
      j->next = jobs->first;
      jobs->first = j;
      *t = (struct qmp_target) { .disk = NULL };
      return 0;
    }
    j->target = (struct qmp_target) { .disk = NULL };
  }
  if (j)
    free_job (j);
  if (kind->writes)
    disk_disconnect (t->disk, true);
  return qmp_refuse (c->e, "out of memory");
}

struct jobs *
jobs_new (void)
{
  struct jobs *jobs = memory_new (1, sizeof *jobs);

  if (jobs == NULL)
    return NULL;
  if (pipe2 (jobs->wake, O_CLOEXEC | O_NONBLOCK) == -1) {
    report_error ("pipe: %m");
    free (jobs);
    return NULL;
  }
  pthread_mutex_init (&jobs->lock, NULL);
  clock_init_condition (&jobs->ended);
  return jobs;
}

int
jobs_fd (const struct jobs *jobs)
{
  return jobs->wake[0];
}

json_t *
jobs_event (struct jobs *jobs)
{
  LOCK_FOR_BLOCK (&jobs->lock);
  json_t *first = json_incref (json_array_get (jobs->events, 0));

  json_array_remove (jobs->events, 0);
  return first;
}

void
jobs_tell (struct jobs *jobs, const char *event, json_t *data)
{
  LOCK_FOR_BLOCK (&jobs->lock);

  job_add_event (jobs, event, data);
}

/* --- commands --- */

/* Under the lock, as the next one. */
static void
resume (struct job *j)
{
  j->paused = false;
  j->io_status = "ok";
}

static void
cancel (struct job *j)
{
  const bool waits = j->waits;

  j->cancelled = true;
  if (j->prepares && j->kind->give_way)
    j->kind->give_way (j->opaque);
  if (j->paused)
    resume (j);
  job_tell_thread (j);
  if (waits)
    job_await_end (j);
}

static bool
is_in (struct job *j, enum status status)
{
  LOCK_FOR_BLOCK (&j->jobs->lock);

  return j->status == status && !j->prepares;
}

static void
cancel_pending (struct job *j)
{
  {
    LOCK_FOR_BLOCK (&j->jobs->lock);

    j->err = ECANCELED;
  }
  conclude (j);
}

void
jobs_cancel (struct jobs *jobs)
{
  {
    LOCK_FOR_BLOCK (&jobs->lock);

    for (struct job *j = jobs->first; j; j = j->next)
      cancel (j);
  }
  jobs_work (jobs);
}

void
jobs_end (struct jobs *jobs)
{
  struct job *next;

  if (jobs == NULL)
    return;
  jobs_cancel (jobs);
  for (struct job *j = jobs->first; j; j = next) {
    next = j->next;
    j->settings.auto_dismiss = true;
    if (is_in (j, CONCLUDED))
      dismiss (j);
    else if (is_in (j, PENDING))
      cancel_pending (j);
    else
      go_on (j);
  }
}

void
jobs_free (struct jobs *jobs)
{
  if (jobs == NULL)
    return;
  for (size_t i = 0; i < 2; i++)
    close (jobs->wake[i]);
  json_decref (jobs->events);
  pthread_cond_destroy (&jobs->ended);
  pthread_mutex_destroy (&jobs->lock);
  free (jobs);
}

static struct job *
find (const struct jobs *jobs, const char *id, bool block, struct qmp_error *e)
{
  struct job *j = jobs->first;

  while (j && (strcmp (j->id, id) != 0 || (block && j->kind->no_block_job)))
    j = j->next;
  if (j)
    return j;
  if (block)
    e->class = "DeviceNotActive";
  qmp_refuse (e, block ? "Block job '%s' not found" : "Job not found", id);
  return NULL;
}

/* Does its state allow that? */
static int
check_verb (const struct job *j, enum job_verb verb, struct qmp_error *e)
{
  return verbs[verb].in & IN (j->status) ? 0
    : qmp_refuse (e, "Job '%s' in state '%s' cannot accept command verb '%s'", j->id,
                  job_status_names[j->status], verbs[verb].name);
}

/* The checks, in QEMU's order.  Under the lock. */
static int
check_order (const struct job *j, const struct job_order *o, struct qmp_error *e)
{
  const char *why;

  if (o->verb == JOB_RESUME && !j->paused)
    return qmp_refuse (e, "Can't resume a job that was not paused");
  if (o->verb == JOB_CANCEL && o->soft && j->paused)
    return qmp_refuse (e, "The block job for device '%s' is currently paused", j->id);
  if (check_verb (j, o->verb, e) == -1)
    return -1;
  if (o->verb == JOB_FINALIZE && j->prepares)
    return qmp_refuse (e, "Job '%s' is being finalized already", j->id);
  if (o->verb == JOB_PAUSE && j->paused)
    return qmp_refuse (e, "Job is already paused");
  if (o->verb == JOB_SET_SPEED && o->speed < 0)
    return qmp_refuse (e, "Parameter 'speed' expects a non-negative value");
  if (o->verb == JOB_COMPLETE && (j->completes || j->cancelled))
    return qmp_refuse (e, "The active block job '%s' cannot be completed", j->id);
  why = o->verb == JOB_COMPLETE && j->kind->why_incomplete
    ? j->kind->why_incomplete (j->opaque) : NULL;
  return why ? qmp_refuse (e, "The active block job '%s' cannot be completed: %s", j->id,
                           why) : 0;
}

/* What only tells the job's thread.  Under the lock. */
static void
tell_order (struct job *j, const struct job_order *o)
{
  switch (o->verb) {
  case JOB_CANCEL:
    if (o->soft && j->status == READY)
      j->completes = j->softly = true;
    else {
      cancel (j);
      return;
    }
    break;
  case JOB_PAUSE:
    j->paused = true;
    break;
  case JOB_RESUME:
    resume (j);
    break;
  case JOB_SET_SPEED:
    j->speed = o->speed;
    j->next_at = 0;
    break;
  case JOB_COMPLETE:
    j->completes = true;
    break;
  case JOB_FINALIZE: case JOB_DISMISS:
    return;
  }
  job_tell_thread (j);
}

int
jobs_order (struct jobs *jobs, const char *id, const struct job_order *o,
            struct qmp_error *e)
{
  struct job *j = find (jobs, id, o->block, e);
  bool pending;

  if (j == NULL)
    return -1;
  {
    LOCK_FOR_BLOCK (&jobs->lock);

    if (check_order (j, o, e) == -1)
      return -1;
    pending = o->verb == JOB_CANCEL && j->status == PENDING && !j->prepares;
    if (!pending)
      tell_order (j, o);
  }
  if (o->verb == JOB_FINALIZE && j->kind->prepare)
    prepare (j);
  else if (o->verb == JOB_FINALIZE)
    finalize (j);
  else if (o->verb == JOB_DISMISS)
    dismiss (j);
  else if (pending)
    cancel_pending (j);
  else if (o->verb == JOB_CANCEL)
    jobs_work (jobs);           /* it may have ended */
  return 0;
}

/* An error is seen no earlier than the status that follows from it. */
static json_t *
add_error (json_t *one, const struct job *j)
{
  return j->err && IN (j->status) & (IN (ABORTING) | IN (CONCLUDED))
    ? jsontext_add (one, { "error", jsontext_string (job_why (j)) }) : one;
}

static json_t *
describe (const struct job *j)
{
  json_t *one = jsontext_object (
    { "id", jsontext_string (j->id) },
    { "type", jsontext_string (j->kind->type) },
    { "status", jsontext_string (job_status_names[j->status]) },
    { "current-progress", jsontext_number (j->offset) },
    { "total-progress", jsontext_number (j->len) });

  return add_error (one, j);
}

static json_t *
describe_block (const struct job *j)
{
  const bool works = IN (j->status) & AT_WORK;
  json_t *one = jsontext_object (
    { "type", jsontext_string (j->kind->type) },
    { "device", jsontext_string (j->id) },
    { "len", jsontext_number (j->len) },
    { "offset", jsontext_number (j->offset) },
    { "busy", json_boolean (works && !j->waits) },
    { "paused", json_boolean (j->paused) },
    { "speed", jsontext_number (j->speed) },
    { "io-status", jsontext_string (j->io_status) },
    { "ready", json_boolean (j->status == READY || j->status == STANDBY) },
    { "status", jsontext_string (job_status_names[j->status]) },
    { "auto-finalize", json_boolean (j->settings.auto_finalize) },
    { "auto-dismiss", json_boolean (j->settings.auto_dismiss) });

  return add_error (one, j);
}

json_t *
jobs_list (struct jobs *jobs, bool block)
{
  json_t *list = json_array ();
  LOCK_FOR_BLOCK (&jobs->lock);

  for (const struct job *j = jobs->first; j; j = j->next)
    if (!block || !j->kind->no_block_job)
      list = jsontext_append (list, block ? describe_block (j) : describe (j));
  return list;
}
