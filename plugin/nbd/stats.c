/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?
 *
 * The same counters are for people (-D qcow2.stats=1) and for programs (stats=FILE,
 * JSON: see reportfile.c).
 *
 * Several clients may disconnect at the same time, and each causes the file to be
 * written.  One thread at a time reads and writes the counters, so that older ones never
 * replace newer ones.  One more thread waits for its turn.  A thread that comes while
 * another one waits does nothing: the waiting thread has not read the counters yet.
 *
 * Locks: `lock' guards `writing' and `next'.  It is not held while counters are read,
 * which may take as long as closing an image, or while they are written.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/jsontext.h"
#include "storage/reportfile.h"
#include "nbd/stats.h"

static const struct report_kind kind = {
  "stats", "{\n  \"connections\": {"
};

void
stats_print (const struct stats *stats)
{
  const struct disk_stats *s = &stats->disk;

  fprintf (stderr,
           "qcow2: map: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
           " evictions, %" PRIu64 " bytes held, %" PRIu64 " at most\n"
           "qcow2: inflated: %" PRIu64 " clusters, %" PRIu64 " hits, %" PRIu64
           " evictions, %" PRIu64 " bytes at most\n"
           "qcow2: clusters: %" PRIu64 " allocated, %" PRIu64 " freed, %"
           PRIu64 " punched\n"
           "qcow2: flush: %" PRIu64 " requests, %" PRIu64 " shared, %" PRIu64
           " checkpoints, %" PRIu64 " syncs\n",
           s->map.hits, s->map.misses, s->map.evictions,
           s->map.bytes, s->map.peak_bytes,
           s->cluster_cache.inflations, s->cluster_cache.hits, s->cluster_cache.evictions,
           s->cluster_cache.peak_bytes,
           s->alloc.allocated, s->alloc.freed, s->alloc.punched,
           s->checkpoint.flushes, s->checkpoint.shared,
           s->checkpoint.runs, s->checkpoint.syncs);
}

/* The first member is in kind.begins. */
static int
print_json (FILE *fp, const void *opaque)
{
  const struct stats *stats = opaque;
  const struct disk_stats *s = &stats->disk;

  return jsontext_write (jsontext_object (
    { "connections", jsontext_object (
      { "open", jsontext_number (stats->open) },
      { "ever", jsontext_number (stats->ever) }) },
    { "map", jsontext_object (
      { "hits", jsontext_number (s->map.hits) },
      { "misses", jsontext_number (s->map.misses) },
      { "evictions", jsontext_number (s->map.evictions) },
      { "bytes", jsontext_number (s->map.bytes) },
      { "peak_bytes", jsontext_number (s->map.peak_bytes) },
      { "limit_bytes", jsontext_number (stats->limit) }) },
    { "inflated", jsontext_object (
      { "clusters", jsontext_number (s->cluster_cache.inflations) },
      { "hits", jsontext_number (s->cluster_cache.hits) },
      { "waits", jsontext_number (s->cluster_cache.waits) },
      { "evictions", jsontext_number (s->cluster_cache.evictions) },
      { "bytes", jsontext_number (s->cluster_cache.bytes) },
      { "peak_bytes", jsontext_number (s->cluster_cache.peak_bytes) }) },
    { "clusters", jsontext_object (
      { "allocated", jsontext_number (s->alloc.allocated) },
      { "freed", jsontext_number (s->alloc.freed) },
      { "punched", jsontext_number (s->alloc.punched) }) },
    { "flush", jsontext_object (
      { "requests", jsontext_number (s->checkpoint.flushes) },
      { "shared", jsontext_number (s->checkpoint.shared) },
      { "checkpoints", jsontext_number (s->checkpoint.runs) },
      { "syncs", jsontext_number (s->checkpoint.syncs) }) }), fp);
}

int
stats_check (const char *path)
{
  return reportfile_check (&kind, path, true);
}

/* Waits for the turn of the caller to write.  Returns false if another thread is waiting,
 * which will read the counters later and write them. */
static bool
begin_writing (struct stats_file *f)
{
  bool mine;

  pthread_mutex_lock (&f->lock);
  mine = !f->next;
  if (mine) {
    f->next = true;
    while (f->writing)
      pthread_cond_wait (&f->turn, &f->lock);
    f->next = false;
    f->writing = true;
  }
  pthread_mutex_unlock (&f->lock);
  return mine;
}

static void
end_writing (struct stats_file *f)
{
  pthread_mutex_lock (&f->lock);
  f->writing = false;
  pthread_cond_signal (&f->turn);
  pthread_mutex_unlock (&f->lock);
}

int
stats_write (struct stats_file *f, const char *path, void (*get) (struct stats *))
{
  struct stats stats;
  int r;

  if (!begin_writing (f))
    return 0;
  get (&stats);
  r = reportfile_write (&kind, path, false, print_json, &stats);
  end_writing (f);
  return r;
}
