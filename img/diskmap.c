/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where is the data of a disk, of whatever format?
 *
 * The core goes through the tables of qcow2 images (chainmap.c there), the host knows the
 * holes of raw files (rawdisk.c).  Guest data is not read, so no passphrase is needed.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/printable.h"
#include "util/report.h"
#include "image/snapshot.h"
#include "disk/disk.h"
#include "img/diskmap.h"
#include "img/rawdisk.h"

/* NAME: of the snapshot of IMAGE, or NULL. */
static int
each_of_layers (struct image *image, struct layers *layers, const char *name,
                int (*fn) (void *, const struct map_entry *), void *opaque)
{
  const struct snapshot *s = name ? snapshots_find (&image->snapshots, name) : NULL;
  char text[PRINTABLE_SIZE (64)];

  if (name && s == NULL)
    return report_refusal (ENOENT, "%s: there is no snapshot \"%s\"",
                           storage_path (image->file),
                           printable (name, strnlen (name, 64), text, sizeof text));
  if (s && snapshots_differ (storage_path (image->file), &image->snapshots, name))
    return -1;
  if (s && snapshot_check_table (storage_path (image->file), &image->header, s) == -1)
    return -1;
  return chainmap_each (layers, s, fn, opaque);
}

static int
each_of_qcow2 (const struct imagefile *f, const char *snapshot,
               int (*fn) (void *, const struct map_entry *), void *opaque)
{
  struct disk_options options = f->options;
  struct image *image;
  struct layers *layers = NULL;
  int r = -1;

  options.secret.unneeded = true;
  image = disk_open_image (&options);
  if (image && image_load (image) == 0 &&
      (snapshot == NULL || image_read_snapshots (image) == 0))
    layers = disk_open_layers (&options, image);
  if (layers)
    r = each_of_layers (image, layers, snapshot, fn, opaque);
  layers_free (layers);
  image_close (image);
  return r;
}

int
diskmap_each (const struct imagefile *f, const char *snapshot,
          int (*fn) (void *, const struct map_entry *), void *opaque)
{
  struct storage *s;
  int r;

  if (!f->raw)
    return each_of_qcow2 (f, snapshot, fn, opaque);
  if (snapshot && imagefile_need_qcow2 (f, "internal snapshots") == -1)
    return -1;
  s = rawdisk_open (f);
  r = s ? rawdisk_each (s, fn, opaque) : -1;
  storage_close (s);
  return r;
}
