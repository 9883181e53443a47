/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A set of cluster numbers, kept as runs.  See freeset.c.
 */

#ifndef QCOW2_FREESET_H
#define QCOW2_FREESET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct freeset_node;

/* What a run takes, with what malloc adds. */
#define FREESET_RUN_BYTES 64

struct freeset {                /* all zeros is the empty set */
  struct freeset_node *root;
  uint64_t clusters;            /* how many there are */
  size_t runs;                  /* in how many runs */
  uint32_t random;
};

extern void freeset_clear (struct freeset *);

/* Adds or removes [first, first+n), whatever is there already.
 * Returns 0, or -1 on ENOMEM (not reported; nothing has changed).  To remove from
 * the start or the end of a run never fails. */
extern int freeset_add (struct freeset *, uint64_t first, uint64_t n);
extern int freeset_remove (struct freeset *, uint64_t first, uint64_t n);

/* The lowest run of at least N clusters. */
extern bool freeset_find (const struct freeset *, uint64_t n,
                          uint64_t *first, uint64_t *len);
/* Length of the longest run, 0 if the set is empty. */
extern uint64_t freeset_longest (const struct freeset *);
/* One of the shortest runs.  False if the set is empty. */
extern bool freeset_shortest (const struct freeset *, uint64_t *first,
                              uint64_t *len);
/* The lowest run, cut to [from, to), that has clusters in it. */
extern bool freeset_next (const struct freeset *, uint64_t from, uint64_t to,
                          uint64_t *first, uint64_t *len);

#endif /* QCOW2_FREESET_H */
