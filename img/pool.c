/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can a hostile image do no harm?
 *
 * What an image causes, a crash, an endless loop, the use of all memory, happens in a
 * process that works on this image alone.  It tells how far it is, through a pipe: a line
 * is a document in JSON with everything so far, so a reader needs only the last
 * one.  The process that started it looks at no image.  It reads these lines, as
 * something that the image may have forged, and kills late workers.
 *
 * No worker survives: the kernel kills the workers, and what they have started, when the
 * process that started them ends, however it ends.
 *
 * Locks: none; one thread, so that a fork is a copy of all there is.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util/memory.h"
#include "util/report.h"
#include "img/pool.h"

/* A line has a report about up to 4096 files, with 1000 findings in all. */
#define LONGEST (32u << 20)

struct worker {
  pid_t pid;
  int fd;                       /* of the pipe; -1: there is none */
  unsigned piece;
  char *line;                   /* what has come of the next one */
  size_t len, room;
  json_t *last;
  double deadline;              /* of the clock; 0: none */
  bool late;
  const char *why;              /* it was killed, or NULL */
};

static double
now (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

/* --- the worker's side --- */

static int to_parent = -1;

void
pool_tell (json_t *document, double seconds)
{
  json_t *both = json_pack ("{s:f, s:o}", "seconds", seconds, "said", document);

  if (both == NULL || json_dumpfd (both, to_parent, JSON_COMPACT) == -1 ||
      write (to_parent, "\n", 1) != 1)
    _exit (EXIT_FAILURE);
  json_decref (both);
}

static void __attribute__ ((noreturn))
be_worker (const struct pool_work *w, const struct worker *all, unsigned i, int fd,
           pid_t parent)
{
  const struct rlimit none = { 0, 0 };

  prctl (PR_SET_PDEATHSIG, SIGKILL);
  if (getppid () != parent)
    _exit (EXIT_FAILURE);
  setrlimit (RLIMIT_CORE, &none);
  for (unsigned k = 0; k < w->jobs; k++)
    if (all[k].fd >= 0)
      close (all[k].fd);
  to_parent = fd;
  w->work (w->opaque, i);
  _exit (EXIT_SUCCESS);
}

/* --- the side of the process that starts them --- */

/* False: there is no process for it now. */
static bool
start (const struct pool_work *w, struct worker *all, struct worker *me, unsigned i)
{
  const pid_t parent = getpid ();
  int fds[2];
  pid_t pid;

  if (pipe2 (fds, O_CLOEXEC) == -1)
    return false;
  fflush (NULL);
  pid = fork ();
  if (pid == 0)
    be_worker (w, all, i, fds[1], parent);
  close (fds[1]);
  if (pid == -1) {
    close (fds[0]);
    return false;
  }
  *me = (struct worker) { .pid = pid, .fd = fds[0], .piece = i };
  return true;
}

static void
kill_worker (struct worker *me, const char *why)
{
  kill (me->pid, SIGKILL);
  me->why = why;
  me->deadline = 0;
}

/* One line, without the newline. */
static void
take_line (struct worker *me, const char *line, size_t len)
{
  json_t *both = json_loadb (line, len, 0, NULL);
  json_t *said = json_object_get (both, "said");
  const double seconds = json_number_value (json_object_get (both, "seconds"));

  if (!json_is_object (said))
    kill_worker (me, "it said what makes no sense");
  else {
    json_decref (me->last);
    me->last = json_incref (said);
    me->deadline = seconds > 0 ? now () + seconds : 0;
  }
  json_decref (both);
}

static void
take_lines (struct worker *me)
{
  char *begin = me->line, *end;

  while (me->why == NULL &&
         (end = memchr (begin, '\n', me->line + me->len - begin)) != NULL) {
    take_line (me, begin, end - begin);
    begin = end + 1;
  }
  me->len -= begin - me->line;
  memmove (me->line, begin, me->len);
}

/* False: there is nothing more to read. */
static bool
read_some (struct worker *me)
{
  ssize_t n;

  if (me->len == me->room) {
    char *line = me->room < LONGEST
      ? memory_resize (me->line, me->room ? 2 * me->room : 64 << 10, 1) : NULL;

    if (line == NULL) {
      kill_worker (me, "it said too much");
      return false;
    }
    me->line = line;
    me->room = me->room ? 2 * me->room : 64 << 10;
  }
  do
    n = read (me->fd, me->line + me->len, me->room - me->len);
  while (n == -1 && errno == EINTR);
  if (n <= 0)
    return false;
  me->len += n;
  take_lines (me);
  return true;
}

static void
finish (const struct pool_work *w, struct worker *me)
{
  char text[100];
  const char *why = me->why;
  int status;

  close (me->fd);
  me->fd = -1;
  /* (It may only have closed the pipe.  Once it has ended, this changes nothing.) */
  kill (me->pid, SIGKILL);
  while (waitpid (me->pid, &status, 0) == -1 && errno == EINTR)
    ;
  if (why == NULL && (!WIFEXITED (status) || WEXITSTATUS (status) != 0)) {
    if (WIFSIGNALED (status))
      snprintf (text, sizeof text, "the process that did it was killed by signal %d (%s)",
                WTERMSIG (status), strsignal (WTERMSIG (status)));
    else
      snprintf (text, sizeof text, "the process that did it ended too early");
    why = text;
  }
  w->done (w->opaque, me->piece, me->last, why, me->late);
  json_decref (me->last);
  free (me->line);
}

/* Milliseconds until the next deadline; -1: there is none. */
static int
time_left (const struct worker *all, unsigned n)
{
  double first = 0, left;

  for (unsigned k = 0; k < n; k++)
    if (all[k].fd >= 0 && all[k].deadline && (first == 0 || all[k].deadline < first))
      first = all[k].deadline;
  if (first == 0)
    return -1;
  left = (first - now ()) * 1000 + 1;
  return left < 0 ? 0 : left > 1000000 ? 1000000 : left;
}

/* Waits until something happens, and deals with it. */
static void
attend (const struct pool_work *w, struct worker *all, struct pollfd *polled)
{
  for (unsigned k = 0; k < w->jobs; k++)
    polled[k] = (struct pollfd) { .fd = all[k].fd, .events = POLLIN };
  if (poll (polled, w->jobs, time_left (all, w->jobs)) == -1)
    return;
  for (unsigned k = 0; k < w->jobs; k++) {
    if (all[k].fd == -1)
      continue;
    if (polled[k].revents) {
      if (!read_some (&all[k]))
        finish (w, &all[k]);
    }
    else if (all[k].deadline && now () > all[k].deadline) {
      all[k].late = true;
      kill_worker (&all[k], "it took too long");
    }
  }
}

static unsigned
running (const struct worker *all, unsigned n)
{
  unsigned count = 0;

  for (unsigned k = 0; k < n; k++)
    count += all[k].fd >= 0;
  return count;
}

/* Starts the next ones, as many as there may be. */
static void
start_some (const struct pool_work *w, struct worker *all, unsigned *next)
{
  for (unsigned k = 0; k < w->jobs && *next < w->n; k++) {
    if (all[k].fd >= 0)
      continue;
    if (start (w, all, &all[k], *next))
      (*next)++;
    else if (running (all, w->jobs) == 0)
      w->done (w->opaque, (*next)++, NULL, strerror (errno), false);
    else
      return;                   /* when another one has ended, there is room */
  }
}

void
pool_run (const struct pool_work *w)
{
  struct worker *all = memory_new (w->jobs, sizeof *all);
  struct pollfd *polled = memory_new (w->jobs, sizeof *polled);
  unsigned next = 0;

  for (unsigned k = 0; all && k < w->jobs; k++)
    all[k].fd = -1;
  if (all && polled)
    while (next < w->n || running (all, w->jobs)) {
      start_some (w, all, &next);
      attend (w, all, polled);
    }
  else
    while (next < w->n)
      w->done (w->opaque, next++, NULL, "no memory", false);
  free (polled);
  free (all);
}
