/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do the snapshots and the size of a disk change?
 *
 * Snapshots are created, applied and deleted, and the disk is resized, each in a change
 * of the whole disk (disk_change).
 *
 * When the disk grows, old data past its end, within its last cluster, must not become
 * visible.  It is zeroed before, by the same code that serves writes, which handles
 * shared, compressed and encrypted clusters and backing files.  For this, the disk is
 * seen as one that ends with the cluster.  With preallocation= the zeros are written, so
 * that the cluster gets allocated.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "image/filename.h"
#include "mapping/chain.h"
#include "change/edit.h"
#include "change/resize.h"
#include "change/snapahead.h"
#include "change/snapedit.h"

struct change {
  struct disk *disk;
  const struct disk_options *d;
  const struct edit *edit;
  const struct edit_options *options;
  bool shrinks, ends_within;    /* the disk becomes smaller; and then ends in a cluster */
  uint64_t size;                /* of the disk afterwards, in bytes */
  uint64_t end;                 /* of the file before, in bytes */
  struct snapahead *ahead;      /* NULL: nothing was done beforehand */
  struct shadow *done;          /* NULL: it was not necessary */
};

/* --- names --- */

bool
edit_name_means (const struct disk_options *d, const char *image, const char *name,
                 const struct storage *file)
{
  const bool same = filename_means (image, name, &d->rules, d->hooks, file);

  if (!same && errno == ENOMEM)
    report_error ("%s: cannot look for the file that its header names: %m", image);
  return same;
}

/* Is FILE one of those that the chain of that name leads to?  What cannot be looked at
 * does not, nor does an NBD server, which might wait for this change. */
static bool
leads_to (const struct disk_options *d, const struct backingref *link,
          const struct storage *file, unsigned most)
{
  const char *told;
  CLEANUP_FREE char *path = filename_of_backing (d->path, link->name, &d->rules, &told);
  struct disk_options o = *d;
  struct image *image;
  struct backingref next;
  bool r;

  if (path && filename_is_file (path, d->hooks, file))
    return true;
  if (path == NULL || nbduri_is (path) || most == 0 ||
      (link->format && strcmp (link->format, "raw") == 0))
    return false;
  o.path = path;
  o.in_dir.name = NULL;
  image = disk_open_header (&o);
  if (image == NULL)
    return false;
  next = (struct backingref) { image->header.backing_file, image->header.backing_format };
  r = next.name && leads_to (&o, &next, file, most - 1);
  image_close (image);
  return r;
}

