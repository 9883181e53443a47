/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A run: a guest range that is served in one way.
 */

#ifndef QCOW2_RUN_H
#define QCOW2_RUN_H

#include <stdbool.h>
#include <stdint.h>

enum run_kind {
  RUN_UNALLOCATED = 0,  /* not in this layer: look below; host unused */
  RUN_ZERO,             /* reads as zeros; host unused */
  RUN_ZERO_ALLOC,       /* reads as zeros; host cluster kept for later */
  RUN_NORMAL,           /* data at host */
  RUN_COMPRESSED,       /* host is the L2 descriptor (bits 0..61) */
  RUN_RESERVED,         /* extended L2: look below, but a host cluster exists */
  RUN_CORRUPT,          /* an entry that must not be used: EIO;
                           host is the raw L2 entry, for the message */
};

struct run {
  uint64_t start;       /* guest offset, bytes */
  uint64_t len;         /* bytes, > 0 */
  uint64_t host;        /* host file offset of `start' in bytes for kinds
                           ZERO_ALLOC, NORMAL and RESERVED; else see above */
  uint16_t layer;       /* 0 is the top image; 1.. the chain below */
  uint8_t kind;         /* enum run_kind */
  bool copied;          /* refcount is exactly 1: may be written in place */
  bool unsettled;       /* the mapping is not yet durable in the file */
};

/* Does the kind's host field advance with the guest offset? */
static inline bool
run_host_advances (enum run_kind kind)
{
  return kind == RUN_ZERO_ALLOC || kind == RUN_NORMAL || kind == RUN_RESERVED;
}

/* Does the kind's host field stand for the whole cluster? */
static inline bool
run_host_constant (enum run_kind kind)
{
  return kind == RUN_COMPRESSED || kind == RUN_CORRUPT;
}

#endif /* QCOW2_RUN_H */
