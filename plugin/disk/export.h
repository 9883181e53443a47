/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a client is served: one export of a disk, from when the client comes until it
 * leaves.
 *
 *   ""            the active disk: the only one that can be written
 *   NAME or ID    an internal snapshot
 *   layer:N       what layer N of the chain (0: the image itself, 1: its backing file
 *                 ...) holds; the rest is a hole
 *   bitmap:NAME   the active disk, as far as that bitmap says that it has changed; the
 *                 rest is a hole
 *
 * exports.c says which there are, export.c lets clients come and go, serve.c carries out
 * their requests, and exportactive.c and its neighbours say what is special in each kind.
 */

#ifndef QCOW2_EXPORT_H
#define QCOW2_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "request/request.h"
#include "disk/disk.h"

struct export;

/* --- exports.c --- */

/* NBD carries names of so many bytes, in UTF-8. */
#define EXPORTS_MAX_NAME 4096
extern bool exports_may_list (const char *name);

/* Calls EMIT for each export that a client can be told of, with a name that means this
 * one and no other, until EMIT returns other than 0, which is returned.  *UNLISTED: how
 * many were left out, since there is no such name. */
typedef int (*export_fn) (void *opaque, const char *name, const char *description);
extern int exports_list (const struct disk *, export_fn emit, void *opaque,
                         unsigned *unlisted);

/* --- export.c --- */

/* A client comes.  WRITABLE: it wants to write; export_is_writable says whether it may.
 * (The first one that may makes the disk writable: disk_connect.)  NULL: there is no such
 * export, or it cannot be served (reported). */
extern struct export *export_open (struct disk *, const char *name, bool writable);
/* The client leaves; none of its requests may be running.  -1: it was the last one that
 * could write, and the image could not be brought to rest (reported).  The memory is
 * freed in any case. */
extern int export_close (struct export *);

extern bool export_is_writable (const struct export *);
extern uint64_t export_size (const struct export *);            /* bytes */
/* A write of less costs more: the size of a cluster or subcluster, bytes.  (With
 * compress=on less than a cluster can't be compressed.) */
extern uint64_t export_unit_size (const struct export *);
/* Belongs to the export. */
extern const char *export_description (const struct export *);

/* --- serve.c: requests; see request.h.  Any thread --- */

/* FUA: durable on return.  Those with no data to carry may be about all of the disk; -1
 * with ESHUTDOWN: given up, perhaps half done, since the client has gone. */
extern int export_read (struct export *, void *buf, uint64_t count, uint64_t offset);
extern int export_cache (struct export *, uint64_t count, uint64_t offset);
extern int export_extents (struct export *, uint64_t count, uint64_t offset, bool one,
                           extent_fn emit, void *opaque);
extern int export_flush (struct export *);

/* Only if it is writable. */
extern int export_write (struct export *, const void *buf, uint64_t count,
                         uint64_t offset, bool fua);
extern int export_trim (struct export *, uint64_t count, uint64_t offset, bool fua);
/* FLAGS: of REQUEST_*.  With REQUEST_FAST, ENOTSUP (not reported) if it would not be
 * faster than to write. */
extern int export_zero (struct export *, uint64_t count, uint64_t offset, unsigned flags,
                        bool fua);

#endif /* QCOW2_EXPORT_H */
