/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Creates, applies and deletes internal snapshots, and empties the active disk.  See
 * snapedit.c.
 *
 * DISCARD: punch holes into freed clusters.  All functions return 0: done and durable,
 * with *DONE for shadow_release and shadow_free; or -1: see shadow_commit.
 */

#ifndef QCOW2_SNAPEDIT_H
#define QCOW2_SNAPEDIT_H

#include "change/shadow.h"

struct snapahead;

/* What else changes in the same step: FN writes it, and has the header refer to it.  -1:
 * reported. */
struct snapedit_also {
  int (*fn) (void *opaque, const struct image *, struct shadow *, struct shadow_header *);
  void *opaque;
};

/* Can the image have one more snapshot, with this name?  0, or -1 (reported). */
extern int snapedit_check (const struct image *, const char *name);
/* Takes a snapshot of the active disk.  NAME: 1 to 255 bytes.  ALSO: NULL: nothing. */
extern int snapedit_create (const struct image *, bool discard, const char *name,
                            const struct snapedit_also *also, struct shadow **done);
/* Gives the active disk the contents of the snapshot, and its size. */
extern int snapedit_apply (const struct image *, bool discard, const char *name_or_id,
                           struct shadow **done);
/* AHEAD: what snapedit_delete_ahead has returned, or NULL.  It can then only be freed. */
extern int snapedit_delete (const struct image *, bool discard, const char *name_or_id,
                            struct snapahead *ahead, struct shadow **done);
/* Does what of that can be done while requests change the image with W: see snapahead.h.
 * NULL: that failed (reported), which snapedit_delete can do without. */
extern struct snapahead *snapedit_delete_ahead (const struct image *, bool discard,
                                                const char *name_or_id,
                                                const struct writable *w);
/* Takes everything from the active disk: it then shows its backing file, or zeros. */
extern int snapedit_empty (const struct image *, bool discard, struct shadow **done);

#endif /* QCOW2_SNAPEDIT_H */
