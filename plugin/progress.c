/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can the user follow and stop a long job?
 *
 * This is for jobs that run before the server starts, while the user looks at a terminal
 * (without a terminal nothing is shown).  A job that takes more than a second has a
 * line, which is overwritten again and again, and disappears when the job has ended.
 *
 * Control-C and similar signals would leave the image as a crash does: without harm, but
 * with leaks.  So they are caught, and the job is asked to stop in an orderly way.  But
 * this begins only when the job first reports progress: the work before that, such as
 * testing a passphrase, can take minutes and has changed nothing.  nbdkit sets its own
 * signal handlers later, when the server starts.
 *
 * Locks: none; one thread uses it.  The signal is the only global variable.
 */

#include <config.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "plugin/progress.h"

#define SHOW_AFTER 1.0          /* seconds */
#define SHOW_EVERY 0.25

static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
#define NR_SIGNALS (sizeof signals / sizeof signals[0])

_Static_assert (NR_SIGNALS == sizeof (((struct progress *) 0)->before) /
                sizeof (struct sigaction), "room for what was set before");

static volatile sig_atomic_t stopped;

static void
stop (int sig)
{
  (void) sig;
  stopped = 1;
}

static double
seconds (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static void
catch_signals (struct progress *p)
{
  struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };

  stopped = 0;
  for (unsigned i = 0; i < NR_SIGNALS; i++) {
    sigaction (signals[i], NULL, &p->before[i]);
    if (p->before[i].sa_handler != SIG_IGN)
      sigaction (signals[i], &action, NULL);
  }
  p->caught = true;
}

void
progress_begin (struct progress *p, const char *what)
{
  memset (p, 0, sizeof *p);
  p->what = what;
  p->terminal = isatty (STDERR_FILENO);
  p->begun = seconds ();
}

bool
progress_step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  struct progress *p = opaque;
  const double now = seconds ();

  if (!p->caught)
    catch_signals (p);
  if (!p->terminal || now - p->begun < SHOW_AFTER || now - p->last < SHOW_EVERY)
    return !stopped;
  p->last = now;
  p->shown = true;
  /* A message that follows overwrites this line. */
  fprintf (stderr, "%s: %3.0f %%", p->what, total ? 100.0 * done / total : 100.0);
  if (copied != UINT64_MAX)
    fprintf (stderr, ", %" PRIu64 " MiB written", copied >> 20);
  fprintf (stderr, "\033[K\r");
  fflush (stderr);
  return !stopped;
}

void
progress_end (struct progress *p)
{
  if (p->caught)
    for (unsigned i = 0; i < NR_SIGNALS; i++)
      sigaction (signals[i], &p->before[i], NULL);
  if (p->shown)
    fprintf (stderr, "\033[K");
}
