/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bench: how long do requests take?
 *
 * Each request is a chunk of one byte for the threads of the core (chunks.c there): as
 * many threads as requests are in flight take them in order.  Where a request is depends
 * only on its number.
 *
 * Flushes divide the requests into groups.  The thread whose request completes a group
 * flushes; without --no-drain, those of the next group wait for that.
 *
 * Locks: bench.lock guards what the threads count.  It is held while all wait for a
 * flush.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/unwanted.h"
#include "copy/chunks.h"
#include "img/copytarget.h"
#include "img/diskend.h"
#include "img/progress.h"
#include "img/values.h"

static const struct option
  option_count = { 'c', "count", "N", "the number of requests (default 75000)" },
  option_depth = { 'd', "depth", "N", "how many are in flight (default 64)" },
  option_flush = { 0, "flush-interval", "N", "flush after so many requests" },
  option_aio = {
    'i', "aio", "threads", "how requests are made; other ways do not exist"
  },
  option_no_drain = {
    0, "no-drain", NULL, "requests do not wait for a flush that is in flight"
  },
  option_offset = { 'o', "offset", "OFFSET", "where the first one is (default 0)" },
  option_pattern = { 0, "pattern", "N", "the byte that is written (default 0)" },
  option_size = { 's', "buffer-size", "SIZE", "their size (default 4096)" },
  option_step = {
    'S', "step-size", "SIZE", "how far the next one is from the last (default: their size)"
  },
  option_write = { 'w', "write", NULL, "write; this destroys the data of the disk" };

struct bench {
  uint64_t count, depth, flush, offset, size, step, pattern;
  bool writes, drains;
  struct copy_end end;
  const void *data;             /* what is written */

  pthread_mutex_t lock;
  pthread_cond_t flushed;
  uint64_t done, flushes;       /* their numbers; guarded by lock */
};

/* --- the requests --- */

/* The next one after the end of the disk is at its beginning; one that crosses the end is
 * moved before it. */
static uint64_t
place_of (const struct bench *b, uint64_t i)
{
  return min64 ((b->offset + i * b->step) % b->end.size, b->end.size - b->size);
}

/* Waits until request I may begin. */
static void
wait_for_flush (struct bench *b, uint64_t i)
{
  LOCK_FOR_BLOCK (&b->lock);

  while (i / b->flush > b->flushes && !unwanted ())
    pthread_cond_wait (&b->flushed, &b->lock);
}

/* After a request. */
static int
flush_group (struct bench *b)
{
  pthread_mutex_lock (&b->lock);
  const bool due = ++b->done % b->flush == 0;
  int r = 0;

  if (due && b->drains)
    r = b->end.ops->sync (&b->end);
  if (due) {
    b->flushes++;
    pthread_cond_broadcast (&b->flushed);
  }
  pthread_mutex_unlock (&b->lock);
  return due && !b->drains ? b->end.ops->sync (&b->end) : r;
}

static int
work (void *opaque, void *buf, uint64_t start, uint64_t end, uint64_t *copied)
{
  struct bench *b = opaque;
  const uint64_t at = place_of (b, start);

  (void) end;
  if (b->flush && b->drains) {
    wait_for_flush (b, start);
    if (unwanted ())
      return -1;
  }
  if (b->writes ? b->end.ops->write (&b->end, b->data, b->size, at) == -1
      : b->end.ops->read (&b->end, buf, b->size, at) == -1)
    return -1;
  *copied += b->size;
  return b->flush ? flush_group (b) : 0;
}

static void
wake (void *opaque)
{
  struct bench *b = opaque;
  LOCK_FOR_BLOCK (&b->lock);

  pthread_cond_broadcast (&b->flushed);
}

