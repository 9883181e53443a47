/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the data of an image get into its backing file?
 *
 * Several threads (chunks.c) copy what the image itself contains, data and zeros, into
 * the backing file.  That is opened like any image that is served, by this same code, so
 * it can be anything that can be written: with its own backing chain, snapshots, bitmaps
 * (which record the writes), LUKS; or a raw file, device or export.  If it is smaller, it
 * grows first.
 *
 *   copies                         the image hides them: it contains the same ranges
 *   the backing file is brought    durable, clean, and still locked
 *     to rest
 *   snapedit_empty                 the image gets empty tables, in one step (shadow.c)
 *
 * So the image shows the same data at each moment, and a crash leaves it as it was, or
 * empty.  If the copying ends early, some of the new data is in the backing file, which
 * by itself is then neither old nor new, as with QEMU.
 *
 * Nobody else uses either file: the image is locked as by a writer when this begins, and
 * the backing file until the image is empty.
 *
 * Internal snapshots show the backing file where they have no data of their own, and
 * would show something else afterwards (QEMU lets that happen).  So an image with
 * snapshots is refused.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "disk/export.h"
#include "change/commit.h"
#include "change/edit.h"
#include "change/snapedit.h"

/* Bytes that are copied at a time. */
#define PIECE (UINT64_C (2) << 20)

struct commit {
  struct image *image;          /* as it is before this */
  const struct disk_options *options;
  bool keep;                    /* what it contains, when all is done */
  struct disk *own;             /* the image without its chain */
  struct export *from;          /* what it contains itself */

  char *path;                   /* of the backing file */
  struct disk_options below;    /* with which it is opened */
  struct image *base;           /* its file, locked as by a writer */
  struct disk *disk;            /* NULL: it is raw */
  struct export *to;            /* NULL: it is raw */
  struct shadow *done;
};

static int
refuse (const struct commit *c, const char *why)
{
  report_error ("%s: the image cannot be committed: %s", c->options->path, why);
  errno = EPERM;
  return -1;
}

/* --- the backing file --- */

static int
write_below (const struct commit *c, const void *buf, uint64_t count, uint64_t offset)
{
  return c->to ? export_write (c->to, buf, count, offset, false)
    : storage_write (c->base->file, buf, count, offset);
}

/* SCRATCH: PIECE bytes, whose contents are lost. */
static int
zero_below (const struct commit *c, void *scratch, uint64_t count, uint64_t offset)
{
  uint64_t n;
  int r;

  if (c->to)
    return export_zero (c->to, count, offset, REQUEST_MAY_TRIM, false);
  r = (c->options->discard ? storage_punch : storage_zero) (c->base->file, offset, count);
  if (r != 0)
    return r == 1 ? 0 : -1;
  memset (scratch, 0, PIECE);
  for (; count > 0; count -= n, offset += n) {
    n = min64 (count, PIECE);
    if (storage_write (c->base->file, scratch, n, offset) == -1)
      return -1;
  }
  return 0;
}

static int
sync_below (const struct commit *c)
{
  return c->to ? export_flush (c->to) : storage_sync (c->base->file);
}

static int
refuse_below (const struct commit *c, const char *why)
{
  report_error ("%s: the backing file of %s cannot be written: %s", c->path,
                c->options->path, why);
  errno = EROFS;
  return -1;
}

/* Makes the disk of the backing file at least SIZE bytes large. */
static int
grow_raw (const struct commit *c, uint64_t size)
{
  return storage_size (c->base->file) >= size ? 0
    : storage_truncate (c->base->file, size);
}

static int
grow_qcow2 (const struct commit *c, uint64_t size)
{
  const struct edit edit = { .kind = EDIT_RESIZE, .size = round_up (size, 512) };
  const struct edit_options options = { .preallocation = PREALLOCATION_OFF };

  return c->base->header.size >= size ? 0 : edit_disk (c->disk, &options, &edit, 1);
}

/* An image that is emptied shows the file that it names, which is not always the one of
 * backing=PATH.  Who reads a file in another format than it has sees the wrong disk; who
 * writes it so destroys it. */
static int
check_named (const struct commit *c, const char *format, const struct image *base)
{
  const struct header *h = &c->image->header;
  const bool named = c->options->backing != BACKING_PATH ||
    (h->backing_file && edit_name_means (c->options, h->backing_file, base->file));

  if (!named && !c->keep)
    return refuse (c, h->backing_file == NULL ? "it has no backing file"
                   : remedy (REMEDY_NAME_BACKING));
  if (!named || h->backing_format == NULL || strcmp (h->backing_format, format) == 0)
    return 0;
  report_error ("%s: the image cannot be committed into a file of the format %s: it says "
                "that the format of its backing file is \"%s\"", c->options->path, format,
                h->backing_format);
  errno = EPERM;
  return -1;
}

