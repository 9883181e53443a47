/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a header stop naming a backing file?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions".
 *
 * The name, and the extension with the name of the format, are removed at once
 * (headerwrite.c).  If there is no space for that, only the name is removed: a format
 * without a file has no meaning.
 *
 * Locks: none; the caller holds the writer's lock on the image, and no other thread
 * writes these bytes.
 */

#include <config.h>

#include "format/format.h"
#include "image/backlink.h"
#include "image/headerwrite.h"

int
backlink_remove (struct storage *file, const struct header *h)
{
  struct headerwrite *w = headerwrite_new (file, h);
  int r;

  if (w == NULL)
    return -1;
  headerwrite_drop_backing (w);
  headerwrite_drop_extension (w, QCOW2_EXT_BACKING_FORMAT);
  if (!headerwrite_fits (w)) {
    headerwrite_free (w);
    w = headerwrite_new (file, h);
    if (w == NULL)
      return -1;
    headerwrite_drop_backing (w);
  }
  r = headerwrite_commit (w, NULL);
  headerwrite_free (w);
  return r;
}
