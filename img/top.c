/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a server doing now?
 *
 * It is asked again and again, on the socket of control=, for what it has counted
 * (query-blockstats), and for its jobs.  The difference between two answers, divided by
 * the time between them, is what is shown, the busiest image first.
 *
 * On a terminal, each look replaces the one before, and no more is shown than has room.
 * Anywhere else there is one look, unless -n says how many.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/utf8.h"
#include "img/command.h"
#include "img/live.h"
#include "img/print.h"
#include "img/values.h"

enum { READ, WRITE };
/* Columns for it, and the space after it. */
#define STATE 10
/* With fewer columns, an image has only its first number. */
#define WIDE 72

struct counts {
  uint64_t operations, errors, ns, running, clients;
  uint64_t bytes[2];            /* read, written */
};

/* An image, between two looks. */
struct row {
  const json_t *image;          /* `x-statistics'; belongs to the answer */
  struct counts now;
  double operations, bytes[2];  /* a second */
  double latency;               /* seconds: mean of the requests that ended; 0: none
                                   did */
};

/* An answer. */
struct look {
  json_t *devices, *jobs;
  int64_t at;                   /* clock_ns */
};

/* --- numbers --- */

static uint64_t
number_of (const json_t *object, const char *key)
{
  return json_integer_value (json_object_get (object, key));
}

static struct counts
count (const json_t *image)
{
  struct counts c = { .operations = 0 };
  const char *name;
  json_t *export, *kind;
  size_t i;

  json_array_foreach (json_object_get (image, "exports"), i, export) {
    c.clients += number_of (export, "clients");
    c.bytes[READ] += number_of (json_object_get (export, "read"), "bytes");
    c.bytes[WRITE] += number_of (json_object_get (export, "write"), "bytes");
    /* Of each kind of request; what is no object counts nothing. */
    json_object_foreach (export, name, kind) {
      c.operations += number_of (kind, "operations");
      c.errors += number_of (kind, "errors");
      c.ns += number_of (kind, "ns");
      c.running += number_of (kind, "running");
    }
  }
  return c;
}

/* What was counted of the image at the look before; zeros: it was not there. */
static struct counts
count_before (const struct look *before, const char *name)
{
  const json_t *device, *image;
  size_t i;

  json_array_foreach (before->devices, i, device) {
    image = json_object_get (device, "x-statistics");
    if (strcmp (jsontext_text (image, "image"), name) == 0)
      return count (image);
  }
  return (struct counts) { .operations = 0 };
}

/* (An image that was closed and forgotten in between is counted anew.) */
static uint64_t
since (uint64_t now, uint64_t before)
{
  return now >= before ? now - before : now;
}

static void
compute (struct row *r, const struct look *before, double seconds)
{
  const struct counts old = count_before (before, jsontext_text (r->image, "image"));
  uint64_t ended;

  r->now = count (r->image);
  r->operations = since (r->now.operations, old.operations) / seconds;
  for (int k = READ; k <= WRITE; k++)
    r->bytes[k] = since (r->now.bytes[k], old.bytes[k]) / seconds;
  ended = since (r->now.operations + r->now.errors, old.operations + old.errors);
  r->latency = ended ? since (r->now.ns, old.ns) / 1e9 / ended : 0;
}

static int
busiest_first (const void *a, const void *b)
{
  const struct row *p = a, *q = b;

  return p->operations != q->operations ? (p->operations < q->operations ? 1 : -1)
    : strcmp (jsontext_text (p->image, "image"), jsontext_text (q->image, "image"));
}

/* --- JSON --- */

static json_t *
describe_row (const struct row *r)
{
  return jsontext_object (
    { "image", json_incref (json_object_get (r->image, "image")) },
    { "state", json_incref (json_object_get (r->image, "state")) },
    { "reason", json_incref (json_object_get (r->image, "reason")) },
    { "clients", jsontext_number (r->now.clients) },
    { "running", jsontext_number (r->now.running) },
    { "errors", jsontext_number (r->now.errors) },
    { "operations-per-second", json_real (r->operations) },
    { "read-bytes-per-second", json_real (r->bytes[READ]) },
    { "write-bytes-per-second", json_real (r->bytes[WRITE]) },
    { "latency-seconds", json_real (r->latency) });
}

