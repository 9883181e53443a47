/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a header stop naming a backing file?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions".
 *
 * Two things go at once (headerwrite.c): the name, and the extension with the format's
 * name.  If there is no room for that, only the name goes: a format without a file means
 * nothing.
 *
 * Locks: none; the writer's lock is held, and nobody else writes these bytes.
 */

#include <config.h>

#include "format/format.h"
#include "image/backlink.h"
#include "image/headerwrite.h"

int
backlink_remove (struct hostfile *file, const struct header *h)
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
