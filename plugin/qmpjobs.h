/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Jobs: commands that go on after their answer.  See qmpjobs.c.
 *
 * A kind of job has these functions, in two threads:
 *
 *   run       in a thread of the job: the long work, in short pieces, with clients
 *             writing.  Calls job_step between any two pieces
 *   prepare   in a thread of the job, before `finish', and again when that wants it
 *   finish    in the thread that runs commands: makes the result count, in one short
 *             step, such as a disk_change.  Nothing else changes the disk meanwhile
 *
 * A job that goes on until it is told to complete (an active commit, a mirror) calls
 * job_ready when everything is copied, then copies what clients write, between calls of
 * job_step and job_sleep, until job_completes; `finish' asks job_pivots whether to switch
 * to the result.
 */

#ifndef QCOW2_QMPJOBS_H
#define QCOW2_QMPJOBS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "plugin/qmptarget.h"

struct job;

struct job_kind {
  const char *type;             /* as QEMU calls it: "stream" */
  bool no_block_job;            /* only commands and events of jobs as such tell of it */
  bool writes;                  /* to the disk, as a client does */
  bool repeats;                 /* a piece that failed and was skipped is tried again, so
                                   that this is no failure at the end */
  /* Returns 0: everything is done; or -1 with errno: it failed (reported), or job_step or
   * job_fails said so. */
  int (*run) (struct job *, void *opaque);
  /* Before `finish', which may come long after `run' (job-finalize): what that needs.
   * Returns as `run' does.  A job that stops here stays pending.  NULL: nothing. */
  int (*prepare) (struct job *, void *opaque);
  /* The job is cancelled while `prepare' runs, or when it has: clients must not wait for
   * it any more.  Does no I/O.  NULL: they do not. */
  void (*give_way) (void *opaque);
  /* After `run' and `prepare' have returned 0; not after the job was cancelled.  Returns
   * 0, or -1 (reported; the client gets that text); with `prepare', -1 with EAGAIN: that
   * is needed again. */
  int (*finish) (struct job *, void *opaque);
  /* The job has ended, well or not, and its thread is gone; the disk is still open.
   * Frees OPAQUE. */
  void (*free) (void *opaque);
  /* For a job that is ready: why it cannot be completed.  NULL: it can, as it can without
   * this function. */
  const char *(*why_incomplete) (void *opaque);
};

/* --- for `run', and for `finish' --- */

/* Of TOTAL bytes, DONE are done; COPIED of them were moved since the last call (what
 * speed limits).  Waits while the job is too fast or paused.  Returns 0: go on; or -1
 * with ECANCELED: the job was cancelled, return that. */
extern int job_step (struct job *, uint64_t done, uint64_t total, uint64_t copied);

/* A piece could not be read (READS) or written: ERR, an errno.  Tells clients.  What now?
 * JOB_FAIL: return -1 with errno, which this sets.  JOB_AGAIN: try this piece again (the
 * job was stopped, and resumed).  JOB_SKIP: go on with the next piece, and fail at the
 * end, with ERR. */
enum job_fate { JOB_FAIL, JOB_AGAIN, JOB_SKIP };
extern enum job_fate job_fails (struct job *, bool reads, int err);

/* The core has returned R, after report_watch.  If that is -1, the job fails, and clients
 * get the core's first message in place of the text of errno.  Returns R; errno stays. */
extern int job_told (struct job *, int r);

/* Everything is copied; from now on the job can be completed. */
extern void job_ready (struct job *);
/* After job_ready: is the job to complete? */
extern bool job_completes (struct job *);
/* Waits for so long, or until job_step or job_completes have news. */
extern void job_sleep (struct job *, unsigned ms);
/* After job_completes: does the disk switch to the result?  (block-job-cancel completes a
 * job that is ready without that.) */
extern bool job_pivots (struct job *);
/* The disk has moved: with a directory, its name means the new image as long as the
 * server runs.  For `finish'. */
extern void job_keep_open (struct job *);

extern struct disk *job_disk (struct job *);

/* --- all jobs; for the thread that runs commands --- */

struct jobs;

