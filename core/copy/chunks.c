/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do several threads work through a disk?
 *
 * Each thread takes the next chunk of the disk, until all are done, one fails, or the
 * user stops the job.  Meanwhile the thread that called reports progress, and has what
 * was done made durable every few seconds, so that a crash loses little work.  Once it is
 * to end, what the threads do is unwanted: none waits for a server that is away.
 *
 * Locks: run.lock guards what the threads share.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/processors.h"
#include "util/report.h"
#include "util/unwanted.h"
#include "copy/chunks.h"

/* If there are more than processors, those that write to the same file wait for each
 * other in the host, and turn around there: this took up to a quarter more processor
 * time.  One more than one hides what reading from a disk takes. */
#define MIN_THREADS 2
#define MAX_THREADS 4

/* Chunks of the disk.  Their size is a power of two, at least MIN_CHUNK bytes, such that
 * there are at most MAX_CHUNKS. */
#define MIN_CHUNK (UINT64_C (4) << 20)
#define MAX_CHUNKS (UINT64_C (1) << 16)

#define DURABLE_SECONDS 5
#define STEP_MILLISECONDS 100

struct run {
  const struct chunks_job *job;
  uint64_t chunk;               /* size of a chunk, in bytes */

  pthread_mutex_t lock;
  pthread_cond_t ended;
  uint64_t next;                /* start of the next chunk; guarded by lock */
  uint64_t done, copied;        /* bytes; guarded by lock */
  unsigned begun;               /* threads, up to now; guarded by lock */
  /* Where the chunk begins that each of them has not done; guarded by lock. */
  uint64_t undone[CHUNKS_MOST_THREADS];
  unsigned running;             /* number of threads; guarded by lock */
  int error;                    /* errno of the first failure; guarded by lock */
  atomic_bool ends;             /* there is one */
};

/* With the lock. */
static void
note_error (struct run *r, int err)
{
  if (r->error == 0)
    r->error = err;
  atomic_store (&r->ends, true);
  if (r->job->wake)
    r->job->wake (r->job->opaque);
}

/* --- the threads --- */

static unsigned
take_number (struct run *r)
{
  LOCK_FOR_BLOCK (&r->lock);

  r->undone[r->begun] = UINT64_MAX;
  return r->begun++;
}

static bool
take_chunk (struct run *r, unsigned thread, uint64_t *start, uint64_t *end)
{
  LOCK_FOR_BLOCK (&r->lock);

  if (r->error != 0 || r->next >= r->job->size)
    return false;
  *start = r->undone[thread] = r->next;
  *end = r->next = min64 (r->next + r->chunk, r->job->size);
  return true;
}

static void *
do_chunks (void *opaque)
{
  struct run *r = opaque;
  CLEANUP_FREE void *scratch = memory_pages (r->job->scratch);
  const unsigned thread = take_number (r);
  uint64_t start, end, copied;
  int err;
  bool ok;

  unwanted_if (&r->ends);
  if (scratch == NULL) {
    LOCK_FOR_BLOCK (&r->lock);
    note_error (r, ENOMEM);
  }
  while (take_chunk (r, thread, &start, &end)) {
    copied = 0;
    /* If the host fails, for instance because it is full, all threads get the same error:
     * keep the messages. */
    report_keep ();
    ok = r->job->work (r->job->opaque, scratch, start, end, &copied) == 0;
    err = errno;                /* means nothing if the work was unwanted */
    LOCK_FOR_BLOCK (&r->lock);
    report_end_keeping (ok || r->error == 0);
    r->copied += copied;
    if (ok) {
      r->done += end - start;
      r->undone[thread] = UINT64_MAX;
    }
    else
      note_error (r, err);
  }

  LOCK_FOR_BLOCK (&r->lock);
  r->running--;
  pthread_cond_signal (&r->ended);
  return NULL;
}

static void
add_milliseconds (struct timespec *t, long ms)
{
  t->tv_nsec += ms * 1000000;
  t->tv_sec += t->tv_nsec / 1000000000;
  t->tv_nsec %= 1000000000;
}

/* All before that was done. */
static uint64_t
get_before (struct run *r, uint64_t *copied)
{
  LOCK_FOR_BLOCK (&r->lock);
  uint64_t before = r->next;

  for (unsigned i = 0; i < r->begun; i++)
    before = min64 (before, r->undone[i]);
  *copied = r->copied;
  return before;
}

