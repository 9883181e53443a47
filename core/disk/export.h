/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a client served?  One export of a disk, from when the client comes until it
 * leaves.
 *
 *   ""            the active disk: the only export that can be written
 *   NAME or ID    an internal snapshot
 *   layer:N       the contents of layer N of the chain (0: the image itself, 1: its
 *                 backing file ...); the rest is a hole
 *   bitmap:NAME   the parts of the active disk that have changed according to that
 *                 bitmap; the rest is a hole
 *
 * exports.c knows which exports there are, export.c lets clients come and leave, and
 * serve.c carries out their requests.  exportactive.c and the other files of kinds
 * implement what is special to each kind.
 */

#ifndef QCOW2_EXPORT_H
#define QCOW2_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "request/request.h"
#include "disk/disk.h"

struct export;

/* --- exports.c --- */

/* The maximum length of a name in NBD, in bytes of UTF-8. */
#define EXPORTS_MAX_NAME 4096
/* Names no disk: the front end may use it.  (In a directory no image has a name like
 * this, and a snapshot with this name is listed by its ID.) */
#define EXPORTS_HEALTH ".health"
extern bool exports_may_list (const char *name);

/* --- export.c --- */

/* Calls EMIT for each export that can be listed to a client, with a name that means this
 * export and no other, until EMIT returns a value other than 0, which is returned.
 * *UNLISTED is the number of exports that were left out because they have no such
 * name. */
typedef int (*export_fn) (void *opaque, const char *name, const char *description);
extern int exports_list (struct disk *, export_fn emit, void *opaque,
                         unsigned *unlisted);

/* A client comes.  WRITABLE: it wants to write; export_is_writable says whether it may.
 * (The first client that may makes the disk writable: disk_connect.)  NULL: there is no
 * such export, or it cannot be served (reported). */
extern struct export *export_open (struct disk *, const char *name, bool writable);
/* The client leaves; none of its requests may be running.  Returns 0, or -1 if it was the
 * last one that may write, and the image could not be brought to rest (reported).  The
 * memory is freed in any case. */
extern int export_close (struct export *);

extern bool export_is_writable (const struct export *);
extern uint64_t export_size (const struct export *);            /* bytes */
/* Smaller writes cost more: the size of a cluster or subcluster, in bytes.  (With
 * compress=on, writes of less than a cluster cannot be compressed.) */
extern uint64_t export_unit_size (const struct export *);
/* Belongs to the export. */
extern const char *export_description (const struct export *);

/* --- serve.c: requests; see request.h.  Any thread --- */

/* FUA: durable on return.  Requests that carry no data may cover all of the disk.  They
 * return -1 with ESHUTDOWN if they were given up, perhaps half done, because the client
 * has gone. */
extern int export_read (struct export *, void *buf, uint64_t count, uint64_t offset);
extern int export_cache (struct export *, uint64_t count, uint64_t offset);
extern int export_extents (struct export *, uint64_t count, uint64_t offset, bool one,
                           extent_fn emit, void *opaque);
extern int export_flush (struct export *);

/* Only if the export is writable. */
extern int export_write (struct export *, const void *buf, uint64_t count,
                         uint64_t offset, bool fua);
extern int export_trim (struct export *, uint64_t count, uint64_t offset, bool fua);
/* FLAGS: REQUEST_*.  With REQUEST_FAST, -1 with ENOTSUP (not reported) if this would not
 * be faster than writing. */
extern int export_zero (struct export *, uint64_t count, uint64_t offset, unsigned flags,
                        bool fua);

#endif /* QCOW2_EXPORT_H */
