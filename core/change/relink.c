/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image in use get another name for its backing file?
 *
 * The header changes; the disk goes on with the files that it has opened.  Whoever opens
 * the image next uses the file of that name, which has to have the same contents: a file
 * that was moved or copied.  Its format is that of the file that is in use.  So whether a
 * change that failed is in the file makes no difference to the disk.
 *
 * A name that leads to the image itself is refused: nothing could open the chain again.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include "util/report.h"
#include "image/backingref.h"
#include "change/edit.h"
#include "change/relink.h"

struct change {
  struct disk *disk;
  const char *name;
};

static int
make (void *opaque, struct image *image)
{
  const struct change *c = opaque;
  const struct layers *layers = disk_inside (c->disk).view->layers;
  const struct backingref link = {
    .name = c->name,
    .format = c->name[0] == '\0' ? NULL : layers_header (layers, 1) ? "qcow2" : "raw",
  };

  return (c->name[0] && edit_check_backing (disk_get_options (c->disk), &link,
                                            image->file) == -1) ||
    backingref_check (image->file, &image->header, &link) == -1 ? -1
    : backingref_change (image->file, &image->header, image->health, &link);
}

int
relink_disk (struct disk *disk, const char *name)
{
  struct change c = { disk, name };
  const struct disk_change dc = { .opaque = &c, .make = make, .data_file = true };

  const int r = disk_change (disk, &dc);

  if (r == 0)
    report_event (EVENT_CHANGED, disk_get_options (disk)->path,
                  name[0] ? "the header names another backing file"
                  : "the header names no backing file any more");
  return r;
}