/* NULL: reported. */
extern struct jobs *jobs_new (void);
/* Cancels all jobs. */
extern void jobs_cancel (struct jobs *);
/* The same, the newest one first, and waits for them.  Their events can still be
 * taken.  Accepts NULL. */
extern void jobs_end (struct jobs *);
extern void jobs_free (struct jobs *);  /* after that; accepts NULL */

/* A descriptor that can be read when there is something to do for jobs_work. */
extern int jobs_fd (const struct jobs *);
/* Carries on with jobs whose thread has ended. */
extern void jobs_work (struct jobs *);
/* Takes the oldest event that has not been taken, an object with `event' and `data'.
 * NULL: there is none. */
extern json_t *jobs_event (struct jobs *);

/* Adds an event that is about no job.  DATA belongs to it then. */
extern void jobs_tell (struct jobs *, const char *event, json_t *data);
/* Any thread, with any locks held: makes jobs_fd readable. */
extern void jobs_wake (const struct jobs *);

/* Arguments that all commands have that start a job, for their lists, and what they
 * say. */
#define JOB_ARGUMENTS                                                           \
  { "job-id", QMPARG_STRING, true },                                            \
  { "speed", QMPARG_INT, true },                                                \
  { "on-error", QMPARG_STRING, true },                                          \
  { "auto-finalize", QMPARG_BOOL, true },                                       \
  { "auto-dismiss", QMPARG_BOOL, true }

enum job_on_error { ON_ERROR_REPORT, ON_ERROR_IGNORE, ON_ERROR_STOP, ON_ERROR_ENOSPC };
struct job_settings {
  const char *id;               /* NULL: the name of the device */
  json_int_t speed;             /* bytes a second; 0: no limit */
  enum job_on_error on_error;   /* in reading, and unless it says something else ... */
  enum job_on_error on_write_error;     /* ... in writing */
  bool auto_finalize, auto_dismiss;
  uint64_t total;               /* what query-jobs says before the first job_step; bytes;
                                   the caller may set it */
};

/* A command that starts a job. */
struct job_command {
  const struct qmp_host *host;
  const json_t *arguments;
  const char *device;           /* its argument of that name */
  struct qmp_error *e;
  struct job_settings settings; /* after jobs_read_settings */
  struct qmp_target target;     /* the disk, once START has found it; zeros when the job
                                   has taken it over */
};
/* Calls START, which returns -1 if it refuses.  Returns the answer. */
extern json_t *jobs_run_command (const struct qmp_host *, const json_t *arguments,
                                 int (*start) (struct job_command *), struct qmp_error *);
/* -1: a value is wrong. */
extern int jobs_read_settings (struct job_command *);
/* For commands in which on-error has another name: KEY. */
extern int jobs_read_on_error (const json_t *arguments, const char *key,
                               enum job_on_error *, struct qmp_error *);

/* Why a command cannot change the disk T that NAME means: a job uses it.  -1: refused. */
extern int jobs_check_idle (const struct jobs *, const struct qmp_target *t,
                            const char *name, struct qmp_error *);

/* Starts the job, which takes over the target, and OPAQUE.  -1: it did not start, and the
 * caller keeps OPAQUE. */
extern int jobs_start (struct job_command *, const struct job_kind *, void *opaque);

/* --- commands for jobs --- */

enum job_verb {
  JOB_CANCEL, JOB_PAUSE, JOB_RESUME, JOB_SET_SPEED, JOB_COMPLETE, JOB_FINALIZE, JOB_DISMISS,
};
struct job_order {
  enum job_verb verb;
  bool block;                   /* the command is one of those called block-job- */
  bool soft;                    /* CANCEL: a job that is ready completes, without a
                                   pivot */
  json_int_t speed;
};
/* ID: which job.  -1: refused. */
extern int jobs_order (struct jobs *, const char *id, const struct job_order *,
                       struct qmp_error *);

/* The answers to query-jobs and query-block-jobs (BLOCK).  NULL on ENOMEM. */
extern json_t *jobs_list (struct jobs *, bool block);

#endif /* QCOW2_QMPJOBS_H */
