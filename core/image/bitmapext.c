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
refuse (struct storage *file, const char *why)
{
  report_error ("%s: cannot change bitmaps: %s", storage_path (file), why);
  errno = ENOTSUP;
  return -1;
}

static void
set_autoclear (struct headerwrite *w, bool on)
{
  struct qcow2_header *fields = headerwrite_fields (w);
  const uint64_t others =
    get64 (fields->autoclear_features) & ~QCOW2_AUTOCLEAR_BITMAPS;

  fields->autoclear_features = put64 (others | (on ? QCOW2_AUTOCLEAR_BITMAPS : 0));
}

/* Plans the change.  NULL if it is not possible (reported).  DATA NULL: no bitmaps. */
static struct headerwrite *
plan (struct storage *file, const struct header *h,
      const struct qcow2_ext_bitmaps *data)
{
  struct headerwrite *w;

  if (h->version < 3) {
    refuse (file, "only images of version 3 can have bitmaps");
    return NULL;
  }
  w = headerwrite_new (file, h);
  if (w == NULL)
    return NULL;
  set_autoclear (w, data != NULL);
  if (data)
    headerwrite_put_extension (w, QCOW2_EXT_BITMAPS, data, sizeof *data);
  else
    headerwrite_drop_extension (w, QCOW2_EXT_BITMAPS);
  if (headerwrite_fits (w))
    return w;

  headerwrite_free (w);
  if (data) {
    refuse (file, "the header has no space for the bitmaps extension");
    return NULL;
  }
  w = headerwrite_new (file, h);
  if (w)
    set_autoclear (w, false);
  return w;
}

int
bitmapext_check (struct storage *file, const struct header *h, bool none)
{
  struct qcow2_ext_bitmaps data;
  struct headerwrite *w;

  /* The place of the directory is not known yet: plan as if all bytes changed. */
  memset (&data, ~0, sizeof data);
  w = plan (file, h, none ? NULL : &data);
  headerwrite_free (w);
  return w ? 0 : -1;
}

int
bitmapext_set (struct storage *file, struct header *h, uint32_t count,
               uint64_t size, uint64_t offset, bool *begun)
{
  const struct qcow2_ext_bitmaps data = {
    .nb_bitmaps = put32 (count), .directory_size = put64 (size),
    .directory_offset = put64 (offset),
  };
  struct headerwrite *w = plan (file, h, count ? &data : NULL);
  int r = -1;

  *begun = false;
  if (w)
    r = headerwrite_commit (w, begun);
  if (r == 0) {
    /* (Others read the other bits at the same time.) */
    __atomic_store_n (&h->autoclear, get64 (headerwrite_fields (w)->autoclear_features),
                      __ATOMIC_RELAXED);
    h->has_bitmaps = count != 0;
    h->bitmaps.count = count;
    h->bitmaps.dir_size = size;
    h->bitmaps.dir_offset = offset;
  }
  headerwrite_free (w);
  return r;
}
