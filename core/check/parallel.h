/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Spreads work that consists of many items over threads.  See parallel.c.
 */

#ifndef QCOW2_PARALLEL_H
#define QCOW2_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

#include "check/pace.h"

/* Calls WORK for all items [0, ITEMS), BATCH at a time, in several threads, each with its
 * own buffer of SIZE bytes.  Returns when all threads have ended: 0, or -1 with the errno
 * of the first call that failed, after which no more items are started.  PATH is for
 * messages.  PACE, or NULL, is told how much of the present part is done; EINTR: it shall
 * not go on. */
extern int parallel_run (const char *path, uint64_t items, uint64_t batch, size_t size,
                         int (*work) (void *opaque, void *buffer,
                                      uint64_t from, uint64_t to),
                         void *opaque, struct pace *);

#endif /* QCOW2_PARALLEL_H */
