/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which compressed clusters are decompressed before a client asks for them?
 *
 * A client that reads in order, with one request at a time, would keep one processor
 * busy.  Threads on the others decompress what it is going to read, into the cache of
 * decompressed clusters.  A large request over several clusters gets the same help.
 *
 *      reader    [ at ][      ]
 *      threads                 [ cursor ][      ][      ]
 *                               <--- the window -------->
 *
 * There is a table of the last few streams.  A stream is in order if three requests
 * follow one another, and have covered half a cluster.  Its window then begins with two
 * clusters, and doubles with each one that the reader comes to.  Random readers replace
 * each other's streams, and cause no work.
 *
 * The threads leave the cluster after that of the reader alone.  If it has not been begun
 * when the reader comes there, the reader decompresses it itself, without a copy.  If the
 * reader comes to one that a thread has begun, it takes work from the window, as a thread
 * does, before it waits: otherwise it would wait most of the time where decompressing
 * takes longer than everything else, and its processor would be idle.  (It does not if
 * that could take much longer: if its cluster is here, and others are behind a link.)
 *
 * A thread takes a step of a window, a cluster or more, only while there is a processor
 * for it: requests that read compressed clusters, and threads that work ahead of them,
 * are no more than there are processors.  So a client with many requests in flight is
 * not disturbed.
 *
 * A thread enters a read section for each step, from the lookup until the cluster is in
 * the cache, as a request does (R4).  It is in none while it waits for work.  The
 * view of a stream of the active disk is that of its last request.  If the disk has
 * become writable since, the view is out of date for all later requests, and the stream
 * ends.
 *
 * Nothing is reported, recorded, or waited for: a cluster that cannot be read, or that is
 * in an L2 table that is not in memory, is left to the reader.  Memory is that of the
 * cache, within its limit.
 *
 * A thread that finds nothing to do for a second ends.  readahead_end ends all, before a
 * fork, and before the disk comes to rest.
 *
 * Locks: `lock' guards what is beside it.  It is not held during lookups, I/O or
 * decompression, and no other lock is taken within it.  readahead_load is only a hint.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/processors.h"
#include "util/report.h"
#include "util/unwanted.h"
#include "request/readahead.h"

#define MOST_STREAMS 8
#define MOST_THREADS 7
/* A stream is alive if it was among the users of the last so many requests. */
#define ALIVE 64

/* Bytes.  Clusters that are smaller are handled together. */
#define LEAST_STEP (UINT64_C (64) << 10)
/* The window of a stream, if that is enough for all threads. */
#define WINDOW (UINT64_C (1) << 20)
/* The windows of all streams: half of the cache. */
#define MOST_WINDOWS (UINT64_C (8) << 20)
/* Requests of this size, over several clusters, are helped. */
#define LARGE_REQUEST (UINT64_C (256) << 10)

#define IDLE_MS 1000

struct stream {
  uint64_t id;                  /* 0: unused */
  struct view view;
  uint64_t step;                /* bytes that a thread takes */
  uint64_t first;               /* requests were in order from here */
  uint64_t next;                /* to here */
  unsigned following;           /* requests since the first one */
  uint64_t at;                  /* the step that the reader works on */
  uint64_t request;             /* bytes of the last request */
  uint64_t large_end;           /* of a large request; 0: none */
  uint64_t cursor;              /* what is before it has been taken, or is not to be */
  unsigned depth;               /* steps in the window; 0: not in order */
  uint64_t used;                /* when, counted in requests */
};

struct worker {
  struct readahead *readahead;  /* constant */
  pthread_t thread;
  bool started;                 /* the thread is to be joined; readahead_end explains why
                                   it may use this without the lock */
  bool running;                 /* the thread may take more work */
};

struct readahead {
  struct epoch *epoch;          /* constant, like the next two */
  _Atomic (const struct view *) *current;
  struct readahead_load *load;
  atomic_bool allowed;
  atomic_bool ending;           /* changes with the lock held */

  pthread_mutex_t lock;
  pthread_cond_t wake;          /* there is work, or the end */
  struct stream streams[MOST_STREAMS];
  unsigned turn;                /* the stream that is looked at first */
  uint64_t requests;            /* so far */
  uint64_t last_id;
  struct worker workers[MOST_THREADS];
  unsigned idle;                /* workers that wait for `wake' */
};

