/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk move to another image while clients write it?
 *
 * It is copied in rounds (follow.c), until little is left.  Then:
 *
 *   pivot     one change of the disk (disk_change).  Behind the gate the rest is copied,
 *             the target comes to rest as after its last writer, and the next generation
 *             has it as its top, over its own chain
 *   finish    behind the gate the rest is copied; the disk goes on as it is
 *
 * A crash.  The old image is whole at each instant, and so is the target from the moment
 * when it came to rest.  Until the gate opens, clients have flushed nothing that is not
 * in the old image; from then on, what they flush is in the target alone.  Before the
 * gate opens, the headers say which one is the disk (overlayref.c), if they can, and a
 * line in the server's log does.
 *
 * The target is an image that this process writes as it would any disk: it has its own
 * allocator, checkpoints and locks, and can fail without harm to the disk.
 *
 * Memory: that of follow.c, and the state of the target, whose mappings are in the memory
 * of those of the disk.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/overlayref.h"
#include "disk/export.h"
#include "copy/copy.h"
#include "change/mirror.h"

#define USUAL_GRANULARITY 65536
#define LEAST_GRANULARITY 4096

struct mirror {
  struct disk *disk;
  struct export *from;          /* all that clients see of it */
  uint64_t size;                /* of both, in bytes */

  struct mirror_target target;
  struct disk *to_disk;         /* made of target.image; or NULL */
  struct export *to;            /* NULL: it is at rest, or the target is raw */
  const char *why_no_pivot;
  bool locked;                  /* the raw target is, as by a writer */

  struct follow *follow;
  struct disk_change change;    /* the pivot */
  struct image *top;            /* the target, when it came to rest ... */
  int named;                    /* ... and as overlayref_arrive has left it */
};

static int
refuse_mirror (int err, const char *what, const char *why)
{
  return report_refusal (err, "%s: %s", what, why);
}

static const char *
target_path (const struct mirror *m)
{
  return storage_path (m->target.raw ? m->target.raw : m->target.image->file);
}

struct follow *
mirror_follow (const struct mirror *m)
{
  return m->follow;
}

/* --- the end --- */

/* The target is durable, and clean. */
static int
come_to_rest (struct mirror *m)
{
  struct export *const to = m->to;

  if (to == NULL)
    return storage_sync (m->target.raw);
  m->to = NULL;
  return export_close (to);
}

static int
copy_rest (void *opaque)
{
  const struct mirror *m = opaque;

  return follow_rest (m->follow);
}

int
mirror_finish (struct mirror *m)
{
  int r;

  if (follow_begin_end (m->follow) == -1)
    return -1;
  r = disk_hold (m->disk, copy_rest, m);
  follow_open (m->follow);
  return r == 0 ? come_to_rest (m) : follow_why (m->follow);
}

static int
make_top (void *opaque, struct image *present)
{
  struct mirror *m = opaque;

  if (copy_rest (m) == -1 || come_to_rest (m) == -1)
    return -1;
  m->top = image_again (m->target.image);
  if (m->top == NULL)
    return -1;
  m->change.top = m->top;
  m->change.over = disk_inside (m->to_disk).view->layers;
  m->named = overlayref_arrive (m->top, present);
  return m->named == -1 ? -1 : 0;
}

static void
tell_move (void *opaque, const struct image *before)
{
  const struct mirror *m = opaque;

  overlayref_moved (before, m->top, m->named);
}

/* *FROM: its path, if the target may name it ahead. */
static void
leave (void *opaque, const struct image *image)
{
  char **from = opaque;

  if (!overlayref_names_one (image))
    *from = strdup (storage_path (image->file));
}

static void
announce (void *opaque, const struct image *target)
{
  overlayref_announce (target, opaque);
}

/* (The target may hang: no other step of the disk is to wait for it.) */
void
mirror_announce (struct mirror *m)
{
  CLEANUP_FREE char *from = NULL;

  if (m->why_no_pivot)
    return;
  disk_meanwhile (m->disk, leave, &from);
  if (from)
    disk_meanwhile (m->to_disk, announce, from);
}

const char *
mirror_why_no_pivot (const struct mirror *m)
{
  return m->why_no_pivot;
}

int
mirror_pivot (struct mirror *m)
{
  int r;

  if (m->why_no_pivot)
    return refuse_mirror (ENOTSUP, target_path (m), m->why_no_pivot);
  if (follow_begin_end (m->follow) == -1)
    return -1;
  m->change = (struct disk_change) {
    .opaque = m, .make = make_top, .moved = tell_move, .data_file = true,
  };
  r = disk_change (m->disk, &m->change);
  if (r == -1 && m->top)
    overlayref_stay (m->target.image);
  follow_open (m->follow);
  return r == 0 ? 0 : follow_why (m->follow);
}

void
mirror_end (struct mirror *m)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (m == NULL)
    return;
  follow_free (m->follow);
  if (m->from)
    export_close (m->from);
  if (m->to)
    export_close (m->to);
  disk_close (m->to_disk);
  image_close (m->top);
  if (m->locked)
    storage_lock (m->target.raw, STORAGE_UNLOCKED);
  free (m);
}

/* --- the beginning --- */

/* Is it one of the disk's own files? */
static bool
is_in_chain (const struct storage *file, const struct layers *layers)
{
  for (unsigned i = 0; i < layers_count (layers); i++)
    if (storage_same (file, layers_file (layers, i)) ||
        storage_same (file, layers_data_file (layers, i)))
      return true;
  return false;
}

/* Does it lie over the same files as the disk's top image? */
static bool
lies_over_same (const struct layers *a, const struct layers *b)
{
  if (layers_count (a) != layers_count (b))
    return false;
  for (unsigned i = 1; i < layers_count (a); i++)
    if (!storage_same (layers_file (a, i), layers_file (b, i)))
      return false;
  return true;
}

