/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are many clusters compressed at once?
 *
 * Clients with several requests in flight keep all processors busy, because each request
 * is compressed by the thread that serves it.  For a client that sends one large request
 * at a time, additional threads help: at most as many as there are processors that do not
 * compress anything.  They live as long as the call.  (Starting a thread takes a few
 * hundredths of the time that its share takes, and threads that stay would have to be
 * told about forks and shutdown.)  Clusters are handed out one by one, so that no thread
 * waits long for the slowest one.  If no thread can be started, the caller does
 * everything.
 *
 * Each cluster is compressed into a buffer of its own, from which it is written to the
 * file without being copied.
 *
 * Locks: none.  `busy' is only a hint; `next' hands out each cluster once, and the
 * helpers are joined before their output is read.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/processors.h"
#include "util/report.h"
#include "format/compress.h"
#include "request/compressor.h"

#define MAX_HELPERS 15
/* Bytes per thread that make another thread worth starting. */
#define HELPER_SHARE (UINT64_C (64) << 10)

struct compressor {
  struct compress_pool *pool;
  unsigned type;
  uint64_t cluster_size;
  int processors;
  atomic_int busy;              /* threads that are compressing */
};

struct batch {
  struct compressor *d;
  const char *in;
  uint64_t len;
  bool find_zeros;
  unsigned n;
  atomic_uint next;             /* the first cluster that no thread has taken */
  struct compressed *out;
  char *room;
};

struct compressor *
compressor_new (unsigned type, uint64_t cluster_size,
                const struct compress_options *options)
{
  struct compressor *d = calloc (1, sizeof *d);

  if (d)
    d->pool = compress_pool_new (options);
  if (d == NULL || d->pool == NULL) {
    report_error ("cannot create a compressor: %m");
    free (d);
    return NULL;
  }
  d->type = type;
  d->cluster_size = cluster_size;
  d->processors = min64 (processors (), MAX_HELPERS + 1);
  return d;
}

void
compressor_free (struct compressor *d)
{
  if (d == NULL)
    return;
  compress_pool_free (d->pool);
  free (d);
}

static void
deflate_one (struct batch *b, unsigned i)
{
  const uint64_t cs = b->d->cluster_size;
  const uint64_t len = min64 (b->len - i * cs, cs);
  struct compressed *out = &b->out[i];
  CLEANUP_FREE char *padded = NULL;
  const char *in = b->in + i * cs;

  *out = (struct compressed) { .zeros = b->find_zeros && bytes_are_zero (in, len) };
  if (out->zeros)
    return;
  if (len < cs) {
    padded = calloc (1, cs);
    if (padded == NULL)
      return;                   /* out->bytes is 0: the cluster is stored uncompressed */
    memcpy (padded, in, len);
    in = padded;
  }
  out->data = b->room + i * cs;
  out->bytes = compress_deflate (b->d->pool, b->d->type, in, cs,
                                 b->room + i * cs, cs);
}

static void *
work (void *opaque)
{
  struct batch *b = opaque;
  unsigned i;

  while ((i = atomic_fetch_add (&b->next, 1)) < b->n)
    deflate_one (b, i);
  atomic_fetch_sub (&b->d->busy, 1);
  return NULL;
}

int
compressor_run (struct compressor *d, const void *in, uint64_t len,
                bool find_zeros, struct compressed *out, void **room)
{
  struct batch b = {
    .d = d, .in = in, .len = len, .find_zeros = find_zeros,
    .n = div_up (len, d->cluster_size), .out = out,
  };
  const uint64_t shares = min64 (b.n, len / HELPER_SHARE);
  pthread_t helpers[MAX_HELPERS];
  unsigned nr_helpers = 0;
  int busy;

  b.room = memory_get (b.n * d->cluster_size);
  if (b.room == NULL)
    return -1;
  atomic_init (&b.next, 0);
  busy = atomic_fetch_add (&d->busy, 1) + 1;
  for (; nr_helpers + 1 < shares && busy < d->processors; nr_helpers++, busy++) {
    atomic_fetch_add (&d->busy, 1);
    if (pthread_create (&helpers[nr_helpers], NULL, work, &b) != 0) {
      atomic_fetch_sub (&d->busy, 1);
      break;
    }
  }
  work (&b);
  while (nr_helpers > 0)
    pthread_join (helpers[--nr_helpers], NULL);
  *room = b.room;
  return 0;
}