struct job {
  struct view view;
  uint64_t at, end;             /* guest offsets */
};

void
readahead_load_init (struct readahead_load *load)
{
  load->processors = processors ();
  atomic_init (&load->readers, 0);
  atomic_init (&load->working, 0);
}

struct readahead *
readahead_new (struct epoch *epoch, _Atomic (const struct view *) *current,
               struct readahead_load *load)
{
  struct readahead *r = memory_new (1, sizeof *r);

  if (r == NULL)
    return NULL;
  r->epoch = epoch;
  r->current = current;
  r->load = load;
  pthread_mutex_init (&r->lock, NULL);
  clock_init_condition (&r->wake);
  for (unsigned i = 0; i < MOST_THREADS; i++)
    r->workers[i].readahead = r;
  return r;
}

void
readahead_free (struct readahead *r)
{
  if (r == NULL)
    return;
  readahead_end (r);
  pthread_cond_destroy (&r->wake);
  pthread_mutex_destroy (&r->lock);
  free (r);
}

void
readahead_allow (struct readahead *r)
{
  r->allowed = r->load->processors > 1;
}

void
readahead_end (struct readahead *r)
{
  {
    LOCK_FOR_BLOCK (&r->lock);

    r->ending = true;
    for (unsigned i = 0; i < MOST_STREAMS; i++)
      r->streams[i].id = 0;
    pthread_cond_broadcast (&r->wake);
  }
  /* While it is ending, no thread is started, and `started' does not change. */
  for (unsigned i = 0; i < MOST_THREADS; i++)
    if (r->workers[i].started) {
      pthread_join (r->workers[i].thread, NULL);
      r->workers[i].started = false;
    }
  LOCK_FOR_BLOCK (&r->lock);
  r->ending = false;
}

/* --- windows; with the lock held --- */

static unsigned
most_threads (const struct readahead *r)
{
  return min64 (r->load->processors - 1, MOST_THREADS);
}

/* The largest depth of a window. */
static unsigned
most_depth (const struct readahead *r, const struct stream *s)
{
  const uint64_t wanted = max64 (max64 (WINDOW, 2 * s->request),
                                 (2 * most_threads (r) + 2) * s->step);
  unsigned alive = 0;

  for (unsigned i = 0; i < MOST_STREAMS; i++)
    alive += r->streams[i].id != 0 && r->streams[i].depth > 0 &&
      r->requests - r->streams[i].used < ALIVE;
  return max64 (2, min64 (wanted, MOST_WINDOWS / max64 (alive, 1)) / s->step);
}

/* The steps that may be taken: sets *FROM, and returns their number. */
static unsigned
steps_of (const struct readahead *r, const struct stream *s, uint64_t *from)
{
  uint64_t end = 0;

  if (s->id == 0)
    return 0;
  if (s->depth > 0)
    end = s->at + (s->depth + 1) * s->step;
  else if (s->large_end > 0)
    end = min64 (s->large_end, s->at + (most_depth (r, s) + 1) * s->step);
  end = min64 (end, s->view.size);
  *from = max64 (s->cursor, s->at + (s->at + s->step < s->large_end ? 1 : 2) * s->step);
  return *from < end ? div_up (end - *from, s->step) : 0;
}

/* --- the threads --- */

/* If a table is not in memory, or if there is a fault, the reader will find that. */
static bool
lookup (const struct view *v, uint64_t at, uint64_t len, struct run *run)
{
  if (v->w) {
    if (!l2_lookup_here (v->w->l2, at, len, run))
      return false;
    if ((run->kind != RUN_UNALLOCATED && run->kind != RUN_RESERVED) || v->single)
      return true;
    len = run->len;
  }
  return layers_has (v->lower, at) && layers_lookup (v->lower, at, len, run) == 0;
}

