/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For LD_PRELOAD: a second of processor time passes at each look at that of a thread.
 *
 * To choose the iterations of PBKDF2, QEMU measures for seconds how many it can do;
 * and it refuses if its measurement took no time, as may be where the kernel counts in
 * ticks.  Thus it chooses the fewest that it allows, at once.  So do we.
 */

#include <config.h>

/* (What the first argument is, differs between versions of glibc.) */
#define getrusage declared_getrusage
#include <sys/resource.h>
#undef getrusage
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern int getrusage (int who, struct rusage *usage);

static _Thread_local long looks;

int
getrusage (int who, struct rusage *usage)
{
  const int r = syscall (SYS_getrusage, who, usage);

  if (r == 0 && who == RUSAGE_THREAD)
    usage->ru_utime.tv_sec += ++looks;
  return r;
}

int
clock_gettime (clockid_t clock, struct timespec *now)
{
  const int r = syscall (SYS_clock_gettime, clock, now);

  if (r == 0 && clock == CLOCK_THREAD_CPUTIME_ID)
    now->tv_sec += ++looks;
  return r;
}
