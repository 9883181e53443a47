/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do the parts of qmpjobs.c share?  No other file includes this.
 */

#ifndef QCOW2_QMPJOBS_IMPL_H
#define QCOW2_QMPJOBS_IMPL_H

#include <pthread.h>

#include "plugin/qmpjobs.h"

enum status {
  CREATED, RUNNING, PAUSED, READY, STANDBY, WAITING, PENDING, ABORTING, CONCLUDED, GONE
};

#define IN(status) (1u << (status))
#define AT_WORK (IN (CREATED) | IN (RUNNING) | IN (PAUSED) | IN (READY) | IN (STANDBY))

struct job {
  struct jobs *jobs;            /* constant, as is all until the next line */
  struct job_settings settings; /* but for the end of the server */
  char *id;
  const struct job_kind *kind;
  void *opaque;
  struct qmp_target target;     /* the disk; none from the end on */
  pthread_t thread;

  struct job *next;             /* under the lock, as is all from here on; only the thread
                                   that runs commands changes this */
  pthread_cond_t wake;          /* something has changed for the job's thread */
  enum status status;
  uint64_t offset, len;         /* of its progress, in bytes */
  uint64_t speed;               /* bytes a second; 0: no limit */
  uint64_t next_at;             /* when it may go on, for its speed; now_ns */
  bool waits;                   /* the job's thread does, in a pause point */
  bool paused;                  /* it should be */
  bool cancelled;
  bool completes, softly;       /* it should, without a pivot */
  bool prepares;                /* it is pending, and its thread works again */
  bool ended;                   /* its thread has; then it can be joined */
  int err;                      /* why it has failed, or 0 */
  int skipped;                  /* a failure that was ignored, or 0 */
  const char *io_status;
  char *why;                    /* the text for `err'; NULL: strerror */
};

struct jobs {
  int wake[2];                  /* a pipe */
  pthread_mutex_t lock;
  pthread_cond_t ended;         /* a thread has */
  struct job *first;            /* the newest one */
  json_t *events;               /* that no client has taken; NULL: there was no memory */
};

/* --- qmpjobwork.c; all of it under the lock --- */

extern const char *const job_status_names[];

/* DATA belongs to the event then. */
extern void job_add_event (struct jobs *, const char *event, json_t *data);
extern void job_set_status (struct job *, enum status);
/* An event that shows how far the job has come. */
extern void job_add_progress_event (struct job *, const char *event);
/* Why it has failed, in words. */
extern const char *job_why (const struct job *);

/* Returns 0, or an errno. */
extern int job_start_thread (struct job *);
/* Something has changed for the job's thread. */
extern void job_tell_thread (struct job *);
/* The thread was cancelled while it waited: it ends now, without any I/O.  Waits for
 * that, but not for long. */
extern void job_await_end (struct job *);

#endif /* QCOW2_QMPJOBS_IMPL_H */