/* Before anything is written to it. */
static int
check_target (const struct mirror *m)
{
  DISK_SECTION_FOR_BLOCK now = disk_enter (m->disk);
  const struct storage *const file = m->target.raw ? m->target.raw : m->target.image->file;
  const char *why = NULL;

  if (is_in_chain (file, now.view->layers))
    why = "cannot be the target: it is a file of the disk";
  else if (now.view->image->header.crypt_method != QCOW2_CRYPT_NONE)
    why = "cannot be the target: the disk is encrypted, and the target would not be";
  return why ? refuse_mirror (EBUSY, target_path (m), why) : 0;
}

static int
open_image (struct mirror *m)
{
  struct disk_options options =
    disk_options_meanwhile (disk_get_options (m->disk),
                            storage_path (m->target.image->file));

  options.map = disk_inside (m->disk).map;
  options.backing = m->target.backing;
  if (disk_open_on (&options, m->target.image, &m->to_disk) == -1)
    return -1;
  m->to = export_open (m->to_disk, "", true);
  if (m->to == NULL || export_is_writable (m->to))
    return m->to ? 0 : -1;
  return refuse_mirror (EROFS, target_path (m), "cannot be the target: it is read-only");
}

static int
open_raw (struct mirror *m)
{
  if (!storage_is_writable (m->target.raw))
    return refuse_mirror (EROFS, target_path (m),
                          "cannot be the target: it is read-only");
  if (!disk_get_options (m->disk)->lock)
    return 0;
  m->locked = storage_lock (m->target.raw, STORAGE_WRITER) == 0;
  return m->locked ? 0 : -1;
}

static int
open_target (struct mirror *m)
{
  uint64_t size;

  if ((m->target.raw ? open_raw (m) : open_image (m)) == -1)
    return -1;
  size = m->to ? export_size (m->to) : storage_size (m->target.raw);
  return size == m->size ? 0
    : refuse_mirror (EINVAL, target_path (m),
                     "Source and target image have different sizes");
}

/* With the disk's layers pinned. */
static const char *
find_why_no_pivot (const struct mirror *m, enum mirror_sync sync, const struct view *v)
{
  const struct disk_options *const d = disk_get_options (m->disk);
  const struct image *const image = m->target.image;

  if (image == NULL)
    return "the target is not a qcow2 image";
  if (image->data)
    return "the target has an external data file";
  if (sync == MIRROR_NONE)
    return "the target does not contain all of the disk";
  if (m->target.backing == BACKING_IGNORE && image->header.backing_file)
    return "the header of the target names a backing file, over which it was not opened";
  if (sync == MIRROR_TOP &&
      !lies_over_same (disk_inside (m->to_disk).view->layers, v->layers))
    return "the target does not lie over the files below the disk's image";
  if (d->compress && image->header.compression_type != v->image->header.compression_type)
    return "the target has another compression type";
  if (d->watermark > 0 && storage_is_regular (image->file))
    return "a watermark is set, and the target is in a file";
  return NULL;
}

static void
choose_pivot (struct mirror *m, enum mirror_sync sync)
{
  DISK_SECTION_FOR_BLOCK now = disk_enter (m->disk);

  m->why_no_pivot = find_why_no_pivot (m, sync, now.view);
  /* (What it contains would hide what is below it, which is not copied.) */
  if (m->why_no_pivot == NULL && sync == MIRROR_TOP &&
      image_is_empty (m->target.image) != 1)
    m->why_no_pivot = "the target contains data of its own already";
}

static uint64_t
usual_granularity (const struct mirror *m)
{
  return m->target.raw ? USUAL_GRANULARITY
    : max64 (min64 (m->target.image->header.cluster_size, USUAL_GRANULARITY),
             LEAST_GRANULARITY);
}

/* What the top image contains is to be copied. */
static int
add_top (struct mirror *m)
{
  struct export *top = export_open (m->disk, "layer:0", false);
  struct copy_end e;
  int r;

  if (top == NULL)
    return -1;
  e = copy_export (m->disk, top);
  r = follow_add (m->follow, &e);
  KEEP_ERRNO_FOR_BLOCK;
  export_close (top);
  return r;
}

static int
begin_copy (struct mirror *m, const struct mirror_options *o)
{
  const struct follow_options options = {
    .disk = m->disk, .path = target_path (m),
    .granularity = o->granularity ? o->granularity : usual_granularity (m),
    .copy = {
      .from = copy_export (m->disk, m->from),
      .to = m->to ? copy_export (m->to_disk, m->to) : copy_storage (m->target.raw, true),
    },
  };

  m->follow = follow_new (&options);
  if (m->follow == NULL)
    return -1;
  return o->sync == MIRROR_FULL ? follow_add (m->follow, NULL)
    : o->sync == MIRROR_TOP ? add_top (m) : 0;
}

static int
begin_mirror (struct mirror *m, const struct mirror_options *o)
{
  m->from = export_open (m->disk, "", false);
  if (m->from == NULL)
    return -1;
  m->size = export_size (m->from);
  if (check_target (m) == -1 || open_target (m) == -1)
    return -1;
  choose_pivot (m, o->sync);
  return begin_copy (m, o);
}

int
mirror_begin (struct disk *d, const struct mirror_options *o, struct mirror **ret)
{
  struct mirror *m = memory_new (1, sizeof *m);

  if (m == NULL)
    return -1;
  m->disk = d;
  m->target = o->target;
  if (begin_mirror (m, o) == 0) {
    *ret = m;
    return 0;
  }
  mirror_end (m);
  return -1;
}
