/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?
 *
 * The same counters are for people (-D qcow2.stats=1) and for programs (stats=FILE, in
 * JSON or for Prometheus: see reportfile.c).
 *
 * The file is written when the server starts, when a client leaves, and at the end; while
 * clients are served, a thread writes it each second if a counter has changed, or FRESH_MS
 * have passed, and at once if there is news about space, so that programs that enlarge a
 * device can wait for a change of the file.
 *
 * Several clients may disconnect at the same time, and each causes the file to be
 * written.  One thread at a time reads and writes the counters, so that older ones never
 * replace newer ones.  One more thread waits for its turn.  A thread that comes while
 * another one waits does nothing: the waiting thread has not read the counters yet.
 *
 * Locks: `lock' guards `writing' and `next'.  It is not held while counters are read,
 * which may take as long as closing an image, or while they are written.  `news_lock'
 * guards `news' and `ending', and is taken last: the caller that has news may hold any
 * lock.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "storage/reportfile.h"
#include "plugin/prometheus.h"
#include "plugin/stats.h"
#include "plugin/statsimage.h"

static const struct report_kind kind = {
  "stats", { "{\n  \"connections\": {", PROMETHEUS_BEGINS }
};

/* How often the file is written while counters change, and when they do not: so it shows
 * that the server lives. */
#define INTERVAL_MS 1000
#define FRESH_MS 30000

struct stats_file {
  const char *path;
  bool for_prometheus;
  void (*get) (struct stats *);

  pthread_mutex_t lock;
  pthread_cond_t turn;          /* `writing' is false again */
  bool writing, next;           /* a thread is writing; another one waits; under lock */
  json_t *written;              /* what the file has; of the thread that is writing */
  int64_t written_ms;           /* when that was; the same */
  bool ended;                   /* no thread writes beside the one that sets it */

  pthread_t thread;
  bool started;                 /* constant while there are clients */
  pthread_mutex_t news_lock;
  pthread_cond_t wake;          /* news, or the end */
  bool news, ending;            /* under news_lock */
};

void
stats_print (const struct stats *stats)
{
  const struct disk_stats *s = &stats->disk;

  report_debug ("map: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64 " evictions, %" PRIu64
                " bytes held, %" PRIu64 " at most", s->map.hits, s->map.misses,
                s->map.evictions, s->map.bytes, s->map.peak_bytes);
  report_debug ("inflated: %" PRIu64 " clusters, %" PRIu64 " hits, %" PRIu64
                " evictions, %" PRIu64 " bytes at most", s->cluster_cache.inflations,
                s->cluster_cache.hits, s->cluster_cache.evictions,
                s->cluster_cache.peak_bytes);
  report_debug ("clusters: %" PRIu64 " allocated, %" PRIu64 " freed, %" PRIu64 " punched",
                s->alloc.allocated, s->alloc.freed, s->alloc.punched);
  report_debug ("flush: %" PRIu64 " requests, %" PRIu64 " shared, %" PRIu64
                " checkpoints, %" PRIu64 " syncs", s->checkpoint.flushes,
                s->checkpoint.shared, s->checkpoint.runs, s->checkpoint.syncs);
  report_debug ("space: %" PRIu64 " requests waited, in %" PRIu64 " pauses of %" PRIu64
                " ms together", s->space.requests, s->space.pauses, s->space.ms);
}

/* What programs need that enlarge devices. */
static json_t *
describe_file (const struct stats *stats)
{
  return !stats->one_disk ? json_null () : jsontext_add (
    statsimage_storage (&stats->disk),
    { "maximum", jsontext_number (stats->most) },
    { "watermark", jsontext_number (stats->watermark) });
}

static json_t *
list_of (json_t *list)
{
  return list ? list : json_array ();
}

json_t *
stats_describe (const struct stats *stats)
{
  const struct disk_stats *s = &stats->disk;

  return jsontext_object (
    { "connections", jsontext_object (
      { "open", jsontext_number (stats->open) },
      { "ever", jsontext_number (stats->ever) }) },
    { "map", jsontext_object (
      { "hits", jsontext_number (s->map.hits) },
      { "misses", jsontext_number (s->map.misses) },
      { "peeks", jsontext_number (s->map.peeks) },
      { "loads", jsontext_number (s->map.loads) },
      { "slices", jsontext_number (s->map.loaded) },
      { "evictions", jsontext_number (s->map.evictions) },
      { "bytes", jsontext_number (s->map.bytes) },
      { "peak_bytes", jsontext_number (s->map.peak_bytes) },
      { "limit_bytes", jsontext_number (stats->limit) }) },
    { "inflated", jsontext_object (
      { "clusters", jsontext_number (s->cluster_cache.inflations) },
      { "hits", jsontext_number (s->cluster_cache.hits) },
      { "waits", jsontext_number (s->cluster_cache.waits) },
      { "ahead", jsontext_number (s->cluster_cache.ahead) },
      { "ahead_hits", jsontext_number (s->cluster_cache.ahead_hits) },
      { "evictions", jsontext_number (s->cluster_cache.evictions) },
      { "bytes", jsontext_number (s->cluster_cache.bytes) },
      { "peak_bytes", jsontext_number (s->cluster_cache.peak_bytes) }) },
    { "clusters", statsimage_clusters (&s->alloc) },
    { "flush", statsimage_flush (&s->checkpoint) },
    { "space", jsontext_object (
      { "waiting", jsontext_number (s->space.waiting) },
      { "requests", jsontext_number (s->space.requests) },
      { "pauses", jsontext_number (s->space.pauses) },
      { "ms", jsontext_number (s->space.ms) }) },
    { "file", describe_file (stats) },
    { "started", jsontext_number (stats->started) },
    { "bounds_ns", list_of (stats->bounds) },
    { "images", list_of (stats->images) },
    { "images_omitted", jsontext_number (stats->omitted) },
    { "jobs", list_of (stats->jobs) });
}

