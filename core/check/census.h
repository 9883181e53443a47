/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster have?  See census.c.
 */

#ifndef QCOW2_CENSUS_H
#define QCOW2_CENSUS_H

#include <stdint.h>

#include "check/walk.h"

struct census;

/* Both pointers must outlive the census, and nothing may change the references in the
 * metadata of the file during its lifetime.  REFCOUNTS is the number of references that
 * the refcount table and each block have: 1, or 0 if they are about to be replaced.  NULL
 * on error (reported). */
extern struct census *census_new (struct storage *, const struct header *,
                                  uint32_t refcounts);
extern void census_free (struct census *);      /* NULL is allowed */

/* As walk_follow. */
extern void census_follow (struct census *, struct pace *);

/* Says, before anything is counted, that the snapshot table is about to be replaced, too:
 * entries that no program reads are left out, and the others count. */
extern void census_replace_snapshots (struct census *);

/* Walks all metadata and counts the references to the clusters of the window that starts
 * at cluster FIRST (a multiple of TALLY_WINDOW).  Returns 0, or -1: if the image is
 * inconsistent, census_fault describes the fault; other errors have been reported. */
extern int census_take (struct census *, uint64_t first);

/* The number of references to a cluster of the last window that was counted.  Values of
 * TALLY_MAX and more are not exact.  0 for clusters outside the window. */
extern uint64_t census_count (const struct census *, uint64_t cluster);
/* The next window that has references, or UINT64_MAX if there is none. */
extern uint64_t census_next (const struct census *);

/* One past the last cluster, in all windows counted so far, that has a reference or
 * contains refcounts. */
extern uint64_t census_end (const struct census *);

/* Describes the fault that ended the census, or NULL.  Belongs to the census. */
extern const char *census_fault (const struct census *);

/* The walk, which gives access to the old refcounts.  Belongs to the census. */
extern const struct walk *census_walk (const struct census *);

#endif /* QCOW2_CENSUS_H */
