/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which thread of a test may change which part of a disk?  See pieces.c.
 */

#ifndef TEST_PIECES_H
#define TEST_PIECES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/stubs.h"

struct piece {
  uint64_t start, len;
  unsigned owner;               /* == owners: all threads */
};

struct pieces {
  struct piece *all;            /* in order; cover the disk */
  unsigned n;
  unsigned *index;              /* sorted by owner */
  unsigned *first;              /* first piece of each owner in index; owners + 2
                                   values */
  unsigned owners;
};

/* UNIT divides all borders (except the end of the disk).  SHARED: some pieces belong to
 * all threads. */
extern void pieces_make (struct pieces *, struct rng *, uint64_t size,
                         uint64_t cluster_size, uint64_t unit,
                         unsigned owners, bool shared);
extern void pieces_free (struct pieces *);

/* A random piece that OWNER owns.  Every owner has one, but there may be none that
 * belongs to all threads: then NULL. */
extern const struct piece *pieces_pick (const struct pieces *, struct rng *,
                                        unsigned owner);

/* A random part of a piece, in multiples of UNIT if possible: often all of it, sometimes
 * whole clusters. */
extern void piece_part (const struct piece *, struct rng *, uint64_t unit,
                        uint64_t cluster_size, uint64_t longest,
                        uint64_t *offset, uint64_t *count);

#endif /* TEST_PIECES_H */
