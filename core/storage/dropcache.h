/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cache=none: file data passes through the page cache of the host but does not stay
 * there.  See dropcache.c.  Only for hostfile.c.
 */

#ifndef QCOW2_DROPCACHE_H
#define QCOW2_DROPCACHE_H

#include <stdint.h>

struct dropcache;

extern struct dropcache *dropcache_new (int fd);        /* NULL on ENOMEM */
extern void dropcache_free (struct dropcache *);        /* may be NULL */

/* To be called after a read, a write and an fdatasync of the descriptor. */
extern void dropcache_read (struct dropcache *, uint64_t offset,
                            uint64_t count);
/* Returns 0, or the errno of a failed writeback that no other call will report: the next
 * sync of the file must fail. */
extern int dropcache_write (struct dropcache *, uint64_t offset,
                            uint64_t count);
extern void dropcache_sync (struct dropcache *);

#endif /* QCOW2_DROPCACHE_H */
