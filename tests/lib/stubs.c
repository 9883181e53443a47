/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Functions that test programs link in place of a front end's.  Errors are printed, and
 * kept for the test to examine; debug messages are printed if QCOW2_TEST_DEBUG is set in
 * the environment.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/remedy.h"
#include "util/report.h"
#include "storage/storage.h"
#include "lib/stubs.h"

atomic_bool quiet_errors;
void (*trace_changes) (const char *text);

static _Thread_local char last[1024];
static atomic_ulong count;

void
report_line (enum report_level level, const char *text)
{
  const bool wanted = getenv ("QCOW2_TEST_DEBUG") != NULL;

  if (level == REPORT_DEBUG) {
    if (trace_changes)
      trace_changes (text);
    if (wanted)
      fprintf (stderr, "%s\n", text);
    return;
  }
  snprintf (last, sizeof last, "%s", text);
  count++;
  if (!quiet_errors || wanted)
    fprintf (stderr, "error: %s\n", last);
}

bool
report_traces (enum report_trace what)
{
  return (trace_changes && what == TRACE_CHANGE) || getenv ("QCOW2_TEST_DEBUG") != NULL;
}

bool
report_log (enum report_event what, const char *path, const char *text)
{
  (void) what, (void) path, (void) text;
  return false;
}

const char *
remedy (enum remedy r)
{
  return r < NR_REMEDIES ? "with a remedy" : NULL;
}

const char *
last_error (void)
{
  return last;
}

void
clear_last_error (void)
{
  last[0] = '\0';
}

unsigned long
error_count (void)
{
  return count;
}

bool
long_suite (void)
{
  const char *s = getenv ("QCOW2_TEST_LONG");

  return s && *s;
}

uint64_t
seed_from_env (void)
{
  const char *s = getenv ("SEED");
  uint64_t seed;

  if (s == NULL)
    s = getenv ("QCOW2_TEST_SEED");
  if (s)
    seed = strtoull (s, NULL, 0);
  else {
    struct timespec ts;
    clock_gettime (CLOCK_REALTIME, &ts);
    seed = (uint64_t) ts.tv_sec * 1000003 + (uint64_t) ts.tv_nsec;
  }
  printf ("SEED=%llu\n", (unsigned long long) seed);
  fflush (stdout);
  return seed;
}

void
rng_init (struct rng *r, uint64_t seed, uint64_t stream)
{
  r->s = (seed + 1) * UINT64_C (0x9e3779b97f4a7c15)
         ^ (stream + 1) * UINT64_C (0xbf58476d1ce4e5b9);
  if (r->s == 0)
    r->s = 1;
  for (int i = 0; i < 8; i++)
    rng_next (r);
}

uint64_t
rng_next (struct rng *r)
{
  r->s ^= r->s << 13;
  r->s ^= r->s >> 7;
  r->s ^= r->s << 17;
  return r->s * UINT64_C (0x2545f4914f6cdd1d);
}

void
run_threads (void *(*work) (void *), void *array, size_t size, unsigned n)
{
  pthread_t *threads = calloc (n, sizeof *threads);

  CHECK (threads != NULL);
  for (unsigned i = 0; i < n; i++)
    CHECK (pthread_create (&threads[i], NULL, work, (char *) array + i * size) == 0);
  for (unsigned i = 0; i < n; i++)
    CHECK (pthread_join (threads[i], NULL) == 0);
  free (threads);
}

static int
skip_sync (void *opaque, const char *path, enum storage_op op,
           const struct iovec *iov, int niov, uint64_t offset, uint64_t bytes,
           bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov;
  (void) offset; (void) bytes; (void) dsync;
  return op == STORAGE_OP_SYNC;
}

const struct storage_hooks without_sync = { .before = skip_sync };
