/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk get a new image on top (an external snapshot)?
 *
 * The new image is complete and durable before anything else happens: it is created with
 * clients writing, or is there and has no data.  Behind the gate the present image comes
 * to rest, as after the last writer, and stays so: it is only read from then on.  The
 * next generation has the new image on top, over all layers of the one before.  No
 * metadata changes, so this takes as long for a large disk as for a small one.
 *
 * Both images are valid at each instant.  What clients flush after the change is in the
 * new image alone, and the next start has to name that one.  So that nobody writes the
 * image below by mistake, its header names the new one (overlayref.c), from before the
 * change on: while the new one has no data, that means nothing.
 *
 * Several disks can get one in one step: while all gates are closed, a change can be
 * taken back, because nothing has written to the new image.  Then the image below is the
 * top again, over the layers as they were.
 *
 * Refused are images that would not show the same disk:
 *
 *   another size, data of its own, another backing file
 *   encrypted disks: what is written to a new image would not be encrypted
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/overlayref.h"
#include "change/create.h"
#include "change/edit.h"
#include "change/overlay.h"

struct overlaying {
  struct disk *disk;
  struct overlay overlay;
  struct create_options options;        /* of `created' */
  struct created *created;      /* NULL: the image was there */
  struct image *top;            /* the new image */
  struct layers *stack;         /* NULL, or the layers before the change */
};

static int
refuse_overlay (const struct overlaying *c, int err, const char *why)
{
  return report_refusal (err, "%s: cannot become the top of the disk: %s", c->overlay.path,
                         why);
}

/* --- the new image --- */

/* Over the present image, whose properties it gets. */
static struct newimage_options
choose (const struct overlaying *c)
{
  DISK_SECTION_FOR_BLOCK now = disk_enter (c->disk);
  const struct header *const h = &now.view->image->header;

  return (struct newimage_options) {
    .size = h->size, .cluster_size = h->cluster_size, .version = 3,
    .refcount_bits = 1u << h->refcount_order, .extended_l2 = h->l2_entry_size == 16,
    .compression_type = h->compression_type, .overlay_room = true,
    .backing_file = disk_get_options (c->disk)->path, .backing_format = "qcow2",
  };
}

static int
create (struct overlaying *c)
{
  const struct disk_options *const d = disk_get_options (c->disk);

  c->options = (struct create_options) {
    .path = c->overlay.path, .image = choose (c),
    .rules = d->rules,
    /* (The chain is locked: this disk has it open.) */
    .file = { .cache = d->cache, .link = &d->link, .hooks = d->hooks },
  };
  return create_image (&c->options, &c->created);
}

static int
check_top (const struct overlaying *c)
{
  const struct header *const h = &c->top->header;
  const char *why = image_why_readonly (c->top);
  int empty;

  if (why == NULL && h->crypt_method != QCOW2_CRYPT_NONE)
    why = "it is encrypted";
  else if (why == NULL && (h->incompatible & QCOW2_INCOMPAT_CORRUPT))
    why = "it is marked corrupt";
  else if (why == NULL && c->top->data)
    why = "it has an external data file";
  else if (why == NULL && (h->nb_snapshots > 0 || h->has_bitmaps))
    why = "it has snapshots or bitmaps of its own";
  if (why)
    return refuse_overlay (c, EINVAL, why);
  empty = image_is_empty (c->top);
  if (empty == 0)
    return refuse_overlay (c, EINVAL, "it contains data of its own");
  return empty == 1 ? 0 : -1;
}

/* Opens it as a reader. */
static int
open_top (struct overlaying *c)
{
  const struct disk_options *const d = disk_get_options (c->disk);
  struct disk_options options = *d;

  options.path = c->overlay.path;
  options.in_dir.name = NULL;
  options.backing = BACKING_FOLLOW;
  options.data_file = DATA_FILE_FOLLOW;
  c->top = c->overlay.image ? image_ref (c->overlay.image) : disk_open_image (&options);
  if (c->top == NULL || (c->overlay.image == NULL && (image_load (c->top) == -1 ||
                                                       image_read_snapshots (c->top) == -1)))
    return -1;
  return check_top (c) == 0 && storage_sync (c->top->file) == 0 ? 0 : -1;
}