/* (The first member is in kind.begins.) */
static int
print_json (FILE *fp, const void *document)
{
  return jsontext_write (json_incref ((json_t *) document), fp);
}

/* The name of the file, without its directory, is that of the server. */
static int
print_metrics (FILE *fp, const void *document)
{
  const char *path = json_string_value (json_object_get (document, "path"));

  prometheus_write (document, strrchr (path, '/') + 1, fp);
  return 0;
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

static json_t *
take (const struct stats_file *f)
{
  struct stats stats = { .images = NULL };
  json_t *document;

  f->get (&stats);
  document = stats_describe (&stats);
  if (document == NULL)
    report_error ("%s=%s: no memory for the statistics", kind.key, f->path);
  return document;
}

static int
write_file (const struct stats_file *f, const json_t *document)
{
  json_t *all = jsontext_add (json_copy ((json_t *) document),
    { "updated", jsontext_number (time (NULL)) },
    { "running", json_boolean (!f->ended) });
  int r;

  if (f->for_prometheus)
    all = jsontext_add (all, { "path", jsontext_string (f->path) });
  r = all ? reportfile_write (&kind, f->path, false, f->for_prometheus ?
                              print_metrics : print_json, all) : -1;
  json_decref (all);
  return r;
}

/* Unless the file has these counters, and is fresh (ALWAYS: in any case). */
static int
update (struct stats_file *f, bool always)
{
  json_t *document;
  int r = 0;

  if (!begin_writing (f))
    return 0;
  document = take (f);
  if (document == NULL)
    r = -1;
  else if (always || clock_ms () >= f->written_ms + FRESH_MS ||
           !json_equal (document, f->written)) {
    r = write_file (f, document);
    if (r == 0) {
      json_decref (f->written);
      f->written = json_incref (document);
      f->written_ms = clock_ms ();
    }
  }
  json_decref (document);
  end_writing (f);
  return r;
}

int
stats_write (struct stats_file *f)
{
  return update (f, true);
}

/* --- the thread --- */

/* Waits for news, but no longer than the interval.  *NEWS: there are some.  False: the
 * thread is to end. */
static bool
await_news (struct stats_file *f, bool *news)
{
  const int64_t end = clock_ms () + INTERVAL_MS;
  const struct timespec ts = { end / 1000, end % 1000 * 1000000 };
  LOCK_FOR_BLOCK (&f->news_lock);

  while (!f->news && !f->ending && clock_ms () < end)
    pthread_cond_timedwait (&f->wake, &f->news_lock, &ts);
  *news = f->news;
  f->news = false;
  return !f->ending;
}

/* If the file cannot be written, that is reported once, until it can. */
static void *
keep_up_to_date (void *opaque)
{
  struct stats_file *f = opaque;
  bool news, failed = false;

  while (await_news (f, &news)) {
    report_silence (failed);
    failed = update (f, news) == -1;
    report_silence (false);
  }
  return NULL;
}

void
stats_news (struct stats_file *f)
{
  LOCK_FOR_BLOCK (&f->news_lock);

  f->news = true;
  pthread_cond_signal (&f->wake);
}

int
stats_start (struct stats_file *f)
{
  sigset_t all, old;
  int err;

  /* Signals are for the threads of nbdkit. */
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  err = pthread_create (&f->thread, NULL, keep_up_to_date, f);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  if (err) {
    report_error ("pthread_create: %s", strerror (err));
    return -1;
  }
  f->started = true;
  return 0;
}

struct stats_file *
stats_open (const char *path, bool for_prometheus, void (*get) (struct stats *))
{
  struct stats_file *f = memory_new (1, sizeof *f);
  pthread_condattr_t attributes;

  if (f == NULL)
    return NULL;
  f->path = path;
  f->for_prometheus = for_prometheus;
  f->get = get;
  pthread_mutex_init (&f->lock, NULL);
  pthread_cond_init (&f->turn, NULL);
  pthread_mutex_init (&f->news_lock, NULL);
  pthread_condattr_init (&attributes);
  pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
  pthread_cond_init (&f->wake, &attributes);
  pthread_condattr_destroy (&attributes);
  return f;
}

void
stats_stop (struct stats_file *f)
{
  if (f == NULL)
    return;
  if (f->started) {
    pthread_mutex_lock (&f->news_lock);
    f->ending = true;
    pthread_cond_signal (&f->wake);
    pthread_mutex_unlock (&f->news_lock);
    pthread_join (f->thread, NULL);
  }
  f->started = false;
  f->ended = true;
}

void
stats_close (struct stats_file *f)
{
  if (f == NULL)
    return;
  stats_stop (f);
  json_decref (f->written);
  pthread_cond_destroy (&f->wake);
  pthread_mutex_destroy (&f->news_lock);
  pthread_cond_destroy (&f->turn);
  pthread_mutex_destroy (&f->lock);
  free (f);
}
