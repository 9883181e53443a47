/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests of a client: what each does to the view.
 *
 * Offsets and counts are bytes and lie within the disk.  All return 0, or -1 with
 * errno fit for a client (EIO, ENOSPC, ENOMEM, ENOTSUP) and the error reported.
 * The caller holds a grace pin around each call (see serve.c).
 *
 * Those that change the disk return 1 in place of 0 if a checkpoint must make their
 * change durable: the caller runs one if the client asked for FUA.  After -1 a part of
 * the change may wait for a checkpoint.
 */

#ifndef QCOW2_REQUEST_H
#define QCOW2_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "request/view.h"

/* --- read.c: those that change nothing --- */

extern int request_read (const struct view *, void *buf, uint64_t count,
                         uint64_t offset);

/* Calls EMIT for consecutive ranges that together cover [offset, offset+count)
 * (only the first if ONE). */
enum extent_type { EXTENT_DATA, EXTENT_HOLE, EXTENT_ZERO };
typedef int (*extent_fn) (void *opaque, uint64_t offset, uint64_t len,
                          enum extent_type);
extern int request_extents (const struct view *, uint64_t count,
                            uint64_t offset, bool one,
                            extent_fn emit, void *opaque);

/* Loads mappings and asks the host to read ahead. */
extern int request_cache (const struct view *, uint64_t count,
                          uint64_t offset);

/* Does all of [offset, offset+len) read as zeros, by its mapping?
 * 1, 0, or -1 on error. */
extern int request_reads_zero (const struct view *, uint64_t offset,
                               uint64_t len);

/* --- writing.c --- */

/* Writes data, zeros like any others.  FUA: as for request_write.  1, 0 or -1. */
extern int write_data (const struct view *, const void *buf, uint64_t count,
                       uint64_t offset, bool fua);
/* Writes zeros, but only where the range does not read as zeros already.  1, 0 or -1. */
extern int write_missing_zeros (const struct view *, uint64_t count,
                                uint64_t offset);

/* --- cow.c: the part of a write that has to allocate --- */

/* Writes some of [offset, offset+count), which starts in a cluster that can't be
 * written in place: *DONE bytes of it (0 if it turns out that it can be by
 * now). */
extern int cow_write (const struct view *, const void *buf, uint64_t count,
                      uint64_t offset, uint64_t *done);

/* --- compressed.c: the same, with whole clusters stored compressed --- */

/* As cow_write, for a view that has a compressor. */
extern int compressed_write (const struct view *, const void *buf,
                             uint64_t count, uint64_t offset, uint64_t *done);

/* --- zero.c --- */

/* 1, 0 or -1. */
extern int request_trim (const struct view *, uint64_t count, uint64_t offset);

enum request_flags {
  REQUEST_MAY_TRIM = 1,         /* host clusters may be given back */
  REQUEST_FAST = 2,             /* request_can_zero_fast was asked before; ENOTSUP, and
                                   nothing has changed, if it turns out that the host
                                   can't */
};
/* FLAGS of REQUEST_*.  1, 0 or -1. */
extern int request_zero (const struct view *, uint64_t count, uint64_t offset,
                         unsigned flags);
/* Would the same be faster than writing zeros, as far as the mapping says?  0, or -1
 * with ENOTSUP (not reported). */
extern int request_can_zero_fast (const struct view *, uint64_t count,
                                  uint64_t offset, unsigned flags);

/* --- write.c --- */

/* FUA: data that needs no change of metadata is durable on return.  1, 0 or -1. */
extern int request_write (const struct view *, const void *buf,
                          uint64_t count, uint64_t offset, bool fua);

#endif /* QCOW2_REQUEST_H */
