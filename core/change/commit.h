/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Moves the data of layers into a layer below them.  See commit.c.
 */

#ifndef QCOW2_COMMIT_H
#define QCOW2_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "copy/chunks.h"
#include "change/follow.h"

/* Layers TOP to BASE - 1 are written into layer BASE.
 *
 * TOP 0, the image itself; no client may write.  Both then show the same (if the base is
 * larger, in the part that the image has).  The image becomes empty, unless KEEP.
 *
 * TOP 0, FOLLOWS, with clients or without: the disk goes on with the base, if that is
 * wanted in the end (commit_pivot).  The image stays as it is.
 *
 * TOP > 0, with clients or without: afterwards these layers are no longer part of the
 * disk, and the image above them names the base as NAME (NULL: by its path). */
struct commit_layers {
  unsigned top, base;
  bool keep, follows;
  const char *name;
  uint64_t rate;                /* commit_disk: at most so many bytes in a second; 0:
                                   any */
};

/* All of it.  *COPIED: bytes of data written.
 *
 * -1: reported; the disk shows the same as before.  The base may already contain some of
 * the data, which the layers above hide.  The next call does all of it again. */
extern int commit_disk (struct disk *, const struct commit_layers *,
                        const struct chunks_watch *, uint64_t *copied);

/* The same in steps. */
struct commit;

/* Opens the base for writing, locks what will be written, and makes the base large
 * enough.  Uses NAME until commit_free.  NULL: reported. */
extern struct commit *commit_new (struct disk *, const struct commit_layers *);
/* The size of what is to be copied, in bytes. */
extern uint64_t commit_size (const struct commit *);
/* Copies the range [START, END); one thread at a time.  Adds what was written to *COPIED.
 * -1: reported; *READS (NULL: not asked for): reading has failed, not writing. */
extern int commit_range (struct commit *, uint64_t start, uint64_t end, uint64_t *copied,
                         bool *reads);
/* Everything was copied: makes that durable, and changes the disk.  -1: reported. */
extern int commit_finish (struct commit *);

/* With FOLLOWS, in place of commit_range: begins to copy.  -1: reported. */
extern int commit_begin (struct commit *);
/* The copying, which belongs to the commit; after commit_begin. */
extern struct follow *commit_follow (const struct commit *);
/* Each of the next two: -1 with EAGAIN, not reported: too much is left, and it can be
 * called again after follow_near has returned 0.  Otherwise, the commit has ended. */
/* Copies the rest while clients wait, and lets them go on with the base, which is durable
 * and at rest before.  -1: they go on as before. */
extern int commit_pivot (struct commit *);
/* Copies the rest while clients wait: the base is the disk of one instant, durably. */
extern int commit_stay (struct commit *);

/* Brings the base to rest, as soon as no client can see what it was before.  Accepts
 * NULL. */
extern void commit_free (struct commit *);

#endif /* QCOW2_COMMIT_H */