/* --- the change --- */

/* That is the disk's image. */
static int
check_backing (const struct overlaying *c, const struct image *image)
{
  const char *const name = c->top->header.backing_file;

  errno = 0;
  if (name &&
      edit_name_means (disk_get_options (c->disk), c->overlay.path, name, image->file))
    return 0;
  return errno == ENOMEM ? -1
    : refuse_overlay (c, EINVAL, "it does not name the disk's image as its backing file");
}

/* Behind the gate, too.  (Before, another change might have come.) */
static int
check_over (const struct overlaying *c, const struct image *image)
{
  const struct header *const h = &c->top->header;

  if (h->size != image->header.size)
    return refuse_overlay (c, EINVAL, "it has another size than the disk");
  if (image->header.crypt_method != QCOW2_CRYPT_NONE)
    return refuse_overlay (c, ENOTSUP, "the disk is encrypted");
  if (check_backing (c, image) == -1)
    return -1;
  if (h->backing_format && strcmp (h->backing_format, "qcow2") != 0)
    return refuse_overlay (c, EINVAL, "it does not say that its backing file is a qcow2 "
                           "image");
  return image_lock (c->top, IMAGE_WRITER);
}

static int
make (void *opaque, struct image *image)
{
  const struct overlaying *c = opaque;

  if (check_over (c, image) == -1)
    return -1;
  /* (The disk may have moved from it to this one before: then both would be refused.) */
  if (c->top->header.overlay && overlayref_set (c->top, NULL, false) == -1)
    return -1;
  return overlayref_set (image, storage_path (c->top->file), false);
}

/* (If it is not possible, the change itself will tell.  If the new image names one, that
 * name goes first.) */
static void
name_ahead (void *opaque, const struct image *image)
{
  const struct overlaying *c = opaque;
  const bool before = report_silence (true);

  if (c->top->header.overlay == NULL)
    overlayref_set (image, storage_path (c->top->file), true);
  report_silence (before);
}

struct overlaying *
overlay_prepare (struct disk *d, const struct overlay *overlay)
{
  struct overlaying *c = memory_new (1, sizeof *c);

  if (c == NULL)
    return NULL;
  c->disk = d;
  c->overlay = *overlay;
  if ((!overlay->create || create (c) == 0) && open_top (c) == 0)
    return c;
  overlay_end (c, false);
  return NULL;
}

int
overlay_check (struct overlaying *c)
{
  if (disk_lock (c->disk) == -1 ||
      check_over (c, disk_inside (c->disk).view->image) == -1)
    return -1;
  disk_meanwhile (c->disk, name_ahead, c);
  return 0;
}

const struct image *
overlay_top (const struct overlaying *c)
{
  return c->top;
}

int
overlay_make (struct overlaying *c)
{
  const struct disk_change dc = {
    .opaque = c, .prepare = name_ahead, .make = make, .data_file = true, .top = c->top,
  };

  c->stack = layers_copy (disk_inside (c->disk).view->layers);
  return c->stack ? disk_change (c->disk, &dc) : -1;
}

static int
lock_again (void *opaque, struct image *image)
{
  const struct overlaying *c = opaque;

  (void) image;
  return image_lock (layers_image (c->stack, 0), IMAGE_WRITER);
}

int
overlay_take_back (struct overlaying *c)
{
  struct image *below = image_again (layers_image (c->stack, 0));
  const struct disk_change dc = {
    .opaque = c, .make = lock_again, .data_file = true, .top = below, .over = c->stack,
  };
  const int r = below ? disk_change (c->disk, &dc) : -1;
  KEEP_ERRNO_FOR_BLOCK;

  image_close (below);
  return r;
}

void
overlay_end (struct overlaying *c, bool made)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (c == NULL)
    return;
  layers_free (c->stack);
  image_close (c->top);
  if (made)
    created_keep (c->created);
  else
    created_withdraw (c->created);
  free (c);
}

int
overlay_disk (struct disk *d, const struct overlay *overlay)
{
  struct overlaying *c = overlay_prepare (d, overlay);
  const int r = c ? overlay_make (c) : -1;

  overlay_end (c, r == 0);
  return r;
}
