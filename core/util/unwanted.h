/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is what this thread works on still wanted?
 *
 * Threads that work ahead of requests have no client that could disconnect.  When they
 * are to end, they must not wait for a remote server that does not answer.
 */

#ifndef QCOW2_UNWANTED_H
#define QCOW2_UNWANTED_H

#include <stdatomic.h>
#include <stdbool.h>

/* From now on, what this thread works on is unwanted while *FLAG is true. */
extern void unwanted_if (const atomic_bool *flag);

/* False for threads that have not called unwanted_if. */
extern bool unwanted (void);

#endif /* QCOW2_UNWANTED_H */
