/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Storage in a file or a block device of this host: see hostfile.c, hostopen.c.
 */

#ifndef QCOW2_HOSTFILE_H
#define QCOW2_HOSTFILE_H

#include "storage/storage.h"

/* Opens PATH (absolute).  Only regular files and block devices are accepted
 * (a FIFO must not hang us, and is refused by name).
 */
extern int hostfile_open (const char *path, const struct storage_options *,
                          struct storage **);
/* The same for a file that is open already, for reading and writing.  On success FD
 * belongs to the storage.  Of the options, hooks and drop_cache are used. */
extern int hostfile_adopt (const char *path, int fd,
                           const struct storage_options *, struct storage **);

#endif /* QCOW2_HOSTFILE_H */
