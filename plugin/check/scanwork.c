/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the work of a scan spread over threads, and how are large tables read?
 *
 * Part of scan.c.  Each thread takes the next few items until there are none.
 *
 * Locks: none; what is left to be taken, and the first error, are atomic.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/scan-impl.h"

#define MIN_THREADS 2
#define MAX_THREADS 8

/* Entries of a table that are read at a time. */
#define CHUNK 8192

struct crowd {
  struct scan *s;
  uint64_t items, batch;
  size_t size;
  int (*work) (struct scan *, void *, uint64_t, uint64_t);
  _Atomic uint64_t taken;
  _Atomic int err;              /* of the first that failed */
};

static void *
worker (void *opaque)
{
  struct crowd *c = opaque;
  CLEANUP_FREE void *buffer = malloc (c->size);
  uint64_t from;
  int none = 0;

  if (buffer == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (c->s->file));
    atomic_store (&c->err, ENOMEM);
    return NULL;
  }
  while (atomic_load (&c->err) == 0) {
    from = atomic_fetch_add (&c->taken, c->batch);
    if (from >= c->items)
      break;
    if (c->work (c->s, buffer, from, min64 (c->items, from + c->batch)) == -1)
      atomic_compare_exchange_strong (&c->err, &none, errno ? errno : EIO);
  }
  return NULL;
}

int
scan_parallel (struct scan *s, uint64_t items, uint64_t batch, size_t size,
               int (*work) (struct scan *, void *, uint64_t, uint64_t))
{
  struct crowd c = {
    .s = s, .items = items, .batch = batch, .size = size, .work = work,
  };
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);
  /* A few more than there are processors: some wait for the disk. */
  const uint64_t want = min64 (min64 (MAX_THREADS,
                                      max64 (MIN_THREADS, cpus > 0 ? cpus : 1)),
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

int
scan_entries (struct scan *s, uint64_t offset, uint64_t entries,
              int (*fn) (struct scan *, uint64_t, uint64_t, void *),
              void *opaque)
{
  CLEANUP_FREE struct be64 *chunk = malloc (CHUNK * sizeof *chunk);
  uint64_t done, n, i, len;
  bool hole;

  if (chunk == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, CHUNK);
    if (s->sparse) {
      len = (entries - done) * sizeof *chunk;
      if (hostfile_hole (s->file, offset + done * sizeof *chunk, &len,
                         &hole) == -1)
        return -1;
      if (hole && len >= sizeof *chunk) {
        n = len / sizeof *chunk;
        continue;
      }
    }
    if (hostfile_read (s->file, chunk, n * sizeof *chunk,
                       offset + done * sizeof *chunk) == -1)
      return -1;
    for (i = 0; i < n; i++)
      if (chunk[i].be != 0 && fn (s, done + i, get64 (chunk[i]), opaque) == -1)
        return -1;
  }
  return 0;
}