static int
open_raw (struct commit *c)
{
  const struct disk_options *o = &c->below;
  const struct storage_options options = {
    .try_writable = true, .lock = o->lock, .cache = o->cache,
    .link = &o->link, .hooks = o->hooks,
  };

  c->base = image_open_file (c->path, &options);
  if (c->base == NULL)
    return -1;
  if (!storage_is_writable (c->base->file))
    return refuse_below (c, image_why_readonly (c->base));
  return image_lock (c->base, IMAGE_WRITER) == -1 ||
    check_named (c, "raw", c->base) == -1 ||
    grow_raw (c, c->image->header.size) == -1 ? -1 : 0;
}

static int
open_qcow2 (struct commit *c)
{
  struct image *unlocked = disk_open_image (&c->below);

  if (unlocked == NULL)
    return -1;
  /* The lock comes first: QEMU's, too, are taken before anything changes. */
  if (storage_is_writable (unlocked->file) && image_lock (unlocked, IMAGE_WRITER) == 0 &&
      check_named (c, "qcow2", unlocked) == 0)
    c->base = image_again (unlocked);
  else if (!storage_is_writable (unlocked->file))
    refuse_below (c, image_why_readonly (unlocked));
  image_close (unlocked);
  if (c->base == NULL || disk_open_on (&c->below, c->base, &c->disk) == -1)
    return -1;
  if (disk_why_readonly (c->disk))
    return refuse_below (c, disk_why_readonly (c->disk));
  if (grow_qcow2 (c, c->image->header.size) == -1)
    return -1;
  c->to = export_open (c->disk, "", true);
  if (c->to && !export_is_writable (c->to))
    return refuse_below (c, disk_why_readonly (c->disk));
  return c->to ? 0 : -1;
}

static int
open_below (struct commit *c)
{
  const char *format;

  c->below = *c->options;
  if (disk_find_backing (c->options, &c->image->header, &c->path, &format) == -1)
    return -1;
  if (c->path == NULL)
    return refuse (c, "it has no backing file");
  /* The parameters are about the image, and its backing file has been found. */
  c->below.path = c->path;
  c->below.secret = secret_below (&c->options->secret, &c->image->header);
  c->below.in_dir.name = NULL;
  c->below.map = NULL;
  c->below.backing = BACKING_FOLLOW;
  c->below.backing_format = NULL;
  c->below.data_file = DATA_FILE_FOLLOW;
  c->below.copy_on_read = false;
  c->below.detect_zeroes = DETECT_ZEROES_OFF;
  c->below.compress = COMPRESS_OFF;
  c->below.wait_for_space = false;
  c->below.watermark = 0;
  c->below.news = NULL;
  return strcmp (format, "raw") == 0 ? open_raw (c) : open_qcow2 (c);
}

/* Everything is durable, and the image is at rest; the lock stays. */
static int
finish_below (struct commit *c)
{
  int r = 0;

  if (c->to == NULL)
    r = c->base ? storage_sync (c->base->file) : 0;
  else if (export_close (c->to) == -1)
    r = -1;
  c->to = NULL;
  if (disk_close (c->disk) == -1)
    r = -1;
  c->disk = NULL;
  return r;
}

/* --- copying --- */

static int
copy_data (const struct commit *c, void *scratch, uint64_t start, uint64_t end,
           uint64_t *copied)
{
  uint64_t at, n;

  for (at = start; at < end; at += n) {
    n = min64 (end - at, PIECE - at % PIECE);
    if (export_read (c->from, scratch, n, at) == -1 ||
        write_below (c, scratch, n, at) == -1)
      return -1;
    *copied += n;
  }
  return 0;
}

static int
copy_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end, uint64_t *copied)
{
  const struct commit *c = opaque;
  struct extent x = { .len = 0 };
  uint64_t at;
  int r;

  for (at = start; at < end; at += x.len) {
    if (export_extents (c->from, end - at, at, true, extent_keep, &x) == -1)
      return -1;
    x.len = min64 (x.len, end - at);
    r = x.type == EXTENT_HOLE ? 0
      : x.type == EXTENT_ZERO ? zero_below (c, scratch, x.len, at)
      : copy_data (c, scratch, at, at + x.len, copied);
    if (r == -1)
      return -1;
  }
  return 0;
}

static int
make_durable (void *opaque)
{
  return sync_below (opaque);
}

