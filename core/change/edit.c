/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which changes are made to an image before it is served?
 *
 * Snapshots are created, applied and deleted, and the disk is resized, while nothing else
 * uses the image: it is locked as by a writer from the first change until it is closed.
 * For each change, the image is read again, put in order if a crash left it marked, and
 * changed in one step.  So each change starts with an image that has been checked
 * completely, and serving starts as if nothing had happened.
 *
 * When the disk grows, old data past its end, within its last cluster, must not become
 * visible.  It is zeroed before, by the same code that serves writes, which handles
 * shared, compressed and encrypted clusters and backing files.  For this, the image is
 * opened as a disk that ends with the cluster; no client sees it.  With preallocation=
 * the zeros are written, so that the cluster gets allocated.
 *
 * Locks: none; there are no requests yet.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "image/bitmapdir.h"
#include "image/filename.h"
#include "image/image.h"
#include "check/recover.h"
#include "disk/export.h"
#include "change/edit.h"
#include "change/resize.h"
#include "change/snapedit.h"

/* --- before each change --- */

static int
check_writable (const struct disk_options *d, const struct image *image, bool data_file)
{
  const char *why = image_why_readonly (image);

  if (!data_file && image->header.incompatible & QCOW2_INCOMPAT_DATA_FILE)
    why = "it has an external data file";
  else if (why == NULL && image->header.incompatible & QCOW2_INCOMPAT_CORRUPT)
    why = "the image is marked corrupt";
  if (why == NULL)
    return 0;
  nbdkit_error ("%s: the image cannot be changed: %s", d->path, why);
  errno = EPERM;
  return -1;
}

static int
register_bitmaps (struct image *image)
{
  char why[BITMAPDIR_WHY];
  struct bitmapdir dir;
  int r;

  if (!image->header.has_bitmaps)
    return 0;
  r = bitmapdir_read (image->file, &image->header, image->overlap, &dir, why);
  if (r == 0)
    bitmapdir_free (&dir);
  if (r == 1) {
    nbdkit_error ("%s: the image cannot be changed: %s", storage_path (image->file),
                  why);
    errno = EPERM;
  }
  return r == 0 ? 0 : -1;
}

int
edit_begin (struct image *image, const struct disk_options *d, bool data_file)
{
  return check_writable (d, image, data_file) == -1 ||
    image_lock (image, IMAGE_WRITER) == -1 || image_reload (image) == -1 ||
    register_bitmaps (image) == -1 || recover_image (image) == -1 ? -1 : 0;
}

/* --- names --- */

static bool
is_file (const struct disk_options *d, const char *path, const struct storage *file)
{
  const struct storage_options options = { .hooks = d->hooks };
  struct storage *other;
  bool same;

  if (nbduri_is (path))
    return strcmp (path, storage_path (file)) == 0;
  if (storage_open (path, &options, &other) == -1)
    return false;
  same = storage_same (other, file);
  storage_close (other);
  return same;
}

bool
edit_name_means (const struct disk_options *d, const char *name,
                 const struct storage *file)
{
  CLEANUP_FREE char *path = NULL;
  const char *told;
  bool same;

  report_silence (true);
  path = filename_of_backing (d->path, name, &d->rules, &told);
  same = path && is_file (d, path, file);
  report_silence (false);
  return same;
}

/* --- resize --- */

const char *
edit_choose_size (const struct edit *edit, const struct edit_options *options,
                  uint64_t old, uint64_t *size)
{
  const char *why = NULL;

  *size = edit->size;
  if (edit->sign > 0 && !add_fits (old, edit->size, size))
    why = "the new size is too large";
  else if (edit->sign == 0 ? edit->size == 0
           : edit->sign < 0 && edit->size >= old)
    why = "the new size must be greater than 0";
  else if (edit->sign < 0)
    *size = old - edit->size;
  if (why == NULL && *size % 512 != 0)
    why = "the new size must be a multiple of 512";
  if (why == NULL && *size < old && !options->shrink)
    why = remedy (REMEDY_SHRINK);
  return why;
}

static int
choose_size (const struct disk_options *d, const struct edit *edit,
             const struct edit_options *options, uint64_t old, uint64_t *size)
{
  const char *why = edit_choose_size (edit, options, old, size);

  if (why == NULL)
    return 0;
  nbdkit_error ("%s: resize: %s", d->path, why);
  errno = EINVAL;
  return -1;
}

