/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which pieces of a disk are marked?  See dirtyset.c.
 */

#ifndef QCOW2_DIRTYSET_H
#define QCOW2_DIRTYSET_H

#include <stdbool.h>
#include <stdint.h>

struct dirtyset;

/* A set in which nothing is marked, of BITS pieces of 2^GRANULARITY_BITS bytes.  NULL on
 * ENOMEM (not reported). */
extern struct dirtyset *dirtyset_new (uint64_t bits, unsigned granularity_bits);
extern void dirtyset_free (struct dirtyset *);  /* accepts NULL */

/* The maximum number of bytes of memory that such a set uses. */
extern uint64_t dirtyset_bytes (uint64_t bits);

/* Marks piece 64 * WORD + i for each bit i that is set in VALUE.  Pieces beyond the last
 * word are ignored. */
extern void dirtyset_mark (struct dirtyset *, uint64_t word, uint64_t value);

/* Is the guest byte at OFFSET in a marked piece?  *LEN, in bytes and > 0: on entry, how
 * far to look; on return, for how many bytes from OFFSET on the answer is the same.
 * Others may record meanwhile. */
extern bool dirtyset_find (const struct dirtyset *, uint64_t offset,
                           uint64_t *len);

/* --- a set in which others record --- */

/* Marks the pieces of this range.  What is beyond the last piece is ignored.  Any thread,
 * while others record and take. */
extern void dirtyset_record (struct dirtyset *, uint64_t offset, uint64_t count);
/* Moves all marks from FROM, in which others record, to INTO, a set of the same shape
 * that only the caller uses.  Marks that are made meanwhile may stay. */
extern void dirtyset_take (struct dirtyset *from, struct dirtyset *into);
/* The number of marked pieces.  Any thread; it may change meanwhile. */
extern uint64_t dirtyset_count (const struct dirtyset *);
/* Removes marks (COUNT > 0), in a set that only the caller uses. */
extern void dirtyset_unmark (struct dirtyset *, uint64_t offset, uint64_t count);

#endif /* QCOW2_DIRTYSET_H */