static double
seconds (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static int
send_requests (const struct arguments *a, const struct imagefile *f, struct bench *b)
{
  const struct chunks_job job = {
    .words = { .path = f->given }, .size = b->count, .chunk = 1, .threads = b->depth,
    .scratch = b->writes ? 1 : b->size, .opaque = b, .work = work, .wake = wake
  };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const bool quiet = is_given (a, &option_quiet);
  uint64_t copied;
  double begin;
  int r;

  if (!quiet) {
    printf ("Sending %" PRIu64 " %s requests, %" PRIu64 " bytes each, %" PRIu64 " in parallel "
            "(starting at offset %" PRIu64 ", step size %" PRIu64 ")\n", b->count,
            b->writes ? "write" : "read", b->size, b->depth, b->offset, b->step);
    if (b->flush)
      printf ("Sending flush every %" PRIu64 " requests\n", b->flush);
  }
  progress_begin (a, false);
  begin = seconds ();
  r = chunks_run (&job, &watch, &copied);
  begin = seconds () - begin;
  progress_end (r == 0);
  if (r == 0 && !quiet)
    printf ("Run completed in %3.3f seconds.\n", begin);
  return r;
}

/* --- what the user wants --- */

/* *R stays as it is if the option was not given. */
static int
number_of (const struct arguments *a, const struct option *o, uint64_t least, uint64_t most,
           uint64_t *r)
{
  const char *text = value_of (a, o);
  char buf[32];

  return text ? parse_number (option_word (o, buf), text, least, most, r) : 0;
}

static int
size_of (const struct arguments *a, const struct option *o, uint64_t least, uint64_t most,
         uint64_t *r)
{
  const char *text = value_of (a, o);
  char buf[32];

  if (text == NULL)
    return 0;
  if (parse_size (option_word (o, buf), text, r) == -1)
    return -1;
  return *r >= least && *r <= most ? 0
    : bad_value (option_word (o, buf), text, "must be %" PRIu64 " to %" PRIu64, least, most);
}

static int
read_options (const struct arguments *a, struct bench *b)
{
  const char *aio = value_of (a, &option_aio);

  b->writes = is_given (a, &option_write);
  b->drains = !is_given (a, &option_no_drain);
  if (aio && strcmp (aio, option_aio.value) != 0)
    return bad_value ("-i", aio, "must be %s", option_aio.value);
  if (number_of (a, &option_count, 0, INT32_MAX, &b->count) == -1 ||
      number_of (a, &option_depth, 1, CHUNKS_MOST_THREADS, &b->depth) == -1 ||
      number_of (a, &option_flush, 0, INT32_MAX, &b->flush) == -1 ||
      number_of (a, &option_pattern, 0, UINT8_MAX, &b->pattern) == -1 ||
      size_of (a, &option_offset, 0, INT64_MAX, &b->offset) == -1 ||
      size_of (a, &option_size, 1, INT32_MAX, &b->size) == -1 ||
      size_of (a, &option_step, 0, INT32_MAX, &b->step) == -1)
    return -1;
  if (b->step == 0)
    b->step = b->size;
  if (b->flush && !b->writes)
    report_error ("--flush-interval requires -w");
  else if (b->flush && b->flush < b->depth)
    report_error ("--flush-interval must be at least the depth (-d), %" PRIu64, b->depth);
  else if (b->writes && is_given (a, &option_force_share))
    report_error ("-U cannot be used with -w");
  else
    return 0;
  return -1;
}

/* --- the disk --- */

static int
run_on (const struct arguments *a, const struct imagefile *f, struct bench *b)
{
  if (b->end.size >= b->size && b->offset <= b->end.size - b->size)
    return send_requests (a, f, b);
  report_error ("%s: the disk has %" PRIu64 " bytes: it does not contain the first request, "
                "%" PRIu64 " bytes at offset %" PRIu64, f->given, b->end.size, b->size,
                b->offset);
  return -1;
}

static int
run_reads (const struct arguments *a, const struct imagefile *f, struct bench *b)
{
  struct diskend d;
  int r;

  if (diskend_open (f, NULL, &d) == -1)
    return -1;
  b->end = d.end;
  r = run_on (a, f, b);
  diskend_close (&d);
  return r;
}

static int
run_writes (const struct arguments *a, struct imagefile *f, struct bench *b)
{
  CLEANUP_FREE void *data = memory_get (b->size);
  struct copytarget t;
  int r;

  if (data == NULL)
    return -1;
  memset (data, b->pattern, b->size);
  b->data = data;
  r = copytarget_old (&t, f, false, 0);
  b->end = t.end;
  if (r == 0)
    r = run_on (a, f, b);
  if (r == 0)
    r = copytarget_finish (&t);
  copytarget_free (&t);
  return r;
}

static int
run_image (const struct arguments *a, struct bench *b)
{
  struct secrets *s = secrets_read (a);
  struct imagefile *f = s == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), s);
  int r = -1;

  if (f) {
    f->options.cache = imagefile_cache (a, &option_cache);
    r = b->writes ? run_writes (a, f, b) : run_reads (a, f, b);
  }
  imagefile_free (f);
  secrets_free (s);
  return r;
}

static int
run (const struct arguments *a)
{
  struct bench b = { .count = 75000, .depth = 64, .size = 4096 };
  int r;

  if (read_options (a, &b) == -1)
    return EXIT_FAILURE;
  pthread_mutex_init (&b.lock, NULL);
  pthread_cond_init (&b.flushed, NULL);
  r = run_image (a, &b);
  pthread_cond_destroy (&b.flushed);
  pthread_mutex_destroy (&b.lock);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static const struct option *const options[] = {
  &option_format, &option_count, &option_depth, &option_offset, &option_size, &option_step,
  &option_write, &option_pattern, &option_flush, &option_no_drain, &option_aio,
  &option_cache, &option_quiet, &option_force_share, IMAGE_OPTIONS, NULL
};

const struct command bench_command = {
  "bench", "IMAGE",
  "Measure how long requests take.  There are as many threads as requests in flight.",
  options, 1, 1, .run = run
};
