/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster have?  See recount.c.
 */

#ifndef QCOW2_RECOUNT_H
#define QCOW2_RECOUNT_H

#include <stdint.h>

#include "check/walk.h"

struct recount;

/* Both pointers must outlive the recount, and nothing may change the references in the
 * metadata of the file during its lifetime.  REFCOUNTS is the number of references that
 * the refcount table and each block have: 1, or 0 if they are about to be replaced.  NULL
 * on error (reported). */
extern struct recount *recount_new (struct storage *, const struct header *,
                                    uint32_t refcounts);
extern void recount_free (struct recount *);    /* NULL is allowed */

/* As walk_follow. */
extern void recount_follow (struct recount *, struct pace *);

/* Says, before anything is counted, that the snapshot table is about to be replaced, too:
 * entries that no program reads are left out, and the others count. */
extern void recount_replace_snapshots (struct recount *);

/* Walks all metadata and counts the references to the clusters of the window that starts
 * at cluster FIRST (a multiple of REFWINDOW_CLUSTERS).  Returns 0, or -1: if the image is
 * inconsistent, recount_fault describes the fault; other errors have been reported. */
extern int recount_window (struct recount *, uint64_t first);

/* The number of references to a cluster of the last window that was counted.  Values of
 * REFWINDOW_MAX and more are not exact.  0 for clusters outside the window. */
extern uint64_t recount_get (const struct recount *, uint64_t cluster);
/* The next window that has references, or UINT64_MAX if there is none. */
extern uint64_t recount_next (const struct recount *);

/* One past the last cluster, in all windows counted so far, that has a reference or
 * contains refcounts. */
extern uint64_t recount_end (const struct recount *);

/* Describes the fault that ended the recount, or NULL.  Belongs to the recount. */
extern const char *recount_fault (const struct recount *);

/* The walk, which gives access to the old refcounts.  Belongs to the recount. */
extern const struct walk *recount_walk (const struct recount *);

#endif /* QCOW2_RECOUNT_H */
