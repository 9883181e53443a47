/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What of deleting an internal snapshot is done while clients write.  See snapahead.c.
 */

#ifndef QCOW2_SNAPAHEAD_H
#define QCOW2_SNAPAHEAD_H

#include "change/shadow.h"

struct snapahead;

/* Does what is possible while requests change the image with W; its allocator sets
 * clusters aside.  Until the change of the whole disk has ended, no other one may begin.
 * NULL on error (reported). */
extern struct snapahead *snapahead_new (const struct image *, bool discard,
                                        const struct snapshot *, const struct writable *w);
extern void snapahead_free (struct snapahead *);        /* NULL is allowed */

/* Now the image is at rest.  First: the shadow, which lacks the references of the
 * snapshot, and belongs to the caller.  NULL on error (reported). */
extern struct shadow *snapahead_begin (struct snapahead *);
/* Then, before the shadow takes anything: has entries of the active L1 table (N entries)
 * point to tables that are correct without the snapshot.  Returns the length of *CORRECT,
 * an array that belongs to the snapahead, or -1 (reported).  A table that ACTIVE has in
 * the same place as it needs no change. */
extern int64_t snapahead_use (struct snapahead *, struct shadow *, struct be64 *active,
                              uint64_t n, const struct be64 **correct);

#endif /* QCOW2_SNAPAHEAD_H */
