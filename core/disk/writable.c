/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a generation become writable, and how does it come to rest?
 *
 * When the first client comes that may write: take the writer's lock, repair what a crash
 * has left, then build what writing needs from the bottom up (refcounts, allocator, L2
 * tables, checkpoint), and only then let requests use it.  Until the last steps (the
 * length of a raw data file, autoclear bits) only a repair changes the image, and a
 * failure leaves the generation as it was.
 *
 * When the last such client has left, or before a change of the disk: make everything
 * durable, release freed clusters, give back clusters that were allocated ahead, store
 * the bitmaps, and clear the marks in the header.
 *
 * Locks: these functions are called by steps (steps.c), so by one thread at a time.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/report.h"
#include "format/entry.h"
#include "image/headerwrite.h"
#include "image/overlayref.h"
#include "request/copyup.h"
#include "check/recover.h"
#include "disk/disk-impl.h"

/* How long settling waits for requests of readers. */
#define SETTLE_SECONDS 5

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
  return report_refusal (EUCLEAN, "%s: corrupt refcounts: the header's cluster at 0 is "
                         "in use but its reference count is 0",
                         storage_path (image->file));
}

/* Opens refcounts, allocator and tables; each uses the one before. */
static int
open_metadata (struct writable *w, const struct generation *g)
{
  struct image *image = g->image;
  const struct alloc_options options = {
    .discard = g->disk->options.discard, .budget = map_budget (g->disk->map),
    .watermark = g->disk->options.watermark, .threshold = &g->disk->threshold,
    .news = g->disk->options.news,
    .leaks_last = image->header.version < 3,    /* no place for the mark: recover.c */
  };

  w->refcounts = refcount_open (image->file, &image->header, image->overlap);
  if (w->refcounts == NULL || check_header_count (image, w->refcounts) == -1)
    return -1;
  w->alloc = alloc_open (image->file, image->header.cluster_bits, w->refcounts,
                         image->overlap, g->disk->epoch, &options);
  if (w->alloc == NULL)
    return -1;
  w->l2 = l2_open (image, w->alloc, g->disk->map, g->disk->options.l2_slice);
  return w->l2 ? 0 : -1;
}

/* Opens what requests share, as far as the image and the options need it. */
static int
open_shared (struct writable *w, const struct generation *g)
{
  struct image *image = g->image;
  const struct header *h = &image->header;
  const bool copyup = g->disk->options.copy_on_read && layers_count (g->layers) > 1 &&
    !(h->incompatible & QCOW2_INCOMPAT_DATA_FILE);
  const bool discards = image->data && !w->data_is_raw && w->discard;

  w->rangelock = rangelock_new ();
  if (w->rangelock == NULL)
    return -1;
  if (copyup && (w->copyup = copyup_new ()) == NULL)
    return -1;
  if (entry_is_extended (h) && (w->knownzero = knownzero_new ()) == NULL)
    return -1;
  if (discards && (w->discards = discards_new (image->data, w->rangelock, g->disk->epoch,
                                               h->cluster_bits, h->size)) == NULL)
    return -1;
  if (g->disk->options.compress &&
      (w->compressor = compressor_new (h->compression_type, h->cluster_size,
                                       &g->disk->options.compress_options)) == NULL)
    return -1;
  return 0;
}

static void
narrow_bitmaps (void *opaque)
{
  bitmap_narrow (opaque);
}

/* Opens what writes changes to the file. */
static int
open_checkpoint (struct writable *w, const struct generation *g)
{
  const struct checkpoint_options options = {
    .image = g->image, .l2 = w->l2, .alloc = w->alloc, .refcounts = w->refcounts,
    .discards = w->discards,
    .dirty_limit = max64 (g->disk->options.l2_cache / 3, MIN_DIRTY),
    .interval_ms = g->disk->options.checkpoint_interval_ms,
    .after = narrow_bitmaps, .opaque = g->bitmaps,
  };

  w->checkpoint = checkpoint_new (&options);
  if (w->checkpoint == NULL)
    return -1;
  return g->bitmaps ? bitmap_start (g->bitmaps, w->refcounts, w->alloc, w->checkpoint,
                                    g->image->health, g->disk->options.bitmap_durable)
    : 0;
}