static int
print_document (const struct row *rows, size_t n, const struct look *now, double seconds)
{
  json_t *images = json_array ();

  for (size_t i = 0; i < n; i++)
    images = jsontext_append (images, describe_row (&rows[i]));
  return print_json (jsontext_object (
    { "seconds", json_real (seconds) },
    { "images", images },
    { "jobs", json_incref (now->jobs) })) == EXIT_SUCCESS ? 0 : -1;
}

/* --- for people --- */

/* The terminal; zeros: there is none. */
static struct winsize
terminal (void)
{
  struct winsize w = { .ws_row = 0 };

  if (!isatty (STDOUT_FILENO))
    return w;
  if (ioctl (STDOUT_FILENO, TIOCGWINSZ, &w) == -1 || w.ws_row == 0 || w.ws_col == 0)
    w = (struct winsize) { .ws_row = 24, .ws_col = 80 };
  return w;
}

/* Writes the beginnings of these lines, as far as they have room in WIDTH columns; 0:
 * all.  (A character of three bytes or more may take two.) */
static void
put_cut (const char *text, unsigned width)
{
  unsigned columns = 0, n;

  for (; *text; text += n) {
    n = utf8_length (text) ? utf8_length (text) : 1;
    columns = *text == '\n' ? 0 : columns + (n < 3 ? 1 : 2);
    if (width == 0 || columns <= width)
      fwrite (text, 1, n, stdout);
  }
}

static void
print_state (const char *state, FILE *fp)
{
  jsontext_put (state, fp);
  fprintf (fp, "%*s", strlen (state) < STATE ? (int) (STATE - strlen (state)) : 1, "");
}

/* The state is cut off last. */
static void
print_row (const struct row *r, bool wide, FILE *fp)
{
  char read[READABLE], write[READABLE];
  const char *const reason = jsontext_text (r->image, "reason");
  const char *const state = jsontext_text (r->image, "state");

  if (!wide)
    print_state (state, fp);
  fprintf (fp, "%7.0f ", r->operations);
  if (wide) {
    fprintf (fp, "%8s %8s %7.3f %4" PRIu64 " %4" PRIu64 " %6" PRIu64 " ",
             readable (r->bytes[READ], read), readable (r->bytes[WRITE], write),
             r->latency * 1000, r->now.running, r->now.clients, r->now.errors);
    print_state (state, fp);
  }
  jsontext_put (jsontext_text (r->image, "image"), fp);
  if (*reason) {
    fputs (": ", fp);
    jsontext_put (reason, fp);
  }
  putc ('\n', fp);
}

static void
print_job (const json_t *job, FILE *fp)
{
  const double total = number_of (job, "total-progress");

  fputs ("job ", fp);
  jsontext_put (jsontext_text (job, "id"), fp);
  fputs (": ", fp);
  jsontext_put (jsontext_text (job, "type"), fp);
  fputs (", ", fp);
  jsontext_put (jsontext_text (job, "status"), fp);
  if (total > 0)
    fprintf (fp, ", %.0f%%", 100 * number_of (job, "current-progress") / total);
  putc ('\n', fp);
}

/* No more lines than MOST, beside the two for headings and what is left out. */
static void
print_lines (const struct row *rows, size_t n, const struct look *now, size_t most,
             bool wide, FILE *fp)
{
  const json_t *job;
  size_t i, shown = 0;

  if (!wide)
    fprintf (fp, "%-*s", STATE, "state");
  fprintf (fp, "%7s ", "req/s");
  if (wide)
    fprintf (fp, "%8s %8s %7s %4s %4s %6s %-*s", "read/s", "write/s", "ms", "run", "conn",
             "errors", STATE, "state");
  fputs ("image\n", fp);
  json_array_foreach (now->jobs, i, job)
    if (shown < most / 2 || most == SIZE_MAX) {
      print_job (job, fp);
      shown++;
    }
  for (i = 0; i < n && shown < most; i++, shown++)
    print_row (&rows[i], wide, fp);
  if (i < n)
    fprintf (fp, "(%zu images more)\n", n - i);
}