/* Called without the lock. */
static void
make_durable (struct run *r, time_t *last)
{
  struct timespec now;
  uint64_t before, copied;
  int err;

  clock_gettime (CLOCK_MONOTONIC, &now);
  if (*last == 0)
    *last = now.tv_sec;
  if (now.tv_sec - *last < DURABLE_SECONDS)
    return;
  before = get_before (r, &copied);
  if (r->job->make_durable (r->job->opaque, before, copied) == -1) {
    err = errno;
    LOCK_FOR_BLOCK (&r->lock);
    note_error (r, err);
  }
  clock_gettime (CLOCK_MONOTONIC, &now);
  *last = now.tv_sec;
}

bool
chunks_tell (const struct chunks_watch *watch, uint64_t done, uint64_t total,
             uint64_t copied)
{
  return watch == NULL || watch->step (watch->opaque, done, total, copied);
}

/* Reports progress while the threads work. */
static void
wait_for_threads (struct run *r, const struct chunks_watch *watch)
{
  struct timespec until;
  uint64_t done, copied;
  time_t durable = 0;
  bool running = true;

  while (running) {
    pthread_mutex_lock (&r->lock);
    clock_gettime (CLOCK_MONOTONIC, &until);
    add_milliseconds (&until, STEP_MILLISECONDS);
    while (r->running > 0 &&
           pthread_cond_timedwait (&r->ended, &r->lock, &until) == 0)
      ;
    running = r->running > 0;
    done = r->done;
    copied = r->copied;
    pthread_mutex_unlock (&r->lock);

    if (!chunks_tell (watch, done, r->job->size, copied)) {
      LOCK_FOR_BLOCK (&r->lock);
      if (r->done < r->job->size)
        note_error (r, EINTR);
    }
    if (running && r->job->make_durable)
      make_durable (r, &durable);
  }
}

static void
run_threads (struct run *r, const struct chunks_watch *watch)
{
  const unsigned wanted = r->job->threads ? r->job->threads : r->job->remote ? MAX_THREADS
    : max64 (min64 (processors (), MAX_THREADS), MIN_THREADS);
  pthread_t threads[CHUNKS_MOST_THREADS];
  unsigned i, n = 0;
  int err = 0;

  for (i = 0; i < wanted; i++) {
    pthread_mutex_lock (&r->lock);
    r->running++;
    pthread_mutex_unlock (&r->lock);
    err = pthread_create (&threads[n], NULL, do_chunks, r);
    if (err == 0) {
      n++;
      continue;
    }
    LOCK_FOR_BLOCK (&r->lock);
    r->running--;
  }
  if (n == 0 || (n < wanted && r->job->threads)) {
    errno = err;
    report_error ("pthread_create: %m");
    LOCK_FOR_BLOCK (&r->lock);
    note_error (r, err);
  }
  wait_for_threads (r, watch);
  for (i = 0; i < n; i++)
    pthread_join (threads[i], NULL);
  if (r->error == EINTR && r->done == r->job->size)
    r->error = 0;               /* too late to stop: the work is done */
}

int
chunks_cut_short (const struct chunks_words *w, int err, uint64_t done, uint64_t size)
{
  const char *const then = w->then ? w->then : "", *remedy = w->remedy ? w->remedy : "";

  if (w->what)
    report_error ("%s: %s %s after %" PRIu64 " of %" PRIu64 " bytes%s%s%s", w->path, w->what,
                  err == EINTR ? "was stopped" : "failed", done, size, then,
                  remedy[0] ? "; " : "", remedy);
  errno = err;
  return -1;
}

int
chunks_may_begin (const struct chunks_words *words, uint64_t size,
                  const struct chunks_watch *watch)
{
  return chunks_tell (watch, 0, size, 0) ? 0 : chunks_cut_short (words, EINTR, 0, size);
}

int
chunks_run (const struct chunks_job *job, const struct chunks_watch *watch,
            uint64_t *copied)
{
  struct run r = { .job = job, .chunk = job->chunk ? job->chunk : MIN_CHUNK };

  while (job->chunk == 0 && job->size / r.chunk > MAX_CHUNKS)
    r.chunk *= 2;
  r.next = r.done = round_down (min64 (job->begin, job->size), r.chunk);
  pthread_mutex_init (&r.lock, NULL);
  clock_init_condition (&r.ended);

  run_threads (&r, watch);

  pthread_cond_destroy (&r.ended);
  pthread_mutex_destroy (&r.lock);
  *copied = r.copied;
  return r.error == 0 ? 0 : chunks_cut_short (&job->words, r.error, r.done, job->size);
}
