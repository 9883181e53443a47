/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A thread that writes a file, so that requests and clients never wait for its storage.
 *
 * The storage may hang, so the server waits for the end of the thread only for a limited
 * time.  The plugin stays in memory until the process ends (-z nodelete), because a
 * thread that hangs still needs its code.
 */

#ifndef QCOW2_WRITER_H
#define QCOW2_WRITER_H

#include <pthread.h>
#include <stdbool.h>

/* No signals reach the thread.  Returns 0, or -1 (reported). */
extern int writer_start (pthread_t *, void *(*fn) (void *), void *opaque);
/* The caller has told the thread to end.  Waits for that, but no longer than two seconds.
 * False: it hangs, and the caller must not free what it uses. */
extern bool writer_end (pthread_t);

#endif /* QCOW2_WRITER_H */