static void
inflate (const struct view *v, struct run *run)
{
  const struct header *h = layers_header (v->layers, run->layer);

  run->len = min64 (run->len, h->cluster_size - (run->start & (h->cluster_size - 1)));
  cluster_cache_ahead (v->cluster_cache, layers_file (v->layers, run->layer), h,
                       run->layer, run->host);
}

/* May requests that begin now use this view?  In a read section. */
static bool
is_present (const struct readahead *r, const struct view *v)
{
  const struct view *now = atomic_load (r->current);

  return !v->is_active || (v->image == now->image && v->w == now->w);
}

static void
carry_out (struct readahead *r, struct job *job)
{
  const struct view *v = &job->view;
  const struct epoch_section section = epoch_enter (r->epoch);
  struct run run;

  if (is_present (r, v))
    for (; job->at < job->end && !r->ending; job->at += run.len) {
      if (!lookup (v, job->at, job->end - job->at, &run))
        break;
      if (run.kind == RUN_COMPRESSED)
        inflate (v, &run);
    }
  epoch_leave (r->epoch, section);
}

/* Is there a processor for one more thread? */
static bool
has_processor (const struct readahead_load *load)
{
  return load->readers + load->working < load->processors;
}

/* Returns the number of steps that there were.  With the lock held. */
static unsigned
take_step (struct readahead *r, struct stream *s, struct job *job)
{
  uint64_t from;
  const unsigned steps = steps_of (r, s, &from);

  if (steps > 0) {
    s->cursor = from + s->step;
    *job = (struct job) { s->view, from, min64 (s->cursor, s->view.size) };
  }
  return steps;
}

/* With the lock held. */
static bool
take_job (struct readahead *r, struct job *job)
{
  if (!has_processor (r->load))
    return false;
  for (unsigned i = 0; i < MOST_STREAMS; i++) {
    const unsigned which = (r->turn + i) % MOST_STREAMS;
    const unsigned steps = take_step (r, &r->streams[which], job);

    if (steps > 0) {
      r->turn = which + 1;
      r->load->working++;
      if (steps > 1 && r->idle > 0)
        pthread_cond_signal (&r->wake);
      return true;
    }
  }
  return false;
}

/* Waits for work, with the lock held.  False: there was none for long. */
static bool
await_work (struct readahead *r)
{
  const int64_t end = clock_ms () + IDLE_MS;
  const struct timespec ts = { end / 1000, end % 1000 * 1000000 };
  int err;

  r->idle++;
  err = pthread_cond_timedwait (&r->wake, &r->lock, &ts);
  r->idle--;
  return err != ETIMEDOUT;
}

static void *
work (void *opaque)
{
  struct worker *me = opaque;
  struct readahead *r = me->readahead;
  struct job job;

  unwanted_if (&r->ending);
  report_silence (true);
  pthread_mutex_lock (&r->lock);
  while (!r->ending) {
    if (take_job (r, &job)) {
      pthread_mutex_unlock (&r->lock);
      carry_out (r, &job);
      r->load->working--;
      pthread_mutex_lock (&r->lock);
    }
    else if (!await_work (r))
      break;
  }
  me->running = false;
  pthread_mutex_unlock (&r->lock);
  return NULL;
}

/* Signals are for the threads of nbdkit. */
static bool
start_thread (struct worker *w)
{
  sigset_t all, old;
  int err;

  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  err = pthread_create (&w->thread, NULL, work, w);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  return err == 0;
}

/* With the lock held: if all threads are at work, and there may be more, starts one.
 * Without it, readers do everything. */
static void
add_thread (struct readahead *r)
{
  for (unsigned i = 0; i < most_threads (r); i++) {
    struct worker *w = &r->workers[i];

    if (w->running)
      continue;
    if (w->started)             /* it has nothing left to do */
      pthread_join (w->thread, NULL);
    w->started = w->running = start_thread (w);
    return;
  }
}

/* --- the requests; with the lock held --- */

static bool
is_same (const struct view *a, const struct view *b)
{
  return a->lower == b->lower && a->w == b->w && a->single == b->single;
}

