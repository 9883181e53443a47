/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk become writable, and how does it come to rest?
 *
 * When the first client comes that may write: take the writer's lock, repair what a crash
 * has left, then build what writing needs from the bottom up (refcounts, allocator, L2
 * tables, checkpoint), and only then let requests use it.  Until the last steps (the
 * length of a raw data file, autoclear bits) only a repair changes the image, and a
 * failure leaves the disk as it was.
 *
 * When the last such client has left: make everything durable, release freed clusters,
 * give back clusters that were allocated ahead, store the bitmaps, and clear the marks in
 * the header.
 *
 * Locks: everything happens with the disk's lock held.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <time.h>

#include "util/clock.h"
#include "util/report.h"
#include "format/entry.h"
#include "image/headerwrite.h"
#include "request/copyup.h"
#include "check/recover.h"
#include "disk/disk-impl.h"

/* How long the last writer, when it leaves, waits for requests of readers. */
#define QUIESCE_SECONDS 5

/* Changed slices may use a third of l2-cache, but at least this many bytes, before a
 * checkpoint is due.  While it writes copies of them, as many others can change. */
#define MIN_DIRTY (UINT64_C (64) << 10)

/* --- opening and closing --- */

/* The cluster of the header is in use in any image.  If its refcount is 0, the refcounts
 * are not reliable, and it is not known which clusters are free. */
static int
check_header_count (const struct image *image, struct refcounts *refcounts)
{
  uint64_t value;

  if (refcount_get (refcounts, 0, &value) == -1)
    return -1;
  if (value != 0)
    return 0;
  nbdkit_error ("%s: corrupt refcounts: the header's cluster at 0 is in use but "
                "its reference count is 0", storage_path (image->file));
  errno = EUCLEAN;
  return -1;
}

/* Opens refcounts, allocator and tables; each uses the one before. */
static int
open_metadata (struct writable *w, const struct disk *d)
{
  struct image *image = d->image;
  const struct alloc_options options = {
    .discard = d->options.discard, .budget = map_budget (d->map),
    .watermark = d->options.watermark, .news = d->options.news,
    .leaks_last = image->header.version < 3,    /* no place for the mark: recover.c */
  };

  w->refcounts = refcount_open (image->file, &image->header, image->overlap);
  if (w->refcounts == NULL || check_header_count (image, w->refcounts) == -1)
    return -1;
  w->alloc = alloc_open (image->file, image->header.cluster_bits, w->refcounts,
                         image->overlap, d->grace, &options);
  if (w->alloc == NULL)
    return -1;
  w->l2 = l2_open (image, w->alloc, d->map, d->options.l2_slice);
  return w->l2 ? 0 : -1;
}

/* Opens what requests share, as far as the image and the options need it. */
static int
open_shared (struct writable *w, const struct disk *d)
{
  struct image *image = d->image;
  const struct header *h = &image->header;
  const bool copyup = d->options.copy_on_read && layers_count (d->layers) > 1 &&
    !(h->incompatible & QCOW2_INCOMPAT_DATA_FILE);
  const bool vacant = image->data && !w->data_is_raw && w->discard;

  w->inflight = inflight_new ();
  if (w->inflight == NULL)
    return -1;
  if (copyup && (w->copyup = copyup_new ()) == NULL)
    return -1;
  if (entry_is_extended (h) && (w->fresh = fresh_new ()) == NULL)
    return -1;
  if (vacant && (w->vacant = vacant_new (image->data, w->inflight, d->grace,
                                         h->cluster_bits, h->size)) == NULL)
    return -1;
  if (d->options.compress &&
      (w->compressor = compressor_new (h->compression_type, h->cluster_size,
                                       &d->options.compress_options)) == NULL)
    return -1;
  return 0;
}

/* Opens what writes changes to the file. */
static int
open_checkpoint (struct writable *w, const struct disk *d)
{
  const struct checkpoint_options options = {
    .image = d->image, .l2 = w->l2, .alloc = w->alloc, .refcounts = w->refcounts,
    .vacant = w->vacant, .dirty_limit = max64 (d->options.l2_cache / 3, MIN_DIRTY),
    .interval_ms = d->options.checkpoint_interval_ms,
  };

  w->checkpoint = checkpoint_new (&options);
  if (w->checkpoint == NULL)
    return -1;
  return d->bitmaps ? bitmap_start (d->bitmaps, w->refcounts, w->alloc, w->checkpoint,
                                    d->image->health) : 0;
}

/* Can the external data file still be a raw image of the disk?  With a backing file it
 * cannot, because data of the layers below is not in it: then the autoclear bit that
 * promises it is cleared (R8). */
static bool
data_is_raw (const struct disk *d)
{
  return image_data_is_raw (d->image) && layers_count (d->layers) == 1;
}

/* Opens everything without changing the image.  After a failure, call writable_close. */
static int
writable_open (struct writable *w, const struct disk *d)
{
  *w = (struct writable) {
    .data_is_raw = data_is_raw (d),
    .discard = d->options.discard, .detect_zeroes = d->options.detect_zeroes,
    .bitmaps = d->options.unrecorded ? NULL : d->bitmaps,
  };
  return open_metadata (w, d) == -1 || open_shared (w, d) == -1 ||
    open_checkpoint (w, d) == -1 ? -1 : 0;
}

