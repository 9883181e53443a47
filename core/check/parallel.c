/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is work that consists of many items spread over threads?
 *
 * The items do not depend on each other, so each thread takes the next few items until
 * none are left.
 *
 * Locks: none; the number of items taken, and the first error, are atomic.  Joining the
 * threads makes everything they did visible to the caller.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/processors.h"
#include "util/report.h"
#include "check/parallel.h"

#define MIN_THREADS 2
#define MAX_THREADS 8

struct crowd {
  const char *path;
  uint64_t items, batch;
  size_t size;
  int (*work) (void *, void *, uint64_t, uint64_t);
  void *opaque;
  struct pace *pace;            /* used by the caller's thread */
  pthread_t caller;
  _Atomic uint64_t taken;
  _Atomic int err;              /* errno of the first call that failed */
};

/* Is this the thread that tells how far all are? */
static bool
is_told (const struct crowd *c)
{
  return c->pace && pthread_equal (pthread_self (), c->caller);
}

static void *
worker (void *opaque)
{
  struct crowd *c = opaque;
  CLEANUP_FREE void *buffer = malloc (c->size);
  uint64_t from;
  int none = 0;

  if (buffer == NULL) {
    report_error ("%s: check: %m", c->path);
    atomic_store (&c->err, ENOMEM);
    return NULL;
  }
  while (atomic_load (&c->err) == 0) {
    from = atomic_fetch_add (&c->taken, c->batch);
    if (from >= c->items)
      break;
    if (is_told (c) && !pace_step (c->pace, from, c->items)) {
      atomic_compare_exchange_strong (&c->err, &none, EINTR);
      break;
    }
    if (c->work (c->opaque, buffer, from, min64 (c->items, from + c->batch)) == -1)
      atomic_compare_exchange_strong (&c->err, &none, errno ? errno : EIO);
  }
  return NULL;
}

int
parallel_run (const char *path, uint64_t items, uint64_t batch, size_t size,
              int (*work) (void *, void *, uint64_t, uint64_t), void *opaque,
              struct pace *pace)
{
  struct crowd c = {
    .path = path, .items = items, .batch = batch, .size = size,
    .work = work, .opaque = opaque, .pace = pace, .caller = pthread_self (),
  };
  /* At least 2 threads, even with one processor: some wait for the disk. */
  const uint64_t want = min64 (min64 (MAX_THREADS,
                                      max64 (MIN_THREADS, processors ())),
                               div_up (items, batch));
  pthread_t threads[MAX_THREADS];
  unsigned n = 0;

  while (n + 1 < want && pthread_create (&threads[n], NULL, worker, &c) == 0)
    n++;
  worker (&c);
  while (n > 0)
    pthread_join (threads[--n], NULL);
  errno = c.err;
  return c.err == 0 ? 0 : -1;
}
