/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done to an image before it is served?
 *
 * Snapshots are made, applied and deleted, and the disk is resized, while nobody uses the
 * image: for each of these it is opened, locked as by a writer, repaired if a crash left
 * it dirty, changed in one step, and closed again.  So each begins with an image
 * whose every number was checked, and serving begins as if nothing had happened.
 *
 * When the disk grows, what was behind its end within its last cluster must not appear.
 * It is zeroed before, with the means that serve writes: that knows about shared,
 * compressed and encrypted clusters and about backing files.  The disk is opened as if
 * it ended with the cluster; nobody can see what is done there.  With preallocation= the
 * zeros are written, which gives the cluster a place of its own.
 *
 * Locks: none; there are no requests yet.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "image/bitmapdir.h"
#include "image/image.h"
#include "check/repair.h"
#include "disk/export.h"
#include "offline/edit.h"
#include "offline/resize.h"
#include "offline/snapedit.h"

struct opened {
  struct image *image;
  struct shadow_image shadow;
};

/* --- opening --- */

static int
check_writable (const struct disk_options *d, const struct image *image, bool resize)
{
  const char *why = NULL;

  if (!hostfile_is_writable (image->file))
    why = "the file is not writable";
  else if (image->header.incompatible & QCOW2_INCOMPAT_CORRUPT)
    why = "the image is marked corrupt";
  else if (!resize && image->header.incompatible & QCOW2_INCOMPAT_DATA_FILE)
    why = "it has an external data file";
  else if (image->data && !hostfile_is_writable (image->data))
    why = "the external data file is not writable";
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
    nbdkit_error ("%s: the image cannot be changed: %s", hostfile_path (image->file),
                  why);
    errno = EPERM;
  }
  return r == 0 ? 0 : -1;
}

static int
repair (struct image *image)
{
  if (!(image->header.incompatible & QCOW2_INCOMPAT_DIRTY))
    return 0;
  return repair_refcounts (image, false) == -1 ? -1
    : health_end_changes (image->health);
}

static int
open_image (const struct disk_options *d, bool resize, struct opened *o)
{
  struct image *image = disk_open_image (d);

  if (image == NULL)
    return -1;
  if (check_writable (d, image, resize) == -1 ||
      image_lock (image, IMAGE_WRITER) == -1 || image_load (image) == -1 ||
      image_read_snapshots (image) == -1 || register_bitmaps (image) == -1 ||
      repair (image) == -1) {
    image_close (image);
    return -1;
  }
  o->image = image;
  o->shadow = (struct shadow_image) {
    .file = image->file, .data = image->data, .header = &image->header,
    .overlap = image->overlap, .snapshots = &image->snapshots, .discard = d->discard,
  };
  return 0;
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
    why = "the disk is larger: use shrink=true to discard the data beyond the new size";
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

/* Zeros that are written, so that the cluster gets a place of its own. */
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

/* A disk that ends at SIZE: what lies behind it in its last cluster.  SET_ASIDE: that
 * gets space as well, as all that is new does with preallocation=. */
static int
zero_tail (const struct disk_options *d, uint64_t size, uint64_t cluster_size,
           bool set_aside)
{
  struct disk_options options = *d;
  struct export *e;
  struct disk *disk;
  uint64_t count;
  int r = -1;

  options.size_at_least = round_up (size, cluster_size);
  count = options.size_at_least - size;
  if (count == 0)
    return 0;
  options.detect_zeroes = DETECT_ZEROES_OFF;
  options.compress = false;
  options.snapshot = NULL;
  if (disk_open (&options, &disk) == -1)
    return -1;
  e = export_open (disk, "", true);
  if (e) {
    if (export_is_writable (e))
      r = set_aside ? write_zeros (e, count, size)
        : export_zero (e, count, size, true, false, false);
    if (export_close (e) == -1)
      r = -1;
  }
  if (disk_close (disk) == -1)
    r = -1;
  if (r == -1)
    nbdkit_error ("%s: cannot zero the end of the last cluster", d->path);
  return r;
}

/* Between the two steps somebody else may have had the image: what was to be a larger
 * disk could cut it off now. */
static int
check_unchanged (const struct disk_options *d, const struct header *h, uint64_t old,
                 uint64_t cluster_size)
{
  if (h->size == old && h->cluster_size == cluster_size)
    return 0;
  nbdkit_error ("%s: resize: another program changed the image meanwhile", d->path);
  errno = EBUSY;
  return -1;
}

/* Twice: to see whether it can be done, and, if REALLY, to do it.  *OLD, *CLUSTER_SIZE:
 * what the image has. */
static int
resize_step (const struct disk_options *d, const struct edit_options *options,
             const struct edit *edit, bool really, struct resize_options *ro,
             uint64_t *old, uint64_t *cluster_size)
{
  struct opened o;
  int r = -1;

  if (open_image (d, true, &o) == -1)
    return -1;
  if (!really) {
    *old = o.shadow.header->size;
    *cluster_size = o.shadow.header->cluster_size;
  }
  ro->preallocation = options->preallocation;
  if ((really ? check_unchanged (d, o.shadow.header, *old, *cluster_size)
       : choose_size (d, edit, options, *old, &ro->size)) == 0 &&
      disk_backing_size (d, o.image, &ro->backing_size) == 0)
    r = really ? resize_image (&o.shadow, ro) : resize_check (&o.shadow, ro);
  image_close (o.image);
  return r;
}

static int
resize (const struct disk_options *d, const struct edit_options *options,
        const struct edit *edit)
{
  struct resize_options ro;
  uint64_t old, cluster_size;

  if (resize_step (d, options, edit, false, &ro, &old, &cluster_size) == -1)
    return -1;
  if (ro.size == old)
    return 0;
  if (ro.size > old &&
      zero_tail (d, old, cluster_size,
                 ro.preallocation != PREALLOCATION_OFF) == -1)
    return -1;
  if (resize_step (d, options, edit, true, &ro, &old, &cluster_size) == -1)
    return -1;
  /* For those who let it grow and don't think of it.  If it fails, we do. */
  if (ro.size < old && zero_tail (d, ro.size, cluster_size, false) == -1)
    nbdkit_debug ("%s: the image was resized despite this error", d->path);
  return 0;
}

/* --- all of them --- */

static int
change_snapshots (const struct disk_options *d, const struct edit *edit)
{
  struct opened o;
  int r = -1;

  if (open_image (d, false, &o) == -1)
    return -1;
  switch (edit->kind) {
  case EDIT_SNAPSHOT_CREATE: r = snapedit_create (&o.shadow, edit->name); break;
  case EDIT_SNAPSHOT_APPLY: r = snapedit_apply (&o.shadow, edit->name); break;
  case EDIT_SNAPSHOT_DELETE: r = snapedit_delete (&o.shadow, edit->name); break;
  case EDIT_RESIZE: break;
  }
  image_close (o.image);
  return r;
}

int
edit_image (const struct disk_options *d, const struct edit_options *options,
            const struct edit *edits, unsigned n)
{
  unsigned i;

  for (i = 0; i < n; i++)
    if ((edits[i].kind == EDIT_RESIZE ? resize (d, options, &edits[i])
         : change_snapshots (d, &edits[i])) == -1)
      return -1;
  return 0;
}
