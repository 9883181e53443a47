/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A monotonic clock that stands still until the test lets time pass, for tests of what a
 * thread does every few seconds.  However busy the machine is, such a test sees the same.
 *
 * The functions below replace those of the C library, so a program can include this in
 * only one source file.
 */

#ifndef TEST_STILLCLOCK_H
#define TEST_STILLCLOCK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/stubs.h"

static struct stillclock {
  _Atomic int64_t ms;           /* the time; only the test changes it */

  /* The only thread that waits until a time, as far as it waits.  Guarded by lock; while
   * that is held, no other lock is taken. */
  pthread_mutex_t lock;
  pthread_cond_t came;
  pthread_cond_t *cond;
  pthread_mutex_t *mutex;
  int64_t until;
} stillclock = {
  .ms = 1000000, .lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER,
};

int
clock_gettime (clockid_t clock, struct timespec *t)
{
  if (clock != CLOCK_MONOTONIC)
    return syscall (SYS_clock_gettime, clock, t);
  t->tv_sec = stillclock.ms / 1000;
  t->tv_nsec = stillclock.ms % 1000 * 1000000;
  return 0;
}

int
pthread_cond_timedwait (pthread_cond_t *cond, pthread_mutex_t *mutex,
                        const struct timespec *until)
{
  const int64_t until_ms = until->tv_sec * INT64_C (1000) + until->tv_nsec / 1000000;

  pthread_mutex_lock (&stillclock.lock);
  CHECK (stillclock.cond == NULL);
  stillclock.cond = cond;
  stillclock.mutex = mutex;
  stillclock.until = until_ms;
  pthread_cond_broadcast (&stillclock.came);
  pthread_mutex_unlock (&stillclock.lock);

  /* Who lets time pass has to take MUTEX to wake this thread. */
  if (stillclock.ms < until_ms)
    pthread_cond_wait (cond, mutex);

  pthread_mutex_lock (&stillclock.lock);
  stillclock.cond = NULL;
  pthread_mutex_unlock (&stillclock.lock);
  return stillclock.ms < until_ms ? 0 : ETIMEDOUT;
}

/* Waits until a thread waits for a time that has not come: it has done everything that
 * was to be done until now.  Returns when it wants to go on. */
static int64_t
stillclock_await (void)
{
  int64_t until;

  pthread_mutex_lock (&stillclock.lock);
  while (stillclock.cond == NULL || stillclock.until <= stillclock.ms)
    pthread_cond_wait (&stillclock.came, &stillclock.lock);
  until = stillclock.until;
  pthread_mutex_unlock (&stillclock.lock);
  return until;
}

/* Lets this time pass.  If the thread wants to go on by then, it is woken, and this
 * returns when it waits again. */
static void
stillclock_pass (unsigned ms)
{
  pthread_cond_t *cond;
  pthread_mutex_t *mutex;
  const int64_t until = stillclock_await ();

  stillclock.ms += ms;
  if (until > stillclock.ms)
    return;
  pthread_mutex_lock (&stillclock.lock);
  cond = stillclock.cond;
  mutex = stillclock.mutex;
  pthread_mutex_unlock (&stillclock.lock);
  if (cond) {
    pthread_mutex_lock (mutex);
    pthread_cond_broadcast (cond);
    pthread_mutex_unlock (mutex);
  }
  stillclock_await ();
}

#endif /* TEST_STILLCLOCK_H */
