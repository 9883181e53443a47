/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster really have?  See census.c.
 */

#ifndef QCOW2_CENSUS_H
#define QCOW2_CENSUS_H

#include <stdint.h>

#include "check/walk.h"

struct census;

/* Both pointers must outlive it, and nobody may change the file's metadata
 * meanwhile.  NULL: reported. */
extern struct census *census_new (struct storage *, const struct header *);
extern void census_free (struct census *);      /* NULL is fine */

/* Walks all metadata and counts the references to the clusters of the window
 * that begins with cluster FIRST (a multiple of TALLY_WINDOW).  0, or -1: if the image
 * is wrong, census_fault says what is; other errors have been reported. */
extern int census_take (struct census *, uint64_t first);

/* Of the window taken last; from TALLY_MAX on it is not exact.  0 for clusters outside of
 * it, and for those that hold the old refcounts. */
extern uint64_t census_count (const struct census *, uint64_t cluster);
/* The first window after it in which there is something; UINT64_MAX: there is none. */
extern uint64_t census_next (const struct census *);

/* One past the last cluster that has a reference, or that holds refcounts, in all windows
 * taken so far. */
extern uint64_t census_end (const struct census *);

/* What was found to be wrong, in a few words; NULL if nothing was. */
extern const char *census_fault (const struct census *);

/* Belongs to the census; for the old refcounts. */
extern const struct walk *census_walk (const struct census *);

#endif /* QCOW2_CENSUS_H */