/* Can the external data file still be a raw image of the disk?  With a backing file it
 * cannot, because data of the layers below is not in it: then the autoclear bit that
 * promises it is cleared (R8). */
static bool
data_is_raw (const struct generation *g)
{
  return image_data_is_raw (g->image) && layers_count (g->layers) == 1;
}

/* Opens everything without changing the image.  After a failure, call writable_close. */
static int
writable_open (struct writable *w, const struct generation *g)
{
  *w = (struct writable) {
    .data_is_raw = data_is_raw (g),
    .discard = g->disk->options.discard, .detect_zeroes = g->disk->options.detect_zeroes,
    .compress_zeros = g->disk->options.compress == COMPRESS_ALL, .bitmaps = g->bitmaps,
  };
  return open_metadata (w, g) == -1 || open_shared (w, g) == -1 ||
    open_checkpoint (w, g) == -1 ? -1 : 0;
}

static void
writable_close (struct writable *w)
{
  checkpoint_free (w->checkpoint);
  discards_free (w->discards);
  rangelock_free (w->rangelock);
  knownzero_free (w->knownzero);
  copyup_free (w->copyup);
  l2_close (w->l2);
  if (w->alloc)
    alloc_close (w->alloc);
  refcount_close (w->refcounts);
  compressor_free (w->compressor);
  memset (w, 0, sizeof *w);
}

static int
open_live (struct generation *g)
{
  g->live = g->frozen;
  g->live.w = &g->w;
  g->live.remote = storage_is_remote (g->image->file);
  g->live.lower = layers_view_new (g->layers, 1, g->disk->map, g->live.size,
                                   g->disk->options.l2_slice);
  return g->live.lower ? 0 : -1;
}

void
generation_end_writing (struct generation *g)
{
  {
    LOCK_FOR_BLOCK (&g->disk->lock);

    g->is_live = false;
  }
  writable_close (&g->w);
  layers_view_free (g->live.lower);
  memset (&g->live, 0, sizeof g->live);
}

/* --- the first changes --- */

/* An image that was not closed properly gets correct refcounts before anything relies on
 * them.  An image for which that is not possible stays as it is, and is served read-only
 * until the server ends (R9), or until there is space for it. */
static int
recover (struct generation *g)
{
  if (recover_image (g->image) == 0)
    return 0;
  if (errno == ENOMEM)
    return -1;                  /* the next client tries again */
  g->disk->no_space_to_recover = errno == ENOSPC;
  g->disk->why_fixed = g->disk->no_space_to_recover
    ? "the image was not closed properly, and there is no space to repair it"
    : "the image was not closed properly and could not be repaired";
  g->disk->told_readonly = true;      /* more has been reported */
  return -1;
}

/* Extends a raw data file to the size of the disk, including parts never written. */
static int
complete_raw_data (const struct generation *g)
{
  const struct image *image = g->image;

  if (!g->w.data_is_raw || storage_size (image->data) >= image->header.size)
    return 0;
  return storage_truncate (image->data, image->header.size);
}

/* R8: autoclear bits of features that the plugin does not maintain are cleared before the
 * first change by a client. */
static int
clear_autoclear (struct generation *g)
{
  const uint64_t keep = (g->bitmaps ? QCOW2_AUTOCLEAR_BITMAPS : 0) |
    (g->w.data_is_raw ? QCOW2_AUTOCLEAR_RAW_DATA_FILE : 0);
  struct header *h = &g->image->header;

  if (h->version < 3 || (h->autoclear & ~keep) == 0)
    return 0;
  if (headerwrite_autoclear (g->image->file, h->autoclear & keep) == -1)
    return -1;
  h->autoclear &= keep;
  return 0;
}