static void
writable_close (struct writable *w)
{
  checkpoint_free (w->checkpoint);
  vacant_free (w->vacant);
  inflight_free (w->inflight);
  fresh_free (w->fresh);
  copyup_free (w->copyup);
  l2_close (w->l2);
  if (w->alloc)
    alloc_close (w->alloc);
  refcount_close (w->refcounts);
  compressor_free (w->compressor);
  memset (w, 0, sizeof *w);
}

static int
open_live (struct disk *d)
{
  d->live = d->frozen;
  d->live.w = &d->w;
  d->live.far = storage_is_far (d->image->file);
  d->live.lower = layers_view_new (d->layers, 1, d->map, d->live.size,
                                   d->options.l2_slice);
  return d->live.lower ? 0 : -1;
}

void
disk_free_writable (struct disk *d)
{
  writable_close (&d->w);
  layers_view_free (d->live.lower);
  memset (&d->live, 0, sizeof d->live);
}

/* --- the first changes --- */

/* An image that was not closed properly gets correct refcounts before anything relies on
 * them.  An image for which that is not possible stays as it is, and is served read-only
 * until the server ends (R9), or until there is space for it. */
static int
recover (struct disk *d)
{
  if (recover_image (d->image) == 0)
    return 0;
  if (errno == ENOMEM)
    return -1;                  /* the next client tries again */
  d->no_space_to_recover = errno == ENOSPC;
  d->why_readonly = d->no_space_to_recover
    ? "the image was not closed properly, and there is no space to repair it"
    : "the image was not closed properly and could not be repaired";
  d->told_readonly = true;      /* more has been reported */
  return -1;
}

/* Extends a raw data file to the size of the disk, including parts never written. */
static int
complete_raw_data (const struct disk *d)
{
  const struct image *image = d->image;

  if (!d->w.data_is_raw || storage_size (image->data) >= image->header.size)
    return 0;
  return storage_truncate (image->data, image->header.size);
}

/* R8: autoclear bits of features that the plugin does not maintain are cleared before the
 * first change by a client. */
static int
clear_autoclear (struct disk *d)
{
  const uint64_t keep = (d->bitmaps ? QCOW2_AUTOCLEAR_BITMAPS : 0) |
    (d->w.data_is_raw ? QCOW2_AUTOCLEAR_RAW_DATA_FILE : 0);
  struct header *h = &d->image->header;

  if (h->version < 3 || (h->autoclear & ~keep) == 0)
    return 0;
  if (headerwrite_autoclear (d->image->file, h->autoclear & keep) == -1)
    return -1;
  h->autoclear &= keep;
  return 0;
}

/* As QEMU does: marks an image corrupt if its refcount structures are unusable. */
static void
mark_unusable (struct disk *d)
{
  health_set_writable (d->image->health);
  health_corrupt (d->image->health, "refcounts are unusable");
  d->why_readonly = "its refcounts are unusable";
  d->told_readonly = true;      /* more has been reported */
}

/* --- becoming writable, and coming to rest --- */

static int
open_all (struct disk *d)
{
  if (recover (d) == -1)
    return -1;
  if (writable_open (&d->w, d) == 0 && open_live (d) == 0 &&
      complete_raw_data (d) == 0 && clear_autoclear (d) == 0)
    return 0;
  if (errno == EUCLEAN)
    mark_unusable (d);
  disk_free_writable (d);
  return -1;
}

/* Called with the lock held. */
int
disk_become_writable (struct disk *d)
{
  const enum image_role before = d->image->role;

  if (image_lock (d->image, IMAGE_WRITER) == -1)
    return -1;
  if (open_all (d) == -1) {
    image_lock (d->image, before);
    return -1;
  }
  health_set_writable (d->image->health);
  atomic_store (&d->current, &d->live);
  return 0;
}

/* Requests of readers may delay the release of freed clusters for a moment.  If it takes
 * longer, everything is durable, but the marks in the header and the freed clusters stay
 * until the next writer leaves, or until the disk is closed. */
int
disk_quiesce (struct disk *d)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  const int64_t deadline = clock_ms () + QUIESCE_SECONDS * 1000;
  int r, err;

  checkpoint_stop_timer (d->w.checkpoint);
  if (health_check (d->image->health) == -1)
    return -1;                  /* the cause was reported */
  /* If this fails, it is tried again later; the disk comes to rest anyway. */
  r = bitmap_store (d->bitmaps);
  err = errno;
  do {
    if (checkpoint_quiesce (d->w.checkpoint) == -1)
      return -1;
    if (!checkpoint_holds_back (d->w.checkpoint)) {
      if (health_end_changes (d->image->health) == -1)
        return -1;
      errno = err;
      return r;
    }
    while (checkpoint_holds_back (d->w.checkpoint) && clock_ms () < deadline) {
      nanosleep (&moment, NULL);
      if (checkpoint_reap (d->w.checkpoint) == -1)
        return -1;
    }
  } while (clock_ms () < deadline);

  nbdkit_error ("%s: a request in progress delays the reuse of freed space",
                d->options.path);
  errno = r == -1 ? err : EBUSY;
  return -1;
}
