/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is work that falls into many pieces spread over threads?  See parallel.c.
 */

#ifndef QCOW2_PARALLEL_H
#define QCOW2_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

/* Calls WORK for all of [0, ITEMS), BATCH at a time, in several threads, with a buffer
 * of SIZE bytes for each thread.  Returns when all have ended: -1 with the errno of the
 * first that failed, after which no more items are begun.  PATH is for messages. */
extern int parallel_run (const char *path, uint64_t items, uint64_t batch, size_t size,
                         int (*work) (void *opaque, void *buffer,
                                      uint64_t from, uint64_t to),
                         void *opaque);

#endif /* QCOW2_PARALLEL_H */
