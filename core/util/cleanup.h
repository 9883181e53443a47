/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that is freed, locks that are released, and errno that is restored at the end
 * of a C block.
 */

#ifndef QCOW2_CLEANUP_H
#define QCOW2_CLEANUP_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static inline void
cleanup_free (void *ptr)
{
  const int err = errno;

  free (*(void **) ptr);
  errno = err;
}

static inline void
cleanup_unlock (pthread_mutex_t **lock)
{
  pthread_mutex_unlock (*lock);
}

static inline void
cleanup_errno (const int *err)
{
  errno = *err;
}

#define CLEANUP_FREE __attribute__ ((cleanup (cleanup_free)))

#define CLEANUP_CAT2(a, b) a##b
#define CLEANUP_CAT(a, b) CLEANUP_CAT2 (a, b)

/* Holds the mutex until the enclosing block ends. */
#define LOCK_FOR_BLOCK(lock)                                               \
  __attribute__ ((cleanup (cleanup_unlock), unused))                       \
  pthread_mutex_t *CLEANUP_CAT (locked_, __LINE__) = (lock);               \
  pthread_mutex_lock (CLEANUP_CAT (locked_, __LINE__))

/* When the enclosing block ends, errno is what it is here. */
#define KEEP_ERRNO_FOR_BLOCK                                               \
  __attribute__ ((cleanup (cleanup_errno), unused))                        \
  const int CLEANUP_CAT (errno_, __LINE__) = errno

#endif /* QCOW2_CLEANUP_H */
