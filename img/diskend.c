/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is an image read to copy or compare it?
 *
 * A qcow2 image as the export that a client of the plugin would get; a raw file, a device
 * or an NBD export as it is.
 *
 * Locks: none.
 */

#include <config.h>

#include "util/cleanup.h"
#include "disk/export.h"
#include "img/diskend.h"
#include "img/rawdisk.h"

static int
open_raw (const struct imagefile *f, const char *snapshot, struct diskend *d)
{
  if (snapshot && imagefile_need_qcow2 (f, "internal snapshots") == -1)
    return -1;
  d->raw = rawdisk_open (f);
  if (d->raw == NULL)
    return -1;
  d->end = copy_storage (d->raw, false);
  return 0;
}

int
diskend_open (const struct imagefile *f, const char *snapshot, struct diskend *d)
{
  struct disk_options options = f->options;

  *d = (struct diskend) { .raw = NULL };
  if (f->raw)
    return open_raw (f, snapshot, d);
  options.snapshot = snapshot;
  if (disk_open (&options, &d->disk) == 0 &&
      (d->export = export_open (d->disk, "", false)) != NULL) {
    disk_allow_ahead (d->disk);
    d->end = copy_export (d->disk, d->export);
    return 0;
  }
  diskend_close (d);
  *d = (struct diskend) { .raw = NULL };
  return -1;
}

int
diskend_use_layer (struct diskend *d)
{
  export_close (d->export);     /* nothing was written */
  d->export = export_open (d->disk, "layer:0", false);
  if (d->export == NULL)
    return -1;
  d->end = copy_export (d->disk, d->export);
  return 0;
}

void
diskend_close (const struct diskend *d)
{
  KEEP_ERRNO_FOR_BLOCK;

  storage_close (d->raw);
  if (d->export)
    export_close (d->export);   /* nothing was written */
  disk_close (d->disk);
}