/* Requests in flight at the same time may come a little out of order; but so would many
 * random ones, if their disk is small. */
static bool
continues (const struct stream *s, const struct view *v, uint64_t at)
{
  const uint64_t slack = s->depth > 0 ? s->step : 0;

  return s->id != 0 && at + slack >= s->next && at <= s->next + slack &&
    is_same (&s->view, v);
}

/* Finds the stream that the request continues, or makes one. */
static struct stream *
find_stream (struct readahead *r, const struct view *v, uint64_t at, uint64_t step)
{
  struct stream *s, *oldest = &r->streams[0];

  for (s = r->streams; s < r->streams + MOST_STREAMS; s++) {
    if (continues (s, v, at))
      return s;
    if (s->used < oldest->used)
      oldest = s;
  }
  *oldest = (struct stream) {
    .id = ++r->last_id, .view = *v, .step = step, .first = at, .next = at,
    .at = round_down (at, step),
  };
  return oldest;
}

/* The request reads [AT, END). */
static void
begin_request (struct readahead *r, struct stream *s, uint64_t at, uint64_t end)
{
  s->used = ++r->requests;
  s->request = end - at;
  s->large_end = end - at >= LARGE_REQUEST && end - at > s->step ? end : 0;
  if (s->next > s->first)
    s->following++;
  if (s->depth == 0 && s->following >= 2 && s->next - s->first >= s->step / 2)
    s->depth = 2;
  s->next = max64 (s->next, end);
}

static void
advance (const struct readahead *r, struct stream *s, uint64_t at)
{
  at = round_down (at, s->step);
  if (s->depth > 0 && at > s->at)
    s->depth = min64 (2 * s->depth, most_depth (r, s));
  s->at = at;
}

/* It takes as long to wake a thread as to decompress a small cluster: so that is done for
 * several of them. */
static void
get_help (struct readahead *r, const struct stream *s)
{
  uint64_t from;
  const unsigned steps = steps_of (r, s, &from);

  if (steps == 0 || 2 * steps < s->depth || !has_processor (r->load))
    return;
  if (r->idle > 0)
    pthread_cond_signal (&r->wake);
  else
    add_thread (r);
}

void
readahead_touch (struct readahead_request *q, const struct view *v, uint64_t at,
                 uint64_t end, uint64_t cluster_size)
{
  struct readahead *r = v->readahead;
  struct stream *s;

  if (r == NULL || !r->allowed)
    return;
  LOCK_FOR_BLOCK (&r->lock);

  if (r->ending)
    return;
  if (q->readahead == NULL) {
    q->readahead = r;
    r->load->readers++;
    s = find_stream (r, v, at, max64 (cluster_size, LEAST_STEP));
    q->stream = s - r->streams;
    q->id = s->id;
    begin_request (r, s, at, end);
  }
  else {
    s = &r->streams[q->stream];
    if (s->id != q->id)
      return;
  }
  advance (r, s, at);
  q->ordered = s->depth > 0 || s->large_end > 0;
  get_help (r, s);
}

/* Can the data of other layers take longer than that of LAYER? */
static bool
others_are_remote (const struct layers *layers, unsigned layer)
{
  if (storage_is_remote (layers_file (layers, layer)))
    return false;
  for (unsigned i = 0; i < layers_count (layers); i++)
    if (storage_is_remote (layers_file (layers, i)))
      return true;
  return false;
}

void
readahead_help (struct readahead_request *q, const struct view *v, unsigned layer)
{
  struct readahead *r = q->readahead;
  struct stream *s = &r->streams[q->stream];
  struct job job;
  bool silent, any;

  if (others_are_remote (v->layers, layer))
    return;
  {
    LOCK_FOR_BLOCK (&r->lock);
    any = s->id == q->id && take_step (r, s, &job) > 0;
  }
  if (!any)
    return;
  silent = report_silence (true);
  carry_out (r, &job);
  report_silence (silent);
}

void
readahead_done (struct readahead_request *q)
{
  if (q->readahead)
    q->readahead->load->readers--;
}
