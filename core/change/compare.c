/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do two disks show the same, and where do they first differ?
 *
 * difference.c knows that; here the other image is opened.  The result is in a report, and
 * not in the exit status: that disks differ is no error.
 *
 * A client could do the same over NBD.  But then each byte is copied four times more,
 * through two sockets.
 *
 * Locks: none; the exports have theirs.
 */

#include <config.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "storage/reportfile.h"
#include "copy/difference.h"
#include "disk/export.h"
#include "change/compare.h"

static const struct report_kind kind = { "compare", { "{\n  \"compared-with\": " } };

/* --- the report --- */

struct result {
  const char *with;
  uint64_t sizes[2], difference;
};

static int
print (FILE *fp, const void *opaque)
{
  const struct result *r = opaque;

  return jsontext_write (jsontext_object (
      { "compared-with", jsontext_string (r->with) },
      { "virtual-size", jsontext_number (r->sizes[0]) },
      { "other-virtual-size", jsontext_number (r->sizes[1]) },
      { "difference",
        r->difference == UINT64_MAX ? json_null () : jsontext_number (r->difference) }),
    fp);
}

/* --- the other image --- */

/* What is opened of it. */
struct other {
  struct storage *raw;          /* or a disk, and its export */
  struct disk *disk;
  struct export *export;
};

static int
open_other (const struct disk_options *o, bool raw, struct other *other,
            struct copy_end *end)
{
  struct storage_options file = disk_chain_options (o).image.file;

  file.try_writable = false;
  if (raw) {
    if (storage_open (o->path, &file, &other->raw) == -1)
      return -1;
    *end = copy_storage (other->raw, false);
    return 0;
  }
  if (disk_open (o, &other->disk) == -1)
    return -1;
  other->export = export_open (other->disk, "", false);
  if (other->export == NULL)
    return -1;
  *end = copy_export (other->disk, other->export);
  return 0;
}

/* Keeps errno.  (Nothing was written.) */
static void
close_other (const struct other *other)
{
  KEEP_ERRNO_FOR_BLOCK;

  storage_close (other->raw);
  if (other->export)
    export_close (other->export);
  disk_close (other->disk);
}

/* --- both --- */

int
compare_check (const struct compare *compare)
{
  return reportfile_check (&kind, compare->report, false);
}

static int
compare_with (const struct copy_end *a, const struct copy_end *b, const char *path,
              const struct compare *compare, const struct chunks_watch *watch,
              uint64_t *difference)
{
  const struct chunks_words words = { .path = path, .what = "comparing" };
  struct result result = { compare->with, { a->size, b->size }, UINT64_MAX };
  struct difference d;
  const int r = difference_find (a, b, false, &words, watch, &d);

  *difference = result.difference = d.at;
  return r == -1 ? -1 : reportfile_write (&kind, compare->report, true, print, &result);
}

int
compare_disk (struct disk *d, const struct disk_options *o, const struct compare *compare,
              const struct chunks_watch *watch, uint64_t *difference)
{
  struct disk_options options = disk_options_meanwhile (o, compare->with);
  struct export *const export = export_open (d, "", false);
  struct other other = { .raw = NULL };
  struct copy_end a, b;
  int r;

  options.secret = o->secret;
  *difference = UINT64_MAX;
  if (export == NULL)
    return -1;
  a = copy_export (d, export);
  r = open_other (&options, compare->raw, &other, &b);
  if (r == 0)
    r = compare_with (&a, &b, o->path, compare, watch, difference);
  close_other (&other);
  KEEP_ERRNO_FOR_BLOCK;
  export_close (export);
  return r;
}
