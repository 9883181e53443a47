/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk become writable, and how does it come to rest?
 *
 * When the first client comes that may write: take the writer's lock, repair what a
 * crash has left, then build, from the bottom up, what writing needs (refcounts, L2
 * tables, allocator, checkpoint), and only then let requests see it.  Until the
 * end nothing but a repair has changed the image, and a failure leaves the disk as
 * it was.
 *
 * When the last one has left: everything durable, freed clusters released,
 * allocations made ahead given back, bitmaps stored, marks taken off.
 *
 * Locks: all with the disk's lock held.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <time.h>

#include "util/report.h"
#include "format/entry.h"
#include "request/copyup.h"
#include "check/repair.h"
#include "disk/disk-impl.h"

/* How long the last writer waits for requests of readers when it leaves. */
#define QUIESCE_SECONDS 5

/* Changed slices wait for a checkpoint up to a third of l2-cache, and up to this many
 * bytes if that is less.  While it writes copies of them, as many others can change. */
#define MIN_DIRTY (UINT64_C (64) << 10)

/* R8: autoclear bits of features that we don't maintain are cleared before the first
 * change. */
static int
clear_autoclear (struct hostfile *file, struct header *h, uint64_t keep)
{
  const struct be64 kept = put64 (h->autoclear & keep);

  if (h->version < 3 || (h->autoclear & ~keep) == 0)
    return 0;
  if (hostfile_write (file, &kept, sizeof kept,
                      offsetof (struct qcow2_header,
                                autoclear_features)) == -1 ||
      hostfile_sync (file) == -1)
    return -1;
  h->autoclear &= keep;
  return 0;
}

/* Can the external data file be kept a raw image of the disk?  What shows through from
 * below is not in it: then the promise is taken back (R8). */
static bool
data_is_raw (const struct disk *d)
{
  return image_data_is_raw (d->image) && layers_count (d->layers) == 1;
}

/* Of all the disk, also where nothing was written yet. */
static int
complete_raw_data (struct writable *w, uint64_t size)
{
  if (!w->data_is_raw || hostfile_size (w->data) >= size)
    return 0;
  return hostfile_truncate (w->data, size);
}

void
disk_free_writable (struct disk *d)
{
  checkpoint_free (d->w.checkpoint);
  vacant_free (d->w.vacant);
  inflight_free (d->w.inflight);
  fresh_free (d->w.fresh);
  copyup_free (d->w.copyup);
  if (d->w.alloc)
    alloc_close (d->w.alloc);
  l2_close (d->w.l2);
  refcount_close (d->refcounts);
  compressor_free (d->w.compressor);
  layers_view_free (d->live.lower);
  memset (&d->w, 0, sizeof d->w);
  memset (&d->live, 0, sizeof d->live);
  d->refcounts = NULL;
}

/* The header's cluster is in use in any image.  If its count is 0, then the counts
 * are not to be relied on: what is free is not known.
 */
static int
check_header_count (struct disk *d)
{
  uint64_t value;

  if (refcount_get (d->refcounts, 0, &value) == -1)
    return -1;
  if (value != 0)
    return 0;
  nbdkit_error ("%s: corrupt refcounts: the header's cluster at 0 is in use but "
                "its reference count is 0", d->options.path);
  errno = EUCLEAN;
  return -1;
}

/* An image that was not closed properly gets right refcounts before anything relies on
 * them.  What can't be repaired stays as it is, and is served read-only for as long as
 * we serve it (R9). */
static int
repair_dirty (struct disk *d)
{
  if (!(d->image->header.incompatible & QCOW2_INCOMPAT_DIRTY))
    return 0;
  if (repair_refcounts (d->image, false) == 0 &&
      health_end_changes (d->image->health) == 0)
    return 0;
  if (errno == ENOMEM)
    return -1;                  /* the next client tries again */
  d->why_readonly = "the image was not closed properly and could not be repaired";
  d->told_readonly = true;      /* and more than this */
  return -1;
}