/* As QEMU does: marks an image corrupt if its refcount structures are unusable. */
static void
mark_unusable (struct generation *g)
{
  health_set_writable (g->image->health);
  health_corrupt (g->image->health, "refcounts are unusable");
  g->disk->why_fixed = "its refcounts are unusable";
  g->disk->told_readonly = true;      /* more has been reported */
}

/* --- becoming writable, and coming to rest --- */

/* Is it not below an image in which the disk has gone on?  (If this server has written
 * it, it knows.) */
static bool
may_go_on (const struct generation *g, enum image_role before)
{
  const struct disk_options *const o = &g->disk->options;

  return !o->guard_below || o->backing == BACKING_DENY || before == IMAGE_WRITER ||
    overlayref_check (g->image, o->hooks) == 0;
}

int
generation_lock (struct generation *g)
{
  const enum image_role before = image_role (g->image);

  if (image_lock (g->image, IMAGE_WRITER) == -1)
    return -1;
  if (may_go_on (g, before) && recover (g) == 0)
    return 0;
  KEEP_ERRNO_FOR_BLOCK;
  image_lock (g->image, before);
  return -1;
}

int
generation_become_writable (struct generation *g)
{
  if (writable_open (&g->w, g) == 0 && open_live (g) == 0 &&
      complete_raw_data (g) == 0 && clear_autoclear (g) == 0) {
    LOCK_FOR_BLOCK (&g->disk->lock);

    health_set_writable (g->image->health);
    g->is_live = true;
    return 0;
  }
  if (errno == EUCLEAN)
    mark_unusable (g);
  generation_end_writing (g);
  return -1;
}

static int
give_up_waiting (const struct generation *g)
{
  return report_refusal (EBUSY, "%s: a request in progress delays the reuse of freed "
                         "space", g->disk->options.path);
}

/* Then less is changed, and readers hold back only what is freed from now on. */
int
generation_prepare_to_settle (struct generation *g)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  int64_t deadline;
  uint64_t stamp;

  if (checkpoint_flush (g->w.checkpoint) == -1)
    return -1;
  deadline = clock_ms () + SETTLE_SECONDS * 1000;
  stamp = epoch_stamp (g->disk->epoch);
  while (checkpoint_holds_back (g->w.checkpoint) && !epoch_passed (g->disk->epoch, stamp)) {
    if (clock_ms () >= deadline)
      return give_up_waiting (g);
    nanosleep (&moment, NULL);
  }
  return checkpoint_reap (g->w.checkpoint);
}

/* Requests of readers may delay the release of freed clusters for a moment.  If it takes
 * longer, everything is durable, but the marks in the header and the freed clusters stay
 * until the next writer leaves, or until the disk is closed. */
int
generation_settle (struct generation *g)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  int64_t deadline = 0;
  int r, err;

  if (g->is_live)
    checkpoint_stop_timer (g->w.checkpoint);
  if (health_check (g->image->health) == -1)
    return -1;                  /* the cause was reported */
  /* If this fails, it is tried again later; the disk comes to rest anyway. */
  r = bitmap_store (g->bitmaps);
  err = errno;
  do {
    if (checkpoint_quiesce (g->w.checkpoint) == -1)
      return -1;
    if (deadline == 0)
      deadline = clock_ms () + SETTLE_SECONDS * 1000;
    if (!checkpoint_holds_back (g->w.checkpoint)) {
      if (health_end_changes (g->image->health) == -1)
        return -1;
      errno = err;
      return r;
    }
    while (checkpoint_holds_back (g->w.checkpoint) && clock_ms () < deadline) {
      nanosleep (&moment, NULL);
      if (checkpoint_reap (g->w.checkpoint) == -1)
        return -1;
    }
  } while (clock_ms () < deadline || !checkpoint_holds_back (g->w.checkpoint));

  give_up_waiting (g);
  errno = r == -1 ? err : EBUSY;
  return -1;
}
