/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Small writes to files that the host caches in large folios.  See folios.c.  Only for
 * hostfile.c.
 */

#ifndef QCOW2_FOLIOS_H
#define QCOW2_FOLIOS_H

#include <stdint.h>

/* How slow writes of more bytes are does not matter. */
#define FOLIOS_SMALL 65536u

struct folios;

/* For FD, a regular file of SIZE bytes that is open for reading and writing.  NULL if
 * small writes to it are not slow, and on ENOMEM. */
extern struct folios *folios_new (int fd, uint64_t size);
extern void folios_free (struct folios *);      /* may be NULL */

/* To be called before each write of up to FOLIOS_SMALL bytes at OFFSET of the file.
 * Changes neither its bytes nor errno. */
extern void folios_before_write (struct folios *, uint64_t offset);

#endif /* QCOW2_FOLIOS_H */
