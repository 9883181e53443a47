/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is data from the layers below copied into the top image?  See copyup.c.
 */

#ifndef QCOW2_COPYUP_H
#define QCOW2_COPYUP_H

#include <stdint.h>

#include "request/view.h"

/* Maximum number of bytes that are copied at once; a whole number of clusters. */
#define COPYUP_PIECE (UINT64_C (2) << 20)

/* The state of copy-on-read for one disk.  NULL on ENOMEM (reported). */
extern struct copyup *copyup_new (void);
extern void copyup_free (struct copyup *);  /* accepts NULL */

/* Reads like request_read (see request.h), and stores the clusters that came from the
 * layers below in the top image.  If they cannot be stored (the file system is full),
 * that is reported, but the read does not fail.  BUF may be NULL, to store only.  Returns
 * 1 if something was stored, which waits for a checkpoint; 0 if not; or -1.  The view
 * must be writable and have a `copyup'. */
extern int copyup_read (const struct view *, void *buf, uint64_t count,
                        uint64_t offset);

/* Stores in the top image the data that guest range [start, end) shows of the layers
 * below.  START is a multiple of the cluster size; so is END, or it is the end of the
 * disk.  Nothing else may change the disk meanwhile.  Ranges of zeros are left as they
 * are.  SCRATCH has room for COPYUP_PIECE bytes.  Adds the number of bytes written to
 * host clusters to *COPIED, also on failure.  -1: as for a write (reported). */
extern int copyup_range (const struct view *, void *scratch, uint64_t start,
                         uint64_t end, uint64_t *copied);

#endif /* QCOW2_COPYUP_H */
