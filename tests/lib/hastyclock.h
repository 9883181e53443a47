/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A monotonic clock on which seconds pass each time that somebody looks at it, for tests
 * of what happens every few seconds.  Who waits until a time waits no longer than usual.
 *
 * The functions below replace those of the C library, so a program can include this in
 * only one source file.
 */

#ifndef TEST_HASTYCLOCK_H
#define TEST_HASTYCLOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HASTE 10                /* seconds at each look */

static atomic_long hurried;

int
clock_gettime (clockid_t clock, struct timespec *t)
{
  const int r = syscall (SYS_clock_gettime, clock, t);

  if (r == 0 && clock == CLOCK_MONOTONIC)
    t->tv_sec += atomic_fetch_add (&hurried, HASTE) + HASTE;
  return r;
}

int
pthread_cond_timedwait (pthread_cond_t *cond, pthread_mutex_t *mutex,
                        const struct timespec *until)
{
  struct timespec real = *until;

  real.tv_sec -= hurried;
  return pthread_cond_clockwait (cond, mutex, CLOCK_MONOTONIC, &real);
}

#endif /* TEST_HASTYCLOCK_H */
