/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster really have?  See census.c.
 */

#ifndef QCOW2_CENSUS_H
#define QCOW2_CENSUS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/hostfile.h"
#include "format/header.h"
#include "image/snapshot.h"

struct census;

/* Clusters that are counted at a time: a multiple of what any refcount block
 * counts. */
#define CENSUS_WINDOW (UINT64_C (1) << 24)

/* All pointers must outlive it, and nobody may change the file's metadata
 * meanwhile.  COUNT_REFCOUNTS: the refcount table and its blocks are counted like
 * all other metadata, and must be in order.  Else they only have to be where
 * nothing else is, and those that lie nowhere are ignored.  NULL on ENOMEM
 * (reported). */
extern struct census *census_new (struct hostfile *, const struct header *,
                                  const struct snapshots *,
                                  bool count_refcounts);
extern void census_free (struct census *);      /* NULL is fine */

/* Walks all metadata and counts the references to the clusters of the window
 * that begins with cluster FIRST (a multiple of CENSUS_WINDOW).  0, or -1: if the image
 * is wrong, census_fault says what is; other errors have been reported. */
extern int census_take (struct census *, uint64_t first);

/* Of the window taken last.  0 for clusters outside of it. */
extern uint64_t census_count (const struct census *, uint64_t cluster);
/* The first window after it in which there is something; UINT64_MAX: there is none. */
extern uint64_t census_next (const struct census *);

/* One past the last cluster of the file that has a reference, or that holds refcounts,
 * counted or not.  Known after the first window. */
extern uint64_t census_end (const struct census *);

/* What was found to be wrong, in a few words; NULL if nothing was. */
extern const char *census_fault (const struct census *);

#endif /* QCOW2_CENSUS_H */
