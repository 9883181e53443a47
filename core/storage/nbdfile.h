/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Storage in an export of an NBD server.  See nbdfile.c.
 */

#ifndef QCOW2_NBDFILE_H
#define QCOW2_NBDFILE_H

#include "storage/storage.h"

/* Connects to URI.  The options that are used are try_writable, lock, hooks and link.
 * Returns 0 or -1 (reported). */
extern int nbdfile_open (const char *uri, const struct storage_options *,
                         struct storage **);

#endif /* QCOW2_NBDFILE_H */
