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

/* Memory per run, including malloc's overhead (bytes). */
#define FREESET_RUN_BYTES 64

struct freeset {                /* all zeros is the empty set */
  struct freeset_node *root;
  uint64_t clusters;            /* number of clusters in the set */
  size_t runs;                  /* number of runs that they form */
  uint32_t random;
};

extern void freeset_clear (struct freeset *);

/* Add or remove [first, first+n), whether or not its clusters are in the set.  Return 0,
 * or -1 on ENOMEM (not reported; nothing has changed).  Removing clusters from the start
 * or the end of a run never fails. */
extern int freeset_add (struct freeset *, uint64_t first, uint64_t n);
extern int freeset_remove (struct freeset *, uint64_t first, uint64_t n);

/* Finds the lowest run of at least N clusters.  False if there is none. */
extern bool freeset_find (const struct freeset *, uint64_t n,
                          uint64_t *first, uint64_t *len);
/* The length of the longest run; 0 if the set is empty. */
extern uint64_t freeset_longest (const struct freeset *);
/* Finds one of the shortest runs.  False if the set is empty. */
extern bool freeset_shortest (const struct freeset *, uint64_t *first,
                              uint64_t *len);
/* Finds the lowest run that has clusters in [from, to), and returns the part of it that
 * is in this range.  False if there is none. */
extern bool freeset_next (const struct freeset *, uint64_t from, uint64_t to,
                          uint64_t *first, uint64_t *len);

#endif /* QCOW2_FREESET_H */
