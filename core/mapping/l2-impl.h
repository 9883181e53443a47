/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that l2.c and l2write.c share.  No other file includes this.
 */

#ifndef QCOW2_L2_IMPL_H
#define QCOW2_L2_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mapping/l2.h"

/* Flags in the low bits of an L1 entry in memory (its offset is a multiple of
 * 512).  They never reach the file. */
#define L1_UNSETTLED UINT64_C (1)       /* not yet durable */
#define L1_BAD       UINT64_C (2)       /* must not be followed */
#define L1_ZEROS     UINT64_C (4)       /* a new table: the file has zeros there */
#define L1_FLAGS     UINT64_C (0x1ff)

struct l2 {
  struct image *image;
  struct alloc *alloc;

  struct map_space *space;
  uint64_t slice_size;          /* bytes in the file */
  unsigned slice_span_bits;     /* log2 of the guest bytes of a slice */
  unsigned table_span_bits;     /* log2 of the guest bytes of an L2 table */

  pthread_mutex_t lock;
  _Atomic uint64_t *l1;         /* changed under `lock', read without it: see l2.c */
  /* Guarded by `lock'.  There is space for the changes that l2_take has taken, too: they
   * come back if writing fails. */
  struct l1_change *changed;
  unsigned nr_changed, nr_taken, room_changed;

  _Atomic (atomic_bool *) written;      /* slices, since they were last asked for; NULL:
                                           nobody asks.  Set after the write. */
};

/* The number of the table with slice number SLICE. */
static inline uint64_t
l2_table_of (const struct l2 *l2, uint64_t slice)
{
  return slice >> (l2->table_span_bits - l2->slice_span_bits);
}

static inline uint64_t
l2_slices_of_table (const struct l2 *l2)
{
  return UINT64_C (1) << (l2->table_span_bits - l2->slice_span_bits);
}

/* The offset of slice number SLICE in the file.  The image owns its table exclusively, so
 * the table does not move while the slice is dirty. */
extern uint64_t l2_slice_offset (const struct l2 *, uint64_t slice);

#endif /* QCOW2_L2_IMPL_H */
