/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The end of a server that may be a client of its own.  See hangup.c.
 */

#ifndef QCOW2_HANGUP_H
#define QCOW2_HANGUP_H

#include "disk/dir.h"

struct hangup;

/* From the moment when the server is told to end, closes the connections of DIR's images
 * to NBD servers while no request uses them.  NULL: reported. */
extern struct hangup *hangup_start (struct dir *dir);
/* Must come before DIR is closed.  NULL is allowed. */
extern void hangup_stop (struct hangup *);

#endif /* QCOW2_HANGUP_H */
