/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads to memory that some processors copy to slowly.  See aliasing.c.
 */

#ifndef QCOW2_ALIASING_H
#define QCOW2_ALIASING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Slow memory begins 1 to ALIASING_DISTANCE - 1 bytes behind the bytes of the file,
 * modulo pages. */
#define ALIASING_DISTANCE 32u

/* How slow reads of fewer bytes are does not matter. */
#define ALIASING_COUNT 4096u

static inline unsigned
aliasing_distance (const void *buf, uint64_t offset)
{
  return ((uintptr_t) buf - offset) % 4096;
}

/* Whether the processor may be one of those. */
extern bool aliasing_processor (void);

/* Whether to use aliasing_read for COUNT bytes at OFFSET of a file. */
static inline bool
aliasing_slow (const void *buf, size_t count, uint64_t offset)
{
  return aliasing_distance (buf, offset) - 1 < ALIASING_DISTANCE - 1 &&
    count >= ALIASING_COUNT && aliasing_processor ();
}

/* The same as pread, on every processor.  COUNT is at least ALIASING_DISTANCE, and the
 * distance is 1 to ALIASING_DISTANCE - 1. */
extern ssize_t aliasing_read (int fd, void *buf, size_t count, uint64_t offset);

#endif /* QCOW2_ALIASING_H */
