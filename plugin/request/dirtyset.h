/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which pieces of a disk are marked?  See dirtyset.c.
 */

#ifndef QCOW2_DIRTYSET_H
#define QCOW2_DIRTYSET_H

#include <stdbool.h>
#include <stdint.h>

struct dirtyset;

/* Nothing is marked.  BITS pieces of 2^GRANULARITY_BITS bytes.  NULL on ENOMEM. */
extern struct dirtyset *dirtyset_new (uint64_t bits, unsigned granularity_bits);
extern void dirtyset_free (struct dirtyset *);  /* NULL is fine */

/* How much memory it may come to hold, bytes. */
extern uint64_t dirtyset_bytes (uint64_t bits);

/* Marks the pieces 64 * WORD + i for each bit i that is set in VALUE.  What lies beyond
 * the last piece is ignored. */
extern void dirtyset_mark (struct dirtyset *, uint64_t word, uint64_t value);

/* Is the guest byte at OFFSET in a marked piece?  *LEN: in: how many bytes are of
 * interest (> 0); out: how many of them, from OFFSET on, have the same answer. */
extern bool dirtyset_find (const struct dirtyset *, uint64_t offset,
                           uint64_t *len);

#endif /* QCOW2_DIRTYSET_H */
