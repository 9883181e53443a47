/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is an open disk an end of a copy?
 *
 * As a client would use it, without a socket: so all that its options say is true of the
 * copy, too (compression, bitmaps, snapshots, encryption, what happens without space).
 *
 * Locks: none; the export has its own.
 */

#include <config.h>

#include "disk/export.h"
#include "copy/copyend.h"

/* Whole clusters of any size, so that they are compressed, and few claims and tables are
 * needed. */
#define PIECE (UINT64_C (2) << 20)

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  (void) known;
  return export_extents (e->export, x->len, at, true, extent_keep, x);
}

static int
read_export (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  return export_read (e->export, buf, count, at);
}

static int
write_export (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  return export_write (e->export, buf, count, at, false);
}

static int
zero_export (const struct copy_end *e, uint64_t count, uint64_t at)
{
  return export_zero (e->export, count, at, REQUEST_MAY_TRIM, false);
}

static int
sync_export (const struct copy_end *e)
{
  return export_flush (e->export);
}

struct copy_end
copy_export (struct disk *d, struct export *x)
{
  static const struct copy_ops ops = {
    .extent = extent, .read = read_export, .write = write_export, .zero = zero_export,
    .sync = sync_export,
  };

  DISK_SECTION_FOR_BLOCK now = disk_enter (d);

  return (struct copy_end) {
    .ops = &ops, .export = x, .size = export_size (x), .piece = PIECE,
    .remote = layers_are_remote (now.view->layers),
  };
}