int
edit_check_backing (const struct disk_options *d, const struct backingref *link,
                    const struct storage *file)
{
  bool loop;

  report_silence (true);
  loop = leads_to (d, link, file, CHAIN_MAX_LAYERS);
  report_silence (false);
  if (!loop)
    return 0;
  return report_refusal (ELOOP, "%s: the image cannot be its own backing file", d->path);
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
choose_size (const struct change *c, uint64_t old, uint64_t *size)
{
  const char *why = edit_choose_size (c->edit, c->options, old, size);

  if (why == NULL)
    return 0;
  return report_refusal (EINVAL, "%s: resize: %s", c->d->path, why);
}

/* What is to be done with V, if that is possible. */
static int
plan (const struct change *c, const struct view *v, struct resize_options *ro)
{
  struct layers *const layers = v->layers;

  *ro = (struct resize_options) {
    .preallocation = c->options->preallocation, .discard = c->d->discard,
    .watch = c->options->watch,
    .bitmaps = bitmap_directory (disk_bitmaps (c->disk)),
    .backing_size = layers_count (layers) == 1 ? 0
      : layers_header (layers, 1) ? layers_size (layers, 1)
      : storage_size (layers_file (layers, 1)),
  };
  return choose_size (c, v->image->header.size, &ro->size) == -1 ? -1
    : resize_check (v->image, ro);
}

/* Writes zeros, so that the cluster gets allocated. */
static int
write_zeros (const struct view *v, uint64_t count, uint64_t offset)
{
  CLEANUP_FREE void *zeros = memory_new (1, count);

  if (zeros == NULL)
    return -1;
  return request_write (v, zeros, count, offset, false);
}

/* V is the disk with all of its last cluster, in which it ends at SIZE. */
static int
zero_from (const struct change *c, const struct view *v, uint64_t size)
{
  struct epoch *const epoch = disk_inside (c->disk).epoch;
  const struct epoch_section section = epoch_enter (epoch);
  const uint64_t count = v->size - size;
  const int r = c->options->preallocation != PREALLOCATION_OFF
    ? write_zeros (v, count, size)
    : request_zero (v, count, size, REQUEST_MAY_TRIM);

  epoch_leave (epoch, section);
  return r == -1 ? -1 : 0;
}

/* Zeroes what the last cluster of the disk contains past its end. */
static int
zero_tail (const struct change *c, const struct view *disk)
{
  struct view v = *disk;
  struct writable w = *v.w;
  int r;

  v.size = round_up (v.size, UINT64_C (1) << v.image->header.cluster_bits);
  v.w = &w;
  w.bitmaps = NULL;             /* of what is past the end: bitmapset.c */
  w.detect_zeroes = DETECT_ZEROES_OFF;
  w.compressor = NULL;
  if (w.data_is_raw && storage_size (v.image->data) < v.size &&
      storage_truncate (v.image->data, v.size) == -1)
    return -1;
  v.lower = layers_view_new (v.layers, 1, disk_inside (c->disk).map, v.size,
                             c->d->l2_slice);
  r = v.lower ? zero_from (c, &v, disk->size) : -1;
  layers_view_free (v.lower);
  if (r == -1)
    report_error ("%s: cannot zero the end of the last cluster", c->d->path);
  return r;
}

/* Before the disk grows. */
static int
zero_before (void *opaque, const struct view *v)
{
  const struct change *c = opaque;
  struct resize_options ro;

  return plan (c, v, &ro) == -1 ? -1
    : ro.size > v->size ? zero_tail (c, v) : 0;
}

/* For programs that grow the disk later and do not zero it.  If this fails, nothing is
 * lost: we zero it again when we grow the disk. */
static int
zero_after (void *opaque, const struct view *v)
{
  return zero_tail (opaque, v);
}

/* Clients would not notice that the disk is another one. */
static int
check_idle (const struct change *c)
{
  if (!disk_has_clients (c->disk))
    return 0;
  return report_refusal (EBUSY, "%s: a client uses the disk: it cannot become smaller or "
                         "go back to a snapshot", c->d->path);
}

static int
make_resize (void *opaque, struct image *image)
{
  struct change *c = opaque;
  struct resize_options ro;

  if (plan (c, disk_inside (c->disk).view, &ro) == -1)
    return -1;
  c->size = ro.size;
  c->shrinks = ro.size < image->header.size;
  c->ends_within = ro.size % image->header.cluster_size != 0;
  c->end = storage_size (image->file);
  if (c->shrinks && check_idle (c) == -1)
    return -1;
  return ro.size == image->header.size ? 0 : resize_image (image, &ro, &c->done);
}

static int
make_gather (void *opaque, struct image *image)
{
  struct change *c = opaque;

  return storage_size (image->file) <= c->end || !storage_is_regular (image->file) ? 0
    : resize_gather (image, c->end, c->d->discard, &c->done);
}

static bool
ends_within_cluster (void *opaque, const struct view *v)
{
  (void) opaque;
  return v->size % (UINT64_C (1) << v->image->header.cluster_bits) != 0;
}

/* --- snapshots --- */

static int
check_unused (const struct change *c, const struct image *image)
{
  const struct snapshot *s = snapshots_find (&image->snapshots, c->edit->name);
  char text[PRINTABLE_SIZE (64)];

  if (s == NULL || !disk_serves_snapshot (c->disk, s->id))
    return 0;
  return report_refusal (EBUSY, "%s: a client uses the snapshot \"%s\"", c->d->path,
                         printable (s->name, 64, text, sizeof text));
}

/* (If it is not possible, the change itself will tell.) */
static void
prepare (void *opaque, const struct image *image)
{
  struct change *c = opaque;
  const bool before = report_silence (true);

  if (check_unused (c, image) == 0)
    c->ahead = snapedit_delete_ahead (image, c->d->discard, c->edit->name,
                                      disk_inside (c->disk).view->w);
  report_silence (before);
}

static int
make_snapshot (void *opaque, struct image *image)
{
  struct change *c = opaque;
  const char *name = c->edit->name;
  const bool discard = c->d->discard;

  switch (c->edit->kind) {
  case EDIT_SNAPSHOT_CREATE: return snapedit_create (image, discard, name, NULL, &c->done);
  case EDIT_SNAPSHOT_APPLY:
    return check_idle (c) == -1 ? -1 : snapedit_apply (image, discard, name, &c->done);
  case EDIT_SNAPSHOT_DELETE:
    if (check_unused (c, image) == -1)
      return -1;
    return snapedit_delete (image, discard, name, c->ahead, &c->done);
  case EDIT_RESIZE: break;
  }
  return -1;
}

/* --- all changes --- */

static void
release (void *opaque, struct alloc *alloc)
{
  const struct change *c = opaque;
  const struct edit_options *o = c->options;

  if (c->done && (o->may_free == NULL || o->may_free (o->opaque)))
    shadow_release (c->done, alloc);
}

static int
change (struct change *c)
{
  const bool resizes = c->edit->kind == EDIT_RESIZE;
  const struct disk_change dc = {
    .opaque = c, .release = release, .data_file = resizes,
    .write = resizes ? zero_before : NULL, .needs_write = ends_within_cluster,
    .make = resizes ? make_resize : make_snapshot,
    .prepare = c->edit->kind == EDIT_SNAPSHOT_DELETE ? prepare : NULL,
  };

  return disk_change (c->disk, &dc);
}

/* Nothing depends on what else is to be done. */
static void
change_more (struct change *c, const struct disk_change *dc)
{
  c->done = NULL;
  if (disk_change (c->disk, dc) == -1)
    report_debug ("%s: the image was resized despite this error", c->d->path);
  shadow_free (c->done);
}

/* After the disk became smaller. */
static void
tidy (struct change *c)
{
  const struct disk_change zero = {
    .opaque = c, .write = zero_after, .needs_write = ends_within_cluster,
    .data_file = true,
  };
  const struct disk_change gather = {
    .opaque = c, .make = make_gather, .release = release, .data_file = true,
  };

  change_more (c, &gather);
  if (c->ends_within)
    change_more (c, &zero);
}

static void
tell (const struct change *c)
{
  const char *const name = c->edit->name, *const path = c->d->path;

  switch (c->edit->kind) {
  case EDIT_SNAPSHOT_CREATE:
    report_event (EVENT_CHANGED, path, "snapshot \"%s\" was created", name);
    break;
  case EDIT_SNAPSHOT_APPLY:
    report_event (EVENT_CHANGED, path, "the disk went back to snapshot \"%s\"", name);
    break;
  case EDIT_SNAPSHOT_DELETE:
    report_event (EVENT_CHANGED, path, "snapshot \"%s\" was deleted", name);
    break;
  case EDIT_RESIZE:
    report_event (EVENT_CHANGED, path, "the disk has %" PRIu64 " bytes now", c->size);
  }
}

static int
edit_one (struct disk *disk, const struct edit_options *options, const struct edit *edit)
{
  struct change c = {
    .disk = disk, .d = disk_get_options (disk), .edit = edit, .options = options,
  };
  const int r = change (&c);

  snapahead_free (c.ahead);
  shadow_free (c.done);
  if (r == -1)
    return -1;
  tell (&c);
  if (c.shrinks)
    tidy (&c);
  return 0;
}

int
edit_disk (struct disk *disk, const struct edit_options *options,
           const struct edit *edits, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (edit_one (disk, options, &edits[i]) == -1)
      return -1;
  return 0;
}
