/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A thread that writes a file, so that nobody else waits for its storage.
 *
 * Storage may hang, so its end is not awaited for ever.  The plugin stays in memory until
 * the process ends (-z nodelete), for the sake of a thread that hangs.
 */

#ifndef QCOW2_WRITER_H
#define QCOW2_WRITER_H

#include <pthread.h>
#include <stdbool.h>

/* No signals reach the thread.  Returns 0, or -1 (reported). */
extern int writer_start (pthread_t *, void *(*fn) (void *), void *opaque);
/* The thread was told to end.  Waits for that, but no longer than two seconds.  False: it
 * hangs, and what it uses must stay. */
extern bool writer_end (pthread_t);

#endif /* QCOW2_WRITER_H */
