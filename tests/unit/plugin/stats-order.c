/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several clients leave at once, and each has news for the statistics: the file never
 * goes back to an older state, and the last one that is written is the newest.  No client
 * waits for that.  The thread writes what has changed by itself, and news at once.  If it
 * cannot, it says so once; and if it hangs, the server ends all the same.
 *
 * Environment: SEED, SECONDS (2).
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "plugin/stats.h"
#include "lib/stubs.h"

#define THREADS 4

static struct stats_file *file;
static char path[] = "stats-order.XXXXXX";
static atomic_uint_fast64_t ever, gets;
static atomic_bool held, stop;
static time_t deadline;

struct client {
  struct rng rng;
};

/* What plugin.c reads of the server, with pauses where another thread may come in. */
static void
get (struct stats *s)
{
  static _Thread_local struct rng rng;

  if (rng.s == 0)
    rng_init (&rng, 1, gets);
  *s = (struct stats) { .ever = ever };
  gets++;
  while (held)
    sched_yield ();
  if (rng_below (&rng, 2))
    usleep (rng_below (&rng, 300));
}

static uint64_t
read_ever (void)
{
  FILE *fp = fopen (path, "r");
  uint64_t n;

  CHECK (fp != NULL);
  CHECK (fscanf (fp, " { \"connections\": { \"open\": %*u, \"ever\": %" SCNu64, &n) == 1);
  fclose (fp);
  return n;
}

static void *
leave_often (void *opaque)
{
  struct client *c = opaque;

  while (time (NULL) < deadline) {
    ever++;
    stats_news (file);
    if (rng_below (&c->rng, 4) == 0)
      usleep (rng_below (&c->rng, 1000));
  }
  return NULL;
}

static void *
look (void *opaque)
{
  uint64_t n, last = 0;

  (void) opaque;
  while (!stop) {
    n = read_ever ();
    CHECK (n >= last);
    last = n;
  }
  return NULL;
}

/* Waits until the file is new; the thread writes it. */
static void
await_file (void)
{
  while (read_ever () != ever)
    usleep (1000);
}

static void
test_order (uint64_t seed)
{
  static struct client clients[THREADS];
  const char *sec = getenv ("SECONDS");
  pthread_t reader;

  deadline = time (NULL) + (sec ? atoi (sec) : 2);
  for (unsigned i = 0; i < THREADS; i++)
    rng_init (&clients[i].rng, seed, i);
  CHECK (pthread_create (&reader, NULL, look, NULL) == 0);
  run_threads (leave_often, clients, sizeof clients[0], THREADS);
  await_file ();
  stop = true;
  CHECK (pthread_join (reader, NULL) == 0);
  printf ("%" PRIuFAST64 " left, %" PRIuFAST64 " files\n", ever, gets);
}

/* However long the thread needs. */
static void
test_nobody_waits (void)
{
  const uint64_t before = gets;

  held = true;
  stats_news (file);
  while (gets == before)
    sched_yield ();
  for (unsigned i = 0; i < THREADS; i++) {
    ever++;
    stats_news (file);
  }
  CHECK (gets == before + 1);
  held = false;
  await_file ();
}

static void
test_thread (void)
{
  for (int i = 0; i < 20; i++) {
    ever++;
    stats_news (file);
    await_file ();
  }
  ever++;                       /* no news: within the interval */
  await_file ();
}

/* What is written in the end was counted before. */
static void
test_end (void)
{
  const uint64_t last = ++ever;

  stats_stop (file);
  ever++;
  stats_news (file);
  stats_close (file);
  CHECK (read_ever () == last);
}

static void
test_failures (void)
{
  struct stats_file *f = stats_open ("nonesuch/stats", false, get);
  uint64_t before;

  CHECK (f && stats_start (f) == 0);
  for (int i = 0; i < 5; i++) {
    before = gets;
    stats_news (f);
    /* (It was at work, perhaps.) */
    while (gets < before + 2)
      usleep (1000);
  }
  stats_close (f);
  CHECK (error_count () == 1);
}

/* As of a file system that hangs, once HANGS is 1; it is 2 when a thread has come. */
static atomic_int hangs;

int
renameat2 (int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
  if (hangs == 1) {
    hangs = 2;
    while (hangs == 2)
      usleep (1000);
  }
  return syscall (SYS_renameat2, from_dir, from, to_dir, to, flags);
}

static void
test_hangs (void)
{
  struct stats_file *f = stats_open (path, false, get);
  const uint64_t last = ++ever;

  CHECK (f && stats_start (f) == 0);
  hangs = 1;
  stats_news (f);
  while (hangs != 2)
    usleep (1000);
  stats_stop (f);
  ever = 0;
  stats_close (f);              /* in two seconds */
  CHECK (error_count () == 2);
  /* The thread may go on at any time. */
  hangs = 0;
  ever = last;
  await_file ();
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  int fd = mkstemp (path);

  CHECK (fd >= 0 && close (fd) == 0);
  CHECK (stats_check (path) == 0);
  file = stats_open (path, false, get);
  CHECK (file && stats_write (file) == 0 && stats_start (file) == 0);
  test_order (seed);
  test_nobody_waits ();
  test_thread ();
  test_end ();
  quiet_errors = true;
  test_failures ();
  test_hangs ();
  CHECK (unlink (path) == 0);
  return 0;
}
