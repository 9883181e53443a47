/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How far is a command, and how is it stopped?
 *
 * With -p in lines on stdout, as qemu-img prints them.  Otherwise, on a terminal, in one
 * line that is there as long as the command takes longer than a second.  It never goes
 * back, from 0 to 100, whatever the parts are of which the command consists.
 *
 * Control-C and similar signals would leave an image as a crash does: without harm, but
 * with leaks.  So they are caught, and the job is asked to stop in an orderly way.  But
 * this begins only when the job first reports progress: the work before that, such as
 * testing a passphrase, can take long and has changed nothing.  main.c then raises the
 * signal again.
 *
 * Locks: none; one thread shows it.  The signal is the only variable that a handler
 * changes.
 */

#include <config.h>

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "img/progress.h"

const struct option option_progress = {
  'p', "progress", NULL, "print the progress in lines"
};

#define SHOW_AFTER 1.0          /* seconds */
#define SHOW_EVERY 0.25

static struct {
  const char *name;
  bool prints, draws, drawn, caught;
  double begin, length;         /* of this part, of 1 */
  double at;                    /* never becomes less */
  double begun, last;           /* seconds */
} progress;

static volatile sig_atomic_t caught_signal;

static void
catch (int sig)
{
  caught_signal = sig;
}

int
progress_signal (void)
{
  return caught_signal;
}

static void
catch_signals (void)
{
  static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
  /* The second one ends the process; so does the one that main.c raises. */
  const struct sigaction ours = {
    .sa_handler = catch, .sa_flags = SA_RESTART | SA_RESETHAND
  };
  struct sigaction before;

  progress.caught = true;
  for (unsigned i = 0; i < sizeof signals / sizeof signals[0]; i++)
    if (sigaction (signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction (signals[i], &ours, NULL);
}

static double
seconds (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static void
show (double part)
{
  const double at = progress.begin + part * progress.length, now = seconds ();

  if (at > progress.at)
    progress.at = at;
  if (progress.prints) {
    printf ("    (%.2f/100%%)\r", progress.at * 100);
    fflush (stdout);
  }
  else if (progress.draws && now - progress.begun > SHOW_AFTER &&
           now - progress.last > SHOW_EVERY) {
    progress.last = now;
    progress.drawn = true;
    fprintf (stderr, "%s: %3.0f %%\033[K\r", progress.name, progress.at * 100);
    fflush (stderr);
  }
}

void
progress_begin (const struct arguments *a, bool data)
{
  const bool quiet = is_given (a, &option_quiet);

  progress.name = a->command->name;
  progress.prints = is_given (a, &option_progress) && !quiet && !data;
  progress.draws = !progress.prints && !quiet && isatty (STDERR_FILENO);
  progress.begun = seconds ();
  progress_within (0, 1);
  show (0);
}

void
progress_within (double begin, double end)
{
  progress.begin = begin;
  progress.length = end - begin;
}

bool
progress_step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  const double part = total ? (double) done / total : 1;

  (void) opaque;
  (void) copied;
  if (!progress.caught)
    catch_signals ();
  /* Not more often than -p shows a difference. */
  if (!progress.prints ||
      (int) ((progress.begin + part * progress.length) * 100) > (int) (progress.at * 100))
    show (part);
  return !caught_signal;
}

void
progress_hide (void)
{
  if (progress.drawn) {
    fputs ("\033[K", stderr);
    fflush (stderr);
  }
  progress.drawn = false;
}

void
progress_end (bool done)
{
  if (done) {
    progress_within (0, 1);
    show (1);
  }
  if (progress.prints)
    putchar ('\n');
  progress.prints = progress.draws = false;
  progress_hide ();
}