/* ERR: errno.  Returns -1. */
static int
cut_short (const struct commit *c, int err, uint64_t done)
{
  report_error ("%s: the commit %s after %" PRIu64 " of %" PRIu64 " bytes of the disk: "
                "the image is unchanged, and its backing file may contain a part of its "
                "data; %s", c->options->path, err == EINTR ? "was stopped" : "failed", done,
                c->image->header.size, remedy (REMEDY_COMMIT_AGAIN));
  errno = err;
  return -1;
}

static int
copy_all (struct commit *c, const struct chunks_watch *watch, uint64_t *copied)
{
  const struct chunks_job job = {
    .size = c->image->header.size, .scratch = PIECE, .opaque = c,
    .far = storage_is_far (c->image->file) || storage_is_far (c->base->file),
    .work = copy_chunk, .make_durable = make_durable,
  };
  uint64_t done;

  return chunks_run (&job, watch, &done, copied) == 0 ? 0 : cut_short (c, errno, done);
}

/* --- the image --- */

/* Each disk has a generation of the image of its own. */
static int
open_again (const struct commit *c, const struct disk_options *o, struct disk **d)
{
  struct image *image = image_again (c->image);
  const int r = image ? disk_open_on (o, image, d) : -1;

  image_close (image);
  return r;
}

/* Opens the disk as it is served, which finds all that is wrong with its chain. */
static int
check_chain (struct commit *c)
{
  struct disk *d;

  return open_again (c, c->options, &d) == -1 ? -1 : disk_close (d);
}

/* Locks the image. */
static int
open_own (struct commit *c)
{
  struct disk_options o = *c->options;

  o.backing = BACKING_IGNORE;
  o.copy_on_read = false;
  o.watermark = 0;
  if (open_again (c, &o, &c->own) == -1 || disk_lock (c->own) == -1)
    return -1;
  c->from = export_open (c->own, "layer:0", false);
  return c->from ? 0 : -1;
}

static int
close_own (struct commit *c)
{
  int r = 0;

  if (c->from && export_close (c->from) == -1)
    r = -1;
  c->from = NULL;
  if (disk_close (c->own) == -1)
    r = -1;
  c->own = NULL;
  return r;
}

static int
make_empty (void *opaque, struct image *image)
{
  struct commit *c = opaque;

  return snapedit_empty (image, c->options->discard, &c->done);
}

static void
release (void *opaque, struct alloc *alloc)
{
  const struct commit *c = opaque;
  struct storage *data = c->image->data;

  shadow_release (c->done, alloc);
  if (alloc || data == NULL || !c->options->discard)
    return;
  /* Nobody needs what is left there; it is no harm if it stays. */
  report_silence (true);
  storage_discard (data, 0, storage_size (data));
  report_silence (false);
}

static int
empty (struct commit *c)
{
  const struct disk_change change = {
    .opaque = c, .make = make_empty, .release = release, .data_file = true,
  };
  const int r = disk_change (c->own, &change);

  shadow_free (c->done);
  return r;
}

/* --- the whole change --- */

static int
copy (struct commit *c, const struct chunks_watch *watch, uint64_t *copied)
{
  if (c->image->header.size % 512 != 0)
    return refuse (c, "its size is not a multiple of 512");
  if (!chunks_tell (watch, 0, c->image->header.size, 0))
    return cut_short (c, EINTR, 0);
  /* Without our own writer's lock in the way of a chain that leads back to the image. */
  if (check_chain (c) == -1 || open_own (c) == -1)
    return -1;
  if (c->image->header.nb_snapshots > 0)
    return refuse (c, "it has internal snapshots, which may show its backing file");
  if (image_data_is_raw (c->image) && !c->keep)
    return refuse (c, "it has a raw external data file, which contains all of the disk");
  return open_below (c) == -1 ? -1 : copy_all (c, watch, copied);
}

int
commit_image (const struct image *image, const struct disk_options *options, bool keep,
              const struct chunks_watch *watch, uint64_t *copied)
{
  struct commit c = { .image = image_again (image), .options = options, .keep = keep };
  int r, err;

  *copied = 0;
  if (c.image == NULL)
    return -1;
  r = copy (&c, watch, copied);
  err = errno;
  /* If the copying has failed, all else that goes wrong has the same reason. */
  report_keep ();
  if (finish_below (&c) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  report_end_keeping (r == 0 || err == errno);
  if (r == 0 && !keep) {
    r = empty (&c);
    err = errno;
  }
  if (close_own (&c) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  image_close (c.base);
  image_close (c.image);
  free (c.path);
  errno = err;
  return r;
}
