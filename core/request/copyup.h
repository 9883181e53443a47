/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is data from the layers below copied into the top image?  See copyup.c.
 */

#ifndef QCOW2_COPYUP_H
#define QCOW2_COPYUP_H

#include <stdint.h>

#include "request/view.h"

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

#endif /* QCOW2_COPYUP_H */
