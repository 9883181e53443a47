/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory and locks whose life is a C block.
 */

#ifndef QCOW2_CLEANUP_H
#define QCOW2_CLEANUP_H

#include <pthread.h>
#include <stdlib.h>

static inline void
cleanup_free (void *ptr)
{
  free (*(void **) ptr);
}

static inline void
cleanup_unlock (pthread_mutex_t **lock)
{
  pthread_mutex_unlock (*lock);
}

#define CLEANUP_FREE __attribute__ ((cleanup (cleanup_free)))

#define CLEANUP_CAT2(a, b) a##b
#define CLEANUP_CAT(a, b) CLEANUP_CAT2 (a, b)

/* Holds the mutex until the enclosing block ends. */
#define LOCK_FOR_BLOCK(lock)                                               \
  __attribute__ ((cleanup (cleanup_unlock), unused))                       \
  pthread_mutex_t *CLEANUP_CAT (locked_, __LINE__) = (lock);               \
  pthread_mutex_lock (CLEANUP_CAT (locked_, __LINE__))

#endif /* QCOW2_CLEANUP_H */
