/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much time has passed?
 */

#ifndef QCOW2_CLOCK_H
#define QCOW2_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Milliseconds on CLOCK_MONOTONIC. */
static inline int64_t
clock_ms (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C (1000) + now.tv_nsec / 1000000;
}

/* The same in nanoseconds. */
static inline int64_t
clock_ns (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C (1000000000) + now.tv_nsec;
}

/* Initializes a condition whose waits end by CLOCK_MONOTONIC. */
static inline void
clock_init_condition (pthread_cond_t *condition)
{
  pthread_condattr_t attributes;

  pthread_condattr_init (&attributes);
  pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
  pthread_cond_init (condition, &attributes);
  pthread_condattr_destroy (&attributes);
}

#endif /* QCOW2_CLOCK_H */
