/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a run?  A guest range that is served in one way.
 */

#ifndef QCOW2_RUN_H
#define QCOW2_RUN_H

#include <stdbool.h>
#include <stdint.h>

enum run_kind {
  RUN_UNALLOCATED = 0,  /* not in this layer: look at the layers below; host unused */
  RUN_ZERO,             /* reads as zeros; host unused */
  RUN_ZERO_ALLOC,       /* reads as zeros; has a host cluster for later writes */
  RUN_NORMAL,           /* data at host */
  RUN_COMPRESSED,       /* host is the L2 descriptor (bits 0..61) */
  RUN_RESERVED,         /* extended L2: look below, although a host cluster exists */
  RUN_CORRUPT,          /* an entry that must not be used: EIO;
                           host is the raw L2 entry, for the message */
};

struct run {
  uint64_t start;       /* guest offset, bytes */
  uint64_t len;         /* bytes, > 0 */
  uint64_t host;        /* for ZERO_ALLOC, NORMAL and RESERVED the host offset of `start',
                           in bytes; otherwise see above */
  uint16_t layer;       /* 0 is the top image; 1.. the backing chain */
  uint8_t kind;         /* enum run_kind */
  bool copied;          /* refcount is exactly 1: may be written in place */
  bool unsettled;       /* the mapping is not yet durable in the file */
};

/* Can its data be written where it is? */
static inline bool
run_in_place (const struct run *run)
{
  return run->kind == RUN_NORMAL && run->copied;
}

/* Does the kind's host field advance with the guest offset? */
static inline bool
run_host_advances (enum run_kind kind)
{
  return kind == RUN_ZERO_ALLOC || kind == RUN_NORMAL || kind == RUN_RESERVED;
}

/* Is the kind's host field the same for the whole cluster? */
static inline bool
run_host_constant (enum run_kind kind)
{
  return kind == RUN_COMPRESSED || kind == RUN_CORRUPT;
}

#endif /* QCOW2_RUN_H */
