/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU-compatible locks on an open file.  See hostlock.c.  Other folders use
 * storage_lock.
 */

#ifndef QCOW2_HOSTLOCK_H
#define QCOW2_HOSTLOCK_H

#include "storage/storage.h"

/* Changes from the locks of role FROM, which FD holds, to those of role TO.  Returns 0,
 * or -1 with errno set (EBUSY: another program is in the way; EDEADLK: this one is) and
 * the error reported; FD then still holds the locks of FROM. */
extern int hostlock_change (int fd, const char *path, enum storage_lock from,
                            enum storage_lock to);

#endif /* QCOW2_HOSTLOCK_H */
