/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?
 *
 * The same counters are for people (-D qcow2.stats=1) and for programs (stats=FILE, in
 * JSON or for Prometheus: see reportfile.c).
 *
 * The file is written when the server starts; while clients are served, a thread writes
 * it each second if a counter has changed, or FRESH_MS have passed, and at once if there
 * is news, so that programs that enlarge a device can wait for a change of the file; and
 * at the end, when all images are closed, the thread writes what was counted before that.
 * Once the thread runs, only it writes, so older counters never replace newer ones, and
 * requests never wait for the file.
 *
 * Locks: `taking' is held while counters are read, which may take as long as closing an
 * image.  `news_lock' guards `news' and `ending', and is taken last: the caller that has
 * news may hold any lock.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
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
#include "util/text.h"
#include "storage/reportfile.h"
#include "plugin/prometheus.h"
#include "plugin/stats.h"
#include "plugin/statsimage.h"
#include "plugin/writer.h"

static const struct report_kind kind = {
  "stats", { "{\n  \"connections\": {", PROMETHEUS_BEGINS }
};

/* How often the file is written while counters change, and when they do not: so it shows
 * that the server lives. */
#define INTERVAL_MS 1000
#define FRESH_MS 30000

struct stats_file {
  char *path;
  bool for_prometheus;
  void (*get) (struct stats *);

  pthread_mutex_t taking;
  bool stopped;                 /* `last' is all that there is; under taking, as is: */
  json_t *last;                 /* NULL: not yet, or no memory */

  /* The thread's; before it is started, the caller's. */
  json_t *written;              /* what the file has */
  int64_t written_ms;           /* since when */

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

/* The caller frees it.  *RUNNING: it is not the last one.  NULL: no memory (reported). */
static json_t *
take (struct stats_file *f, bool *running)
{
  struct stats stats = { .images = NULL };
  json_t *document;
  LOCK_FOR_BLOCK (&f->taking);

  *running = !f->stopped;
  if (f->stopped)
    return json_incref (f->last);
  f->get (&stats);
  document = stats_describe (&stats);
  if (document == NULL)
    report_error ("%s=%s: no memory for the statistics", kind.key, f->path);
  return document;
}

static int
write_file (const struct stats_file *f, const json_t *document, bool running)
{
  json_t *all = jsontext_add (json_copy ((json_t *) document),
    { "updated", jsontext_number (time (NULL)) },
    { "running", json_boolean (running) });
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
  bool running;
  json_t *document = take (f, &running);
  int r = document ? 0 : -1;

  if (document && (always || clock_ms () >= f->written_ms + FRESH_MS ||
                   !json_equal (document, f->written))) {
    r = write_file (f, document, running);
    if (r == 0) {
      json_decref (f->written);
      f->written = json_incref (document);
      f->written_ms = clock_ms ();
    }
  }
  json_decref (document);
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
  report_silence (failed);
  update (f, true);
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
  f->started = writer_start (&f->thread, keep_up_to_date, f) == 0;
  return f->started ? 0 : -1;
}

struct stats_file *
stats_open (const char *path, bool for_prometheus, void (*get) (struct stats *))
{
  struct stats_file *f = memory_new (1, sizeof *f);

  if (f == NULL)
    return NULL;
  f->path = text_new ("%s", path);
  if (f->path == NULL) {
    report_error ("%s=%s: %m", kind.key, path);
    free (f);
    return NULL;
  }
  f->for_prometheus = for_prometheus;
  f->get = get;
  pthread_mutex_init (&f->taking, NULL);
  pthread_mutex_init (&f->news_lock, NULL);
  clock_init_condition (&f->wake);
  return f;
}

void
stats_stop (struct stats_file *f)
{
  json_t *last;
  bool running;

  if (f == NULL)
    return;
  last = take (f, &running);
  LOCK_FOR_BLOCK (&f->taking);
  f->last = last;
  f->stopped = true;
}

void
stats_close (struct stats_file *f)
{
  if (f == NULL)
    return;
  if (f->started) {
    pthread_mutex_lock (&f->news_lock);
    f->ending = true;
    pthread_cond_signal (&f->wake);
    pthread_mutex_unlock (&f->news_lock);
    if (!writer_end (f->thread)) {
      report_error ("%s=%s: the file is not up to date: its storage hangs", kind.key,
                    f->path);
      return;
    }
  }
  json_decref (f->written);
  json_decref (f->last);
  pthread_cond_destroy (&f->wake);
  pthread_mutex_destroy (&f->news_lock);
  pthread_mutex_destroy (&f->taking);
  free (f->path);
  free (f);
}
