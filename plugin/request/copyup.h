/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does what lies below get into the top image?  See copyup.c.
 */

#ifndef QCOW2_COPYUP_H
#define QCOW2_COPYUP_H

#include <stdint.h>

#include "request/view.h"

/* Most bytes that are copied in one go; a whole number of clusters. */
#define COPYUP_PIECE (UINT64_C (2) << 20)

/* Copy-on-read of one disk.  NULL on ENOMEM (reported). */
extern struct copyup *copyup_new (void);
extern void copyup_free (struct copyup *);  /* NULL is fine */

/* Reads as request_read does (see request.h), and stores in the top image the clusters
 * that came from below.  That this fails (a full disk) is reported, and does not make
 * the read fail.  BUF may be NULL: only to store.  Returns 1 if something was stored,
 * which waits for a checkpoint; 0 if not; or -1.  The view must be writable and have a
 * `copyup'. */
extern int copyup_read (const struct view *, void *buf, uint64_t count,
                        uint64_t offset);

/* Stores in the top image what guest range [start, end) shows of the layers below;
 * START is a multiple of the cluster size, END too or the end of the disk.  Nobody else
 * changes the disk meanwhile.  What is zeros there is left as it is.  SCRATCH has room
 * for COPYUP_PIECE bytes.  Adds the bytes of host clusters that were written to *COPIED,
 * also if it fails.  -1: as for a write (reported). */
extern int copyup_range (const struct view *, void *scratch, uint64_t start,
                         uint64_t end, uint64_t *copied);

#endif /* QCOW2_COPYUP_H */
