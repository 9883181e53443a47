/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the header point to another bitmap directory?
 *
 * Specification: "Header extensions", "Bitmaps extension".
 *
 * An extension of the header points to the directory.  It is valid only while the
 * autoclear bit of bitmaps is set.  Both change at once (headerwrite.c).  If there is no
 * space for that, the last bitmaps can still be removed: clearing the bit is enough.
 *
 * Locks: none; no other thread uses the header.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "util/report.h"
#include "format/format.h"
#include "image/bitmapext.h"
#include "image/headerwrite.h"

static int
refuse_bitmaps (struct storage *file, const char *why)
{
  return report_refusal (ENOTSUP, "%s: cannot change bitmaps: %s", storage_path (file),
                         why);
}

static void
set_autoclear (struct headerwrite *w, bool on)
{
  struct qcow2_header *fields = headerwrite_fields (w);
  const uint64_t others =
    get64 (fields->autoclear_features) & ~QCOW2_AUTOCLEAR_BITMAPS;

  fields->autoclear_features = put64 (others | (on ? QCOW2_AUTOCLEAR_BITMAPS : 0));
}

void
bitmapext_put (struct headerwrite *w, uint32_t count, uint64_t size, uint64_t offset,
               bool stays)
{
  const struct qcow2_ext_bitmaps data = {
    .nb_bitmaps = put32 (count), .directory_size = put64 (size),
    .directory_offset = put64 (offset),
  };

  set_autoclear (w, count > 0);
  if (count > 0)
    headerwrite_put_extension (w, QCOW2_EXT_BITMAPS, &data, sizeof data);
  else if (!stays)
    headerwrite_drop_extension (w, QCOW2_EXT_BITMAPS);
}

int
bitmapext_check (struct storage *file, const struct header *h, bool none)
{
  struct headerwrite *w;
  bool fits;

  if (h->version < 3)
    return refuse_bitmaps (file, "only images of version 3 can have bitmaps");
  w = headerwrite_new (file, h);
  if (w == NULL)
    return -1;
  /* Which fields change together with them is not known yet: ask as if all bytes did. */
  headerwrite_fields (w)->l1_table_offset = put64 (~h->l1_offset);
  bitmapext_put (w, none ? 0 : UINT32_MAX, UINT64_MAX, UINT64_MAX, true);
  fits = headerwrite_fits (w);
  headerwrite_free (w);
  return fits ? 0 : refuse_bitmaps (file, "the header has no space for the bitmaps "
                                    "extension");
}
