/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a thread that writes a file begin and end?  See writer.h.
 *
 * Locks: none.
 */

#include <config.h>

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "util/report.h"
#include "plugin/writer.h"

#define PATIENCE_S 2

int
writer_start (pthread_t *thread, void *(*fn) (void *), void *opaque)
{
  sigset_t all, old;
  int err;

  /* Signals are for the threads of nbdkit. */
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  err = pthread_create (thread, NULL, fn, opaque);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  if (err == 0)
    return 0;
  report_error ("pthread_create: %s", strerror (err));
  return -1;
}

bool
writer_end (pthread_t thread)
{
  struct timespec end;

  clock_gettime (CLOCK_REALTIME, &end);
  end.tv_sec += PATIENCE_S;
  if (pthread_timedjoin_np (thread, NULL, &end) == 0)
    return true;
  pthread_detach (thread);
  return false;
}