/* Writes zeros, so that the cluster gets allocated. */
static int
write_zeros (struct export *e, uint64_t count, uint64_t offset)
{
  CLEANUP_FREE void *zeros = calloc (1, count);

  if (zeros == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  return export_write (e, zeros, count, offset, false);
}

/* Zeroes the last cluster from SIZE on, for a disk that ends at SIZE.  SET_ASIDE: also
 * allocates it, as preallocation= does with all added space. */
static int
zero_tail (struct image *image, const struct disk_options *d, uint64_t size,
           bool set_aside)
{
  struct disk_options options = *d;
  struct export *e;
  struct disk *disk;
  uint64_t count;
  int r = -1;

  options.size_at_least = round_up (size, image->header.cluster_size);
  count = options.size_at_least - size;
  options.unrecorded = true;
  if (count == 0)
    return 0;
  options.detect_zeroes = DETECT_ZEROES_OFF;
  options.compress = false;
  options.snapshot = NULL;
  if (image_reload (image) == -1 || disk_open_on (&options, image, &disk) == -1)
    return -1;
  e = export_open (disk, "", true);
  if (e) {
    if (export_is_writable (e))
      r = set_aside ? write_zeros (e, count, size)
        : export_zero (e, count, size, REQUEST_MAY_TRIM, false);
    if (export_close (e) == -1)
      r = -1;
  }
  if (disk_close (disk) == -1)
    r = -1;
  if (r == -1)
    nbdkit_error ("%s: cannot zero the end of the last cluster", d->path);
  return r;
}

/* FN: resize_check or resize_image.  The backing chain must not change meanwhile. */
static int
over_backing (struct image *image, const struct disk_options *d,
              struct resize_options *ro,
              int (*fn) (const struct image *, const struct resize_options *))
{
  struct layers *layers = disk_open_layers (d, image);
  int r;

  if (layers == NULL)
    return -1;
  ro->backing_size = layers_count (layers) == 1 ? 0
    : layers_header (layers, 1) ? layers_size (layers, 1)
    : storage_size (layers_file (layers, 1));
  r = fn (image, ro);
  layers_free (layers);
  return r;
}

static int
resize (struct image *image, const struct disk_options *d,
        const struct edit_options *options, const struct edit *edit)
{
  struct resize_options ro = {
    .preallocation = options->preallocation, .discard = d->discard,
  };
  uint64_t old;

  if (edit_begin (image, d, true) == -1)
    return -1;
  old = image->header.size;
  if (choose_size (d, edit, options, old, &ro.size) == -1 ||
      over_backing (image, d, &ro, resize_check) == -1)
    return -1;
  if (ro.size == old)
    return 0;
  if (ro.size > old &&
      (zero_tail (image, d, old, ro.preallocation != PREALLOCATION_OFF) == -1 ||
       edit_begin (image, d, true) == -1))
    return -1;
  if (over_backing (image, d, &ro, resize_image) == -1)
    return -1;
  /* For programs that grow the disk later and do not zero it.  If this fails, nothing is
   * lost: we zero it again when we grow the disk. */
  if (ro.size < old && zero_tail (image, d, ro.size, false) == -1)
    nbdkit_debug ("%s: the image was resized despite this error", d->path);
  return 0;
}

/* --- all changes --- */

static int
change_snapshots (struct image *image, const struct disk_options *d,
                  const struct edit *edit)
{
  if (edit_begin (image, d, false) == -1)
    return -1;
  switch (edit->kind) {
  case EDIT_SNAPSHOT_CREATE: return snapedit_create (image, d->discard, edit->name);
  case EDIT_SNAPSHOT_APPLY: return snapedit_apply (image, d->discard, edit->name);
  case EDIT_SNAPSHOT_DELETE: return snapedit_delete (image, d->discard, edit->name);
  case EDIT_RESIZE: break;
  }
  return -1;
}

int
edit_image (struct image *image, const struct disk_options *d,
            const struct edit_options *options, const struct edit *edits, unsigned n)
{
  unsigned i;

  for (i = 0; i < n; i++)
    if ((edits[i].kind == EDIT_RESIZE ? resize (image, d, options, &edits[i])
         : change_snapshots (image, d, &edits[i])) == -1)
      return -1;
  return 0;
}
