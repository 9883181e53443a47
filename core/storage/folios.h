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

/* To be called before each write of COUNT bytes, up to FOLIOS_SMALL, at OFFSET of the
 * file; and after one that has succeeded and is not durable yet, with what that returned,
 * if it is not FOLIOS_NOWHERE.  They change neither the file's bytes nor errno. */
extern uint64_t folios_before_write (struct folios *, uint64_t offset, uint64_t count);
extern void folios_after_write (struct folios *, uint64_t look);

#define FOLIOS_NOWHERE UINT64_MAX

#endif /* QCOW2_FOLIOS_H */
