/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does each request of a client do to the view?
 *
 * Offsets and counts are in bytes and within the disk.  All functions return 0, or -1
 * with an errno fit for a client (EIO, ENOSPC, ENOMEM, ENOTSUP) and the error reported.
 * The caller is in a read section during each call (see serve.c).
 *
 * Functions that change the disk return 1 in place of 0 if only a checkpoint makes their
 * change durable: the caller runs one if the client asked for FUA.  After -1, a part of
 * the change may wait for a checkpoint.
 */

#ifndef QCOW2_REQUEST_H
#define QCOW2_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "request/view.h"

/* --- read.c: requests that change nothing --- */

extern int request_read (const struct view *, void *buf, uint64_t count,
                         uint64_t offset);

enum extent_type { EXTENT_DATA, EXTENT_HOLE, EXTENT_ZERO };
/* Returns 0, or -1, which ends the call. */
typedef int (*extent_fn) (void *opaque, uint64_t offset, uint64_t len,
                          enum extent_type);
/* What a client wants to know about extents: the same for all pieces of its request. */
struct extents_query {
  extent_fn emit;
  void *opaque;
  bool one;                     /* only the first extent is of interest */
  uint64_t end;                 /* of the request, a guest offset */
  struct storage_holes *known;  /* NULL: nothing is asked ahead */
};
/* Calls `emit' for consecutive ranges that together cover [offset, offset+count), or only
 * for the first one. */
extern int request_extents (const struct view *, uint64_t count, uint64_t offset,
                            const struct extents_query *);
/* For callers that ask for one range: an extent_fn that keeps it in a struct extent. */
struct extent {
  uint64_t len;
  enum extent_type type;
};
extern int extent_keep (void *extent, uint64_t offset, uint64_t len, enum extent_type);

/* Loads mappings and asks the host to read data ahead. */
extern int request_cache (const struct view *, uint64_t count,
                          uint64_t offset);

/* Does all of [offset, offset+len) read as zeros, according to its mapping?  Returns 1,
 * 0, or -1 on error. */
extern int request_reads_zero (const struct view *, uint64_t offset,
                               uint64_t len);

/* --- writing.c --- */

/* Writes data, including zeros; but with a compressor, whole clusters of zeros that the
 * view already shows stay as they are.  FUA: as for request_write.  Returns 1, 0 or
 * -1. */
extern int write_data (const struct view *, const void *buf, uint64_t count,
                       uint64_t offset, bool fua);
/* Writes zeros where the range does not read as zeros already.  Returns 1, 0 or -1. */
extern int write_missing_zeros (const struct view *, uint64_t count,
                                uint64_t offset);

/* --- cow.c: the part of a write that has to allocate --- */

/* Writes some of [offset, offset+count), which starts in a cluster that cannot be written
 * in place.  *DONE is the number of bytes written, or 0 if the cluster can be written in
 * place now. */
extern int cow_write (const struct view *, const void *buf, uint64_t count,
                      uint64_t offset, uint64_t *done);

/* --- compressed.c: the same, with whole clusters stored compressed --- */

/* Like cow_write, for a view that has a compressor. */
extern int compressed_write (const struct view *, const void *buf,
                             uint64_t count, uint64_t offset, uint64_t *done);

/* --- zero.c --- */

/* Returns 1, 0 or -1. */
extern int request_trim (const struct view *, uint64_t count, uint64_t offset);

enum request_flags {
  REQUEST_MAY_TRIM = 1,         /* host clusters may be freed */
  REQUEST_FAST = 2,             /* the caller has called request_can_zero_fast; returns
                                   ENOTSUP, and nothing has changed, if it turns out that
                                   the host cannot do it fast */
};
/* FLAGS: REQUEST_*.  Returns 1, 0 or -1. */
extern int request_zero (const struct view *, uint64_t count, uint64_t offset,
                         unsigned flags);
/* According to the mapping, is request_zero with the same arguments faster than writing
 * zeros?  Returns 0 if it is, or -1 with ENOTSUP (not reported). */
extern int request_can_zero_fast (const struct view *, uint64_t count,
                                  uint64_t offset, unsigned flags);

/* --- write.c --- */

/* FUA: data that changes no metadata is durable on return.  Returns 1, 0 or -1. */
extern int request_write (const struct view *, const void *buf,
                          uint64_t count, uint64_t offset, bool fua);

#endif /* QCOW2_REQUEST_H */
