/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a header come to name another backing file, or none?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions".
 *
 * The name, and the extension with the name of the format, change at once
 * (headerwrite.c).  If there is no space to remove the extension as well, only the name
 * is removed: a format without a file has no meaning.
 *
 * Locks: none; the caller holds the writer's lock on the image, and no other thread
 * writes these bytes.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/report.h"
#include "format/format.h"
#include "image/backingref.h"
#include "image/headerwrite.h"

/* Plans the change; NULL: reported. */
static struct headerwrite *
plan (struct storage *file, const struct header *h, const struct backingref *to)
{
  struct headerwrite *w = headerwrite_new (file, h);

  if (w == NULL)
    return NULL;
  headerwrite_drop_foreign (w);
  headerwrite_set_backing (w, to->name);
  if (to->format)
    headerwrite_put_extension (w, QCOW2_EXT_BACKING_FORMAT, to->format,
                               strlen (to->format));
  else
    headerwrite_drop_extension (w, QCOW2_EXT_BACKING_FORMAT);
  if (to->format || headerwrite_fits (w))
    return w;
  headerwrite_free (w);
  w = headerwrite_new (file, h);
  if (w) {
    headerwrite_drop_foreign (w);
    headerwrite_set_backing (w, to->name);
  }
  return w;
}

/* What a header with that name would be refused for (header.c). */
static int
check_name (struct storage *file, const char *name)
{
  const char *control = header_find_control (name, strlen (name));

  if (strlen (name) > QCOW2_MAX_BACKING_NAME)
    return report_refusal (ENAMETOOLONG, "%s: the name of the backing file has more than "
                           "%d bytes", storage_path (file), QCOW2_MAX_BACKING_NAME);
  return control == NULL ? 0
    : report_refusal (EINVAL, "%s: the name of the backing file contains the control "
                      "character 0x%02x", storage_path (file), (unsigned char) *control);
}

int
backingref_check (struct storage *file, const struct header *h,
                  const struct backingref *to)
{
  struct headerwrite *w;
  bool fits;

  if (to->name && check_name (file, to->name) == -1)
    return -1;
  w = plan (file, h, to);
  if (w == NULL)
    return -1;
  fits = headerwrite_fits (w);
  headerwrite_free (w);
  if (fits)
    return 0;
  return report_refusal (ENOSPC, "%s: the header has no space for the name of that "
                         "backing file", storage_path (file));
}

int
backingref_change (struct storage *file, const struct header *h, struct health *health,
                   const struct backingref *to)
{
  struct headerwrite *w = plan (file, h, to);
  bool begun;
  int r;

  if (w == NULL)
    return -1;
  r = headerwrite_commit (w, &begun);
  headerwrite_free (w);
  if (r == -1 && begun)
    health_fail (health, "the image names either its old or its new backing file");
  return r;
}
