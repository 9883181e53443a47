/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do statistics look to Prometheus?
 *
 * A table has each metric, with the place of its number in the document of stats.c.  The
 * text is in Prometheus' own format of exposition, which is what the textfile collector
 * of node_exporter reads: OpenMetrics differs in the names of counters.
 *
 * Labels are names that come from outside.  In the document they are valid UTF-8.  All
 * metrics have the label `server', the name of the file: a collector refuses two files in
 * which the same metric has the same labels.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "util/jsontext.h"
#include "plugin/iostats.h"
#include "plugin/prometheus.h"

#define PREFIX "nbdkit_qcow2_"

enum scale { AS_IT_IS, NANOSECONDS };

struct metric {
  const char *name, *type, *help;
  const char *path[2];          /* the member; of this member, if there is a second */
  enum scale scale;
};

#define COUNTER(name, help, ...) \
  { name "_total", "counter", help, { __VA_ARGS__ }, AS_IT_IS }
#define GAUGE(name, help, ...) { name, "gauge", help, { __VA_ARGS__ }, AS_IT_IS }
#define SECONDS(name, type, help, ...) { name, type, help, { __VA_ARGS__ }, NANOSECONDS }

static const struct metric of_server[] = {
  GAUGE ("start_time_seconds", "When the server started, in seconds since 1970.", "started"),
  GAUGE ("update_time_seconds", "When this was written; that is at least twice a minute.",
         "updated"),
  GAUGE ("running", "0: the server has ended in order.", "running"),
  GAUGE ("connections", "Connections that are open.", "connections", "open"),
  COUNTER ("connections", "Connections that were opened.", "connections", "ever"),
  COUNTER ("cache_hits", "Lookups of mappings in memory.", "map", "hits"),
  COUNTER ("cache_misses", "Lookups of mappings that were not.", "map", "misses"),
  COUNTER ("cache_evictions", "Slices of mappings that made room.", "map", "evictions"),
  GAUGE ("cache_bytes", "Memory of mappings.", "map", "bytes"),
  GAUGE ("cache_limit_bytes", "Its limit, l2-cache.", "map", "limit_bytes"),
  GAUGE ("cluster_cache_bytes", "Memory of decompressed clusters.", "inflated", "bytes"),
  COUNTER ("cluster_cache_hits", "Reads of decompressed clusters.", "inflated", "hits"),
  COUNTER ("decompressions", "Clusters that were decompressed.", "inflated", "clusters"),
  COUNTER ("space_waits", "Requests that waited for space.", "space", "requests"),
  GAUGE ("watermark_bytes", "See the parameter watermark.", "file", "watermark"),
  GAUGE ("images_omitted", "Images that are not described here.", "images_omitted"),
};

static const struct metric of_image[] = {
  GAUGE ("disk_size_bytes", "The size of the disk.", "size"),
  GAUGE ("cluster_size_bytes", "The size of a cluster.", "clusters", "bytes"),
  COUNTER ("clusters_allocated", "Clusters that were allocated.", "clusters", "allocated"),
  COUNTER ("clusters_freed", "Clusters that were freed.", "clusters", "freed"),
  COUNTER ("clusters_punched", "Clusters that were punched out.", "clusters", "punched"),
  GAUGE ("clusters_free", "Clusters that are known to be free.", "clusters", "free"),
  GAUGE ("clusters_deferred", "Freed clusters that wait.", "clusters", "deferred"),
  COUNTER ("checkpoints", "Checkpoints that wrote metadata.", "flush", "checkpoints"),
  SECONDS ("checkpoint_seconds_total", "counter", "The time that they took.",
           "flush", "checkpoint_ns"),
  SECONDS ("checkpoint_longest_seconds", "gauge", "The time that the longest took.",
           "flush", "longest_ns"),
  COUNTER ("syncs", "Syncs of files.", "flush", "syncs"),
  GAUGE ("storage_size_bytes", "The size of the file or device.", "storage", "size"),
  GAUGE ("storage_used_bytes", "Where the last cluster ends.", "storage", "high_water"),
  GAUGE ("storage_left_bytes", "What is left on a device.", "storage", "left"),
  COUNTER ("storage_low", "Times that less than the watermark was left.",
           "storage", "low"),
  GAUGE ("space_waiting", "Requests that wait for space.", "storage", "waiting"),
  GAUGE ("bitmaps", "Bitmaps in the image.", "bitmaps", "all"),
  GAUGE ("bitmaps_inconsistent", "Bitmaps that cannot be used.", "bitmaps",
         "inconsistent"),
};

static const struct metric of_export[] = {
  GAUGE ("clients", "Clients of the export.", "clients"),
  COUNTER ("clients", "Clients that have come.", "ever"),
};

static const struct metric of_kind[] = {
  COUNTER ("operations", "Requests that ended well.", "operations"),
  COUNTER ("errors", "Requests that failed.", "errors"),
  COUNTER ("bytes", "The bytes of requests that ended well.", "bytes"),
  GAUGE ("requests_in_flight", "Requests that have not ended.", "running"),
};

/* --- lines --- */

static void
put_label (FILE *fp, char before, const char *key, const char *value)
{
  fprintf (fp, "%c%s=\"", before, key);
  for (; *value; value++)
    if (*value == '\n')
      fputs ("\\n", fp);
    else {
      if (*value == '"' || *value == '\\')
        fputc ('\\', fp);
      fputc (*value, fp);
    }
  fputc ('"', fp);
}

static void
begin_family (FILE *fp, const char *name, const char *type, const char *help)
{
  fprintf (fp, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

/* What a line is about; NULL: not of that. */
struct subject {
  FILE *fp;
  const char *server, *image, *export, *kind;
  const char *key, *value;      /* one more label */
};

/* Up to the number. */
static void
begin_line (const struct subject *s, const char *name)
{
  const struct { const char *key, *value; } labels[] = {
    { "image", s->image }, { "export", s->export }, { "kind", s->kind },
    { s->key, s->value },
  };

  fprintf (s->fp, PREFIX "%s", name);
  put_label (s->fp, '{', "server", s->server);
  for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++)
    if (labels[i].value)
      put_label (s->fp, ',', labels[i].key, labels[i].value);
  fputc ('}', s->fp);
}

static void
put_value (FILE *fp, uint64_t n, enum scale scale)
{
  if (scale == NANOSECONDS)
    fprintf (fp, " %" PRIu64 ".%09" PRIu64 "\n", n / 1000000000, n % 1000000000);
  else
    fprintf (fp, " %" PRIu64 "\n", n);
}

/* (Without the number: no line.) */
static void
put_metric (const struct metric *m, const json_t *object, const struct subject *s)
{
  const json_t *value = json_object_get (object, m->path[0]);

  if (m->path[1])
    value = json_object_get (value, m->path[1]);
  if (!json_is_integer (value) && !json_is_boolean (value))
    return;
  begin_line (s, m->name);
  put_value (s->fp, json_is_boolean (value) ? json_is_true (value)
             : json_integer_value (value), m->scale);
}

/* --- families --- */

typedef void (*kind_fn) (const void *opaque, const json_t *kind, const struct subject *);

static void
each_export (const json_t *document, const struct subject *server, kind_fn fn,
             const void *opaque, bool by_kind)
{
  const json_t *image, *export;
  size_t i, e;

  json_array_foreach (json_object_get (document, "images"), i, image)
    json_array_foreach (json_object_get (image, "exports"), e, export) {
      struct subject s = *server;

      s.image = jsontext_text (image, "image");
      s.export = jsontext_text (export, "export");

      if (!by_kind)
        fn (opaque, export, &s);
      for (size_t k = 0; by_kind && k < IOSTATS_KINDS; k++) {
        s.kind = iostats_words[k];
        fn (opaque, json_object_get (export, iostats_words[k]), &s);
      }
    }
}

static void
put_one (const void *metric, const json_t *object, const struct subject *s)
{
  put_metric (metric, object, s);
}

/* OPAQUE: the bounds. */
static void
put_histogram (const void *opaque, const json_t *kind, const struct subject *s)
{
  const json_t *const bounds = opaque, *const times = json_object_get (kind, "times");
  struct subject bucket = *s;
  uint64_t sum = 0;

  bucket.key = "le";
  for (size_t t = 0; t < json_array_size (times); t++) {
    const uint64_t ns = json_integer_value (json_array_get (bounds, t));
    char le[32] = "+Inf";

    if (t < json_array_size (bounds))
      snprintf (le, sizeof le, "%g", ns / 1e9);
    sum += json_integer_value (json_array_get (times, t));
    bucket.value = le;
    begin_line (&bucket, "request_seconds_bucket");
    put_value (s->fp, sum, AS_IT_IS);
  }
  begin_line (s, "request_seconds_sum");
  put_value (s->fp, json_integer_value (json_object_get (kind, "ns")), NANOSECONDS);
  begin_line (s, "request_seconds_count");
  put_value (s->fp, sum, AS_IT_IS);
}

static void
put_states (const json_t *document, const struct subject *server)
{
  static const char *const states[] = {
    "ok", "read-only", "failed", "corrupt", "refused", "closed",
  };
  struct subject s = *server;
  const json_t *image;
  size_t i;

  begin_family (s.fp, "image_state", "gauge", "1 for the state in which the image is.");
  s.key = "state";
  json_array_foreach (json_object_get (document, "images"), i, image)
    for (size_t n = 0; n < sizeof states / sizeof states[0]; n++) {
      s.image = jsontext_text (image, "image");
      s.value = states[n];
      begin_line (&s, "image_state");
      put_value (s.fp, strcmp (s.value, jsontext_text (image, "state")) == 0, AS_IT_IS);
    }
  begin_family (s.fp, "image_reason_info", "gauge", "Why that is not ok.");
  s.key = "reason";
  json_array_foreach (json_object_get (document, "images"), i, image)
    if (json_is_string (json_object_get (image, "reason"))) {
      s.image = jsontext_text (image, "image");
      s.value = jsontext_text (image, "reason");
      begin_line (&s, "image_reason_info");
      put_value (s.fp, 1, AS_IT_IS);
    }
}

static void
begin_metric (FILE *fp, const struct metric *m)
{
  begin_family (fp, m->name, m->type, m->help);
}

#define EACH(m, table) \
  for (const struct metric *m = table; m < table + sizeof table / sizeof *m; m++)

void
prometheus_write (const json_t *document, const char *server, FILE *fp)
{
  const struct subject whole = { .fp = fp, .server = server };
  struct subject one = whole;
  const json_t *image;
  size_t i;

  EACH (m, of_server) {
    begin_metric (fp, m);
    put_metric (m, document, &whole);
  }
  begin_family (fp, "jobs", "gauge", "Jobs that were not dismissed.");
  begin_line (&whole, "jobs");
  put_value (fp, json_array_size (json_object_get (document, "jobs")), AS_IT_IS);
  put_states (document, &whole);
  EACH (m, of_image) {
    begin_metric (fp, m);
    json_array_foreach (json_object_get (document, "images"), i, image) {
      one.image = jsontext_text (image, "image");
      put_metric (m, image, &one);
    }
  }
  EACH (m, of_export) {
    begin_metric (fp, m);
    each_export (document, &whole, put_one, m, false);
  }
  EACH (m, of_kind) {
    begin_metric (fp, m);
    each_export (document, &whole, put_one, m, true);
  }
  begin_family (fp, "request_seconds", "histogram", "How long requests took.");
  each_export (document, &whole, put_histogram, json_object_get (document, "bounds_ns"),
               true);
}