/* Called with the lock held. */
int
disk_become_writable (struct disk *d)
{
  const enum image_role before = d->image->role;
  struct hostfile *file = d->image->file;
  struct header *h = &d->image->header;
  struct overlap *overlap = d->image->overlap;
  struct health *health = d->image->health;
  struct writable *w = &d->w;

  if (image_lock (d->image, IMAGE_WRITER) == -1)
    return -1;
  if (repair_dirty (d) == -1) {
    image_lock (d->image, before);
    return -1;
  }

  w->file = file;
  w->data = d->image->data;
  w->data_is_raw = data_is_raw (d);
  w->payload = d->image->payload;
  w->header = h;
  w->discard = d->options.discard;
  w->detect_zeroes = d->options.detect_zeroes;

  d->refcounts = refcount_open (file, h, overlap);
  if (d->refcounts == NULL || check_header_count (d) == -1)
    goto error;
  w->l2 = l2_open (file, h, overlap, health, d->map, d->options.l2_slice);
  if (w->l2 == NULL)
    goto error;
  w->alloc = alloc_open (file, h->cluster_bits, d->refcounts, overlap,
                         d->grace, d->options.discard);
  if (w->alloc == NULL)
    goto error;
  alloc_set_memory (w->alloc, map_budget (d->map));
  l2_set_alloc (w->l2, w->alloc);
  w->inflight = inflight_new ();
  if (w->inflight == NULL)
    goto error;
  if (d->options.copy_on_read && layers_count (d->layers) > 1 &&
      !(h->incompatible & QCOW2_INCOMPAT_DATA_FILE)) {
    w->copyup = copyup_new ();
    if (w->copyup == NULL)
      goto error;
  }
  if (entry_is_extended (h)) {
    w->fresh = fresh_new ();
    if (w->fresh == NULL)
      goto error;
  }
  w->checkpoint = checkpoint_new (file, w->l2, w->alloc, d->refcounts, overlap,
                                  health, h->cluster_bits,
                                  max64 (d->options.l2_cache / 3, MIN_DIRTY));
  if (w->checkpoint == NULL)
    goto error;
  if (w->data && !w->data_is_raw && w->discard) {
    w->vacant = vacant_new (w->data, w->inflight, d->grace, h->cluster_bits,
                            h->size);
    if (w->vacant == NULL)
      goto error;
  }
  checkpoint_set_data_file (w->checkpoint, w->data, w->vacant);
  if (d->options.compress) {
    w->compressor = compressor_new (h->compression_type, h->cluster_size);
    if (w->compressor == NULL)
      goto error;
  }
  if (d->bitmaps &&
      bitmap_start (d->bitmaps, d->refcounts, w->alloc, w->checkpoint,
                    health) == -1)
    goto error;
  /* Behind the end of the disk nothing is recorded (edit.c). */
  w->bitmaps = d->options.size_at_least == 0 ? d->bitmaps : NULL;

  d->live = d->frozen;
  d->live.w = w;
  d->live.lower = layers_view_new (d->layers, 1, d->map, h->size,
                                   d->options.l2_slice);
  if (d->live.lower == NULL)
    goto error;
  if (complete_raw_data (w, h->size) == -1 ||
      clear_autoclear (file, h,
                       (d->bitmaps ? QCOW2_AUTOCLEAR_BITMAPS : 0) |
                       (w->data_is_raw ? QCOW2_AUTOCLEAR_RAW_DATA_FILE : 0))
      == -1)
    goto error;

  health_set_writable (health);
  atomic_store (&d->current, &d->live);
  return 0;

 error:
  /* As QEMU does: refcount structures that are no good mark the image. */
  if (errno == EUCLEAN) {
    health_set_writable (health);
    health_corrupt (health, "refcounts are unusable");
    d->why_readonly = "its refcounts are unusable";
    d->told_readonly = true;    /* and more than this */
  }
  disk_free_writable (d);
  image_lock (d->image, before);
  return -1;
}

static double
seconds (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

/* Readers may still have requests in flight that hold back what was freed, for a
 * moment.  If that lasts, all is durable, but marks stay on and space stays taken until
 * the next to leave, or closing, tries again. */
int
disk_quiesce (struct disk *d)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  const double deadline = seconds () + QUIESCE_SECONDS;
  int r;

  if (health_check (d->image->health) == -1)
    return -1;                  /* its cause was reported */
  /* If that fails, they are tried again later; the disk comes to rest anyway. */
  r = bitmap_store (d->bitmaps);
  do {
    if (checkpoint_quiesce (d->w.checkpoint) == -1)
      return -1;
    if (!checkpoint_holds_back (d->w.checkpoint))
      return health_end_changes (d->image->health) == -1 ? -1 : r;
    while (checkpoint_holds_back (d->w.checkpoint) && seconds () < deadline) {
      nanosleep (&moment, NULL);
      if (checkpoint_reap (d->w.checkpoint) == -1)
        return -1;
    }
  } while (seconds () < deadline);

  nbdkit_error ("%s: a request in progress delays the reuse of freed space",
                d->options.path);
  errno = EBUSY;
  return -1;
}