/* (One line is for the cursor.) */
static int
print_table (const struct row *rows, size_t n, const struct look *now)
{
  const struct winsize w = terminal ();
  const size_t most = w.ws_row == 0 ? SIZE_MAX : w.ws_row > 4 ? w.ws_row - 4U : 1;
  CLEANUP_FREE char *text = NULL;
  size_t len;
  FILE *const fp = open_memstream (&text, &len);

  if (fp == NULL)
    return -1;
  print_lines (rows, n, now, most, w.ws_col == 0 || w.ws_col >= WIDE, fp);
  if (fclose (fp) == EOF)
    return -1;
  if (w.ws_row)
    fputs ("\033[H\033[J", stdout);
  put_cut (text, w.ws_col);
  return fflush (stdout) == EOF ? -1 : 0;
}

/* --- looks --- */

static void
end_look (struct look *look)
{
  json_decref (look->devices);
  json_decref (look->jobs);
}

/* Is the server one that tells what this shows?  (QEMU's has no list of what it exports
 * here, or one without `x-statistics'.) */
static bool
is_ours (struct live *l, const struct look *look)
{
  const json_t *const first = json_array_get (look->devices, 0);
  json_t *version = NULL;
  bool ours;

  if (first)
    return json_object_get (first, "x-statistics") != NULL;
  if (live_ask (l, "query-version", json_object (), &version) == -1)
    return false;
  ours = strncmp (jsontext_text (version, "package"), PACKAGE_NAME,
                  strlen (PACKAGE_NAME)) == 0;
  json_decref (version);
  return ours;
}

static int
look_at (struct live *l, struct look *look)
{
  *look = (struct look) { .at = 0 };
  if (live_ask (l, "query-blockstats", json_object (), &look->devices) == 0 &&
      live_ask (l, "query-jobs", json_object (), &look->jobs) == 0) {
    look->at = clock_ns ();
    if (is_ours (l, look))
      return 0;
    report_error ("this server does not count requests: top is for nbdkit-qcow2-plugin");
  }
  end_look (look);
  return -1;
}

static int
show (const struct arguments *a, const struct look *before, const struct look *now)
{
  const size_t n = json_array_size (now->devices);
  const double seconds = (now->at - before->at) / 1e9;
  struct row *rows = memory_new (n + 1, sizeof *rows);
  const json_t *device;
  size_t i;
  int r;

  if (rows == NULL)
    return -1;
  json_array_foreach (now->devices, i, device) {
    rows[i].image = json_object_get (device, "x-statistics");
    compute (&rows[i], before, seconds > 0 ? seconds : 1e-9);
  }
  qsort (rows, n, sizeof *rows, busiest_first);
  r = wants_json (a) ? print_document (rows, n, now, seconds) : print_table (rows, n, now);
  free (rows);
  return r;
}

/* --- the command --- */

static const struct option
  option_delay = { 'd', "delay", "MILLISECONDS", "the time between two looks (default 1000)" },
  option_count = { 'n', NULL, "COUNT", "how many looks (on a terminal: no end; else 1)" };

#define MOST_DELAY 3600000

static int
run_live (const struct arguments *a, struct live *l)
{
  const char *const delay = value_of (a, &option_delay);
  const char *const count = value_of (a, &option_count);
  uint64_t ms = 1000, looks = terminal ().ws_row && !wants_json (a) ? UINT64_MAX : 1;
  struct look before, now;
  bool shown = false;
  int r = 0;

  if ((delay && parse_number ("-d", delay, 1, MOST_DELAY, &ms) == -1) ||
      (count && parse_number ("-n", count, 1, INT64_MAX, &looks) == -1) ||
      look_at (l, &before) == -1)
    return -1;
  for (; looks > 0 && r == 0; looks--) {
    const struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep (&pause, NULL);
    if (look_at (l, &now) == -1) {
      if (shown)
        report_error ("what is shown is how it was before");
      end_look (&before);
      return -1;
    }
    r = show (a, &before, &now);
    shown = true;
    end_look (&before);
    before = now;
  }
  end_look (&before);
  return r;
}

static int
run (const struct arguments *a)
{
  (void) a;
  report_error ("top requires --control SOCKET");
  return EXIT_FAILURE;
}

static const struct option *const options[] = {
  &option_delay, &option_count, &option_output, NULL
};

const struct command top_command = {
  "top", "",
  "Show what a server does (with --control): requests of each image, the busiest first, and "
  "jobs.",
  options, 0, 0, .run = run, .live = run_live, .live_options = options, .finds_disks = true
};
