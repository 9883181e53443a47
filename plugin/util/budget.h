/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory may the structures of some images use together, and how much do they
 * use?
 *
 * The mapping cache uses most of it and makes room for the other users: it counts their
 * memory as its own (mapmem.c).
 *
 * Locks: none; the counters are atomic.
 */

#ifndef QCOW2_BUDGET_H
#define QCOW2_BUDGET_H

#include <stdatomic.h>
#include <stdint.h>

struct budget {
  uint64_t limit;                       /* bytes; constant */
  _Atomic uint64_t bytes, peak;         /* held now; at most so far */
  _Atomic uint64_t fixed;               /* of bytes: what cannot be evicted */
  _Atomic uint64_t users;               /* images that are being written */
};

/* Somebody holds BYTES more, or less if that is negative (it wraps).  The peak is for the
 * next one that could make room: see mapmem.c. */
static inline void
budget_hold (struct budget *b, uint64_t bytes)
{
  atomic_fetch_add (&b->fixed, bytes);
  atomic_fetch_add (&b->bytes, bytes);
}

/* What each image that is being written may have of the limit, bytes. */
static inline uint64_t
budget_share (struct budget *b)
{
  const uint64_t users = atomic_load_explicit (&b->users, memory_order_relaxed);

  return b->limit / (users > 0 ? users : 1);
}

#endif /* QCOW2_BUDGET_H */
