/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU-compatible locks on an open file: see hostlock.c.  Other folders use
 * storage_lock.
 */

#ifndef QCOW2_HOSTLOCK_H
#define QCOW2_HOSTLOCK_H

#include "storage/storage.h"

/* Goes from the locks of role FROM, which FD holds, to those of role TO.
 * Returns 0, or -1 with errno set (EBUSY: somebody else is in the way) and the
 * error reported; FD then holds the locks of FROM as before.
 */
extern int hostlock_change (int fd, const char *path, enum storage_lock from,
                            enum storage_lock to);

#endif /* QCOW2_HOSTLOCK_H */
