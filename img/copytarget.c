/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does what is copied become an image?
 *
 * A new image has no name until it is complete (newfile.c in the core): if the program
 * ends before, for any reason, nothing is left, and what existed is as it was.  Devices
 * and exports of NBD servers are written directly.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "change/newdevice.h"
#include "disk/export.h"
#include "img/copytarget.h"
#include "img/progress.h"
#include "img/rawsize.h"

/* The part of the work that preallocation is. */
#define FILLING 0.3

/* --- a disk --- */

static int
open_disk (struct copytarget *t, const struct disk_options *options)
{
  if (disk_open (options, &t->disk) == -1)
    return -1;
  t->export = export_open (t->disk, "", true);
  if (t->export == NULL)
    return -1;
  if (!export_is_writable (t->export)) {
    report_error ("%s: %s", options->path, disk_why_readonly (t->disk)
                  ? disk_why_readonly (t->disk) : "it cannot be written");
    errno = EROFS;
    return -1;
  }
  t->end = copy_export (t->disk, t->export);
  return 0;
}

/* Brings the image to rest.  -1: reported. */
static int
close_disk (struct copytarget *t)
{
  int r = t->export ? export_close (t->export) : 0;

  if (disk_close (t->disk) == -1)
    r = -1;
  t->export = NULL;
  t->disk = NULL;
  return r;
}

/* --- new --- */

static int
step (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  if (progress_step (NULL, done, total, 0))
    return 0;
  return report_refusal (EINTR, "interrupted while creating the image");
}

static int
new_qcow2 (struct copytarget *t, struct newoptions *o, uint64_t size)
{
  struct disk_options options;

  imagefile_will_write (t->file);
  options = t->file->options;
  o->has_size = true;
  o->create.image.size = size;
  if (newoptions_complete (o, t->file) == -1)
    return -1;
  o->create.progress = step;
  if (create_image (&o->create, &t->created) == -1)
    return -1;
  options.in_dir = created_place (t->created);
  return open_disk (t, &options);
}

static int
new_raw (struct copytarget *t, const struct newoptions *o, uint64_t size)
{
  const struct disk_options *const disk = &t->file->options;
  const struct storage_options options = {
    .lock = true, .cache = disk->cache, .link = &disk->link
  };
  const bool device = newdevice_is (disk->path);

  if (device ? newdevice_open (disk->path, &options, &t->raw) == -1
      : newfile_begin_over (disk->path, &options, &t->newfile) == -1)
    return -1;
  t->end = copy_storage (device ? t->raw : newfile_file (t->newfile), true);
  if (rawsize_set (t->end.storage, size, o->create.image.preallocation) == -1)
    return -1;
  t->end.size = size;
  t->end.frees = o->create.image.preallocation == PREALLOCATION_OFF;
  t->zeros = device ? COPY_ZEROS_MAKE : COPY_ZEROS_SKIP;
  return 0;
}

int
copytarget_new (struct copytarget *t, struct imagefile *f, struct newoptions *o,
                uint64_t size)
{
  const bool fills = o->create.image.preallocation >= PREALLOCATION_FALLOC;
  int r;

  *t = (struct copytarget) {
    .file = f, .durable = f->options.cache != STORAGE_CACHE_UNSAFE,
    .zeros = o->create.image.backing_file ? COPY_ZEROS_MAKE : COPY_ZEROS_SKIP,
  };
  if (fills)
    progress_within (0, FILLING);
  else
    progress_within (0, 0);     /* it takes no time that would matter */
  t->disappears = !newdevice_is (f->options.path);
  r = f->raw ? new_raw (t, o, size) : new_qcow2 (t, o, size);
  progress_within (fills ? FILLING : 0, 1);
  return r;
}

/* --- old --- */

static int
open_raw (struct copytarget *t)
{
  const struct disk_options *const disk = &t->file->options;
  const struct storage_options options = {
    .try_writable = true, .lock = disk->lock, .cache = disk->cache, .link = &disk->link
  };

  if (storage_open (disk->path, &options, &t->raw) == -1 ||
      (disk->lock && storage_lock (t->raw, STORAGE_WRITER) == -1))
    return -1;
  t->end = copy_storage (t->raw, true);
  if (storage_is_writable (t->raw))
    return 0;
  report_error ("%s: it cannot be written%s%s", t->file->given,
                storage_why_readonly (t->raw) ? ": " : "",
                storage_why_readonly (t->raw) ? storage_why_readonly (t->raw) : "");
  errno = EROFS;
  return -1;
}

int
copytarget_old (struct copytarget *t, struct imagefile *f, bool is_zero, uint64_t size)
{
  *t = (struct copytarget) {
    .file = f, .durable = true, .zeros = is_zero ? COPY_ZEROS_SKIP : COPY_ZEROS_MAKE,
  };
  imagefile_will_write (f);
  if ((f->raw ? open_raw (t) : open_disk (t, &f->options)) == -1)
    return -1;
  if (t->end.size >= size)
    return 0;
  return report_refusal (ENOSPC, "%s: the disk has %" PRIu64 " bytes, fewer than what is "
                         "copied (%" PRIu64 ")", f->given, t->end.size, size);
}

/* --- the end --- */

int
copytarget_edit_bitmaps (struct copytarget *t, const struct bitmapedit *list, size_t n,
                         const char *source)
{
  const int r = export_close (t->export);

  t->export = NULL;
  return r == -1 ? -1 : bitmapedit_disk (t->disk, list, n, source);
}

int
copytarget_reopen (struct copytarget *t, struct storage **s)
{
  const struct storage_options options = { .in_dir = created_place (t->created) };

  return close_disk (t) == -1 ? -1 : storage_open (t->file->options.path, &options, s);
}

int
copytarget_finish (struct copytarget *t)
{
  /* (An export that was closed is at rest.) */
  if (t->durable && (t->export || t->disk == NULL) && t->end.ops->sync (&t->end) == -1)
    return -1;
  if (close_disk (t) == -1)
    return -1;
  if (t->newfile)
    return newfile_publish (t->newfile);
  if (t->created == NULL)
    return 0;
  if (created_publish (t->created) == -1)
    return -1;
  created_keep (t->created);
  t->created = NULL;
  return 0;
}

void
copytarget_free (struct copytarget *t)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (t->disk) {
    const bool before = report_silence (true);

    close_disk (t);             /* something else has failed */
    report_silence (before);
  }
  created_withdraw (t->created);
  newfile_end (t->newfile);
  storage_close (t->raw);
}
