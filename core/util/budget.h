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
  _Atomic uint64_t bytes, peak;         /* in use now; the maximum so far */
  _Atomic uint64_t fixed;               /* the part of bytes that cannot be evicted */
  _Atomic uint64_t users;               /* images that are writable */
};

/* Adds BYTES to the memory in use, or subtracts them if negative (the sum wraps).  Does
 * not update the peak: the mapping cache does that when it takes memory (mapmem.c). */
static inline void
budget_hold (struct budget *b, uint64_t bytes)
{
  atomic_fetch_add (&b->fixed, bytes);
  atomic_fetch_add (&b->bytes, bytes);
}

/* The share of the limit for each writable image, in bytes. */
static inline uint64_t
budget_share (struct budget *b)
{
  const uint64_t users = atomic_load_explicit (&b->users, memory_order_relaxed);

  return b->limit / (users > 0 ? users : 1);
}

#endif /* QCOW2_BUDGET_H */
