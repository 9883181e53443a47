/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Storage in a file or a block device of this host.  See hostfile.c, hostopen.c.
 */

#ifndef QCOW2_HOSTFILE_H
#define QCOW2_HOSTFILE_H

#include "storage/storage.h"

/* Opens PATH (absolute).  Only regular files and block devices are accepted (opening a
 * FIFO must not block; other types are refused by name).  Returns 0 or -1 (reported). */
extern int hostfile_open (const char *path, const struct storage_options *,
                          struct storage **);
/* The same for FD, which is open for reading and writing.  On success FD belongs to the
 * storage.  The only options that are used are hooks and cache. */
extern int hostfile_adopt (const char *path, int fd,
                           const struct storage_options *, struct storage **);

#endif /* QCOW2_HOSTFILE_H */
