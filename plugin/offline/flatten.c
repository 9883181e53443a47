/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image become independent of its backing chain?
 *
 * All data that is visible from the layers below is copied into the top image, by several
 * threads (chunks.c).  The location of data is resolved once for the whole chain
 * (resolve.c), so each byte is read once, from the layer that contains it, and the number
 * of layers hardly matters.  copyup.c copies a chunk; it skips clusters that the top
 * image already has.
 *
 * No client is served in the meantime.  The order of steps, and the state of the image
 * after a crash:
 *
 *   copies, with checkpoints every few seconds     an overlay, with more data of its own
 *   quiesce                                        the same; all of it is durable
 *   backlink_remove                                independent
 *
 * The disk shows the same data at each moment.  If it is interrupted, the next run
 * resumes with the rest.  Zeros below are not copied: without a backing file, unallocated
 * clusters read as zeros.
 *
 * Internal snapshots lose their backing file, too.  Only data of the active disk is
 * copied, so an image is refused if one of its snapshots needs the layers below.
 *
 * Locks: none; the image's own rooms have theirs.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "image/backlink.h"
#include "request/copyup.h"
#include "disk/disk.h"
#include "offline/flatten.h"

/* Resolving longer parts of the chain at a time saves reads in every layer, if the memory
 * limit for mappings allows it. */
#define LONG_SLICE (UINT64_C (64) << 10)
#define MEMORY_FOR_LONG_SLICES (UINT64_C (4) << 20)

/* --- copying --- */

_Static_assert (CHUNKS_SCRATCH >= COPYUP_PIECE, "memory for copyup_range");

struct copying {
  struct grace *grace;
  struct view view;
};

static int
copy_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end, uint64_t *copied)
{
  const struct copying *c = opaque;
  const struct grace_pin pin = grace_enter (c->grace);
  const int r = copyup_range (&c->view, scratch, start, end, copied);
  KEEP_ERRNO_FOR_BLOCK;

  grace_leave (c->grace, pin);
  checkpoint_relieve (c->view.w->checkpoint);
  return r;
}

static int
make_durable (void *opaque)
{
  const struct copying *c = opaque;

  return checkpoint_flush (c->view.w->checkpoint);
}

/* ERR: errno.  Returns -1. */
static int
cut_short (const struct disk_options *o, const struct chunks_watch *watch, int err,
           uint64_t done, uint64_t size)
{
  nbdkit_error ("%s: flattening %s after %" PRIu64 " of %" PRIu64 " bytes of the disk%s",
                o->path, err == EINTR ? "was stopped" : "failed", done, size,
                watch && watch->image_goes ? ""
                : "; the next start with flatten=true resumes it");
  errno = err;
  return -1;
}

/* Copies all data of the disk that comes from the layers below. */
static int
copy_all (const struct disk_inside *in, const struct disk_options *o,
          const struct chunks_watch *watch, uint64_t *copied)
{
  const uint64_t slice = o->l2_cache >= MEMORY_FOR_LONG_SLICES
    ? max64 (o->l2_slice, LONG_SLICE) : o->l2_slice;
  struct copying c = { .grace = in->grace, .view = *in->view };
  const struct chunks_job job = {
    .size = c.view.size, .opaque = &c, .work = copy_chunk, .make_durable = make_durable,
  };
  uint64_t done;
  int r;

  c.view.lower = layers_view_new (in->view->layers, 1, in->map, c.view.size, slice);
  if (c.view.lower == NULL)
    return -1;
  r = chunks_run (&job, watch, &done, copied);
  {
    KEEP_ERRNO_FOR_BLOCK;

    layers_view_free (c.view.lower);
  }
  return r == 0 ? 0 : cut_short (o, watch, errno, done, job.size);
}

/* --- is it allowed? --- */

static int
refuse (const struct disk_options *o, const char *why, const char *what)
{
  nbdkit_error ("%s: the image cannot be flattened: %s%s", o->path, why, what);
  errno = EPERM;
  return -1;
}

/* Does the disk of this snapshot show data of lower layers?  1, 0, or -1 (reported). */
static int
needs_below (const struct disk_inside *in, const struct disk_options *o,
             const struct snapshot *s)
{
  struct layers_view *v =
    layers_view_new_snapshot (in->view->layers, in->map, s->l1_offset, s->disk_size,
                              o->l2_slice);
  uint64_t at;
  struct run run;
  int r = 0;

  if (v == NULL)
    return -1;
  for (at = 0; r == 0 && at < s->disk_size; at += run.len) {
    r = layers_lookup (v, at, s->disk_size - at, &run);
    if (r == 0)
      r = run.layer > 0 && run.kind != RUN_ZERO;
  }
  layers_view_free (v);
  return r;
}

static int
check_snapshots (const struct disk_inside *in, const struct image *image,
                 const struct disk_options *o)
{
  const struct header *h = &image->header;
  char name[PRINTABLE_SIZE (64)];
  const struct snapshot *s;
  unsigned i;
  int r;

  for (i = 0; i < image->snapshots.n; i++) {
    s = &image->snapshots.list[i];
    r = s->disk_size > (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits)
      ? 1 : needs_below (in, o, s);
    if (r == -1)
      return -1;
    if (r == 1)
      return refuse (o, "an internal snapshot needs the backing file: ",
                     printable (s->name, strlen (s->name), name, sizeof name));
  }
  return 0;
}

/* --- the whole change --- */

static int
flatten (struct disk *d, struct image *image, const struct disk_options *o,
         const struct chunks_watch *watch, uint64_t *copied)
{
  struct disk_inside in = disk_inside (d);
  bool writable = true;
  int r, ended, err;

  if (disk_why_readonly (d))
    return refuse (o, disk_why_readonly (d), "");
  if (image->header.incompatible & QCOW2_INCOMPAT_DATA_FILE)
    return refuse (o, "it has an external data file", "");
  if (check_snapshots (&in, image, o) == -1)
    return -1;
  /* Ask before this: connecting writes to an image that is dirty or has bitmaps. */
  if (!chunks_tell (watch, 0, in.view->size, 0))
    return cut_short (o, watch, EINTR, 0, in.view->size);
  if (disk_connect (d, &writable) == -1)
    return -1;
  if (!writable)
    return refuse (o, disk_why_readonly (d), "");

  in = disk_inside (d);
  r = copy_all (&in, o, watch, copied);
  err = errno;
  report_keep ();
  ended = disk_disconnect (d, true);
  /* If the host is still full, this was already reported. */
  report_end_keeping (r == 0 || (ended == -1 && errno != err));
  if (ended == -1)
    return -1;
  errno = err;
  if (r == -1)
    return -1;
  /* Everything that the image will need is durable now. */
  return backlink_remove (image->file, &image->header);
}

int
flatten_image (struct image *image, const struct disk_options *options,
               const struct chunks_watch *watch, uint64_t *copied)
{
  struct disk_options o = *options;
  struct disk *d;
  int r = 0, err = 0;

  *copied = 0;
  o.copy_on_read = false;
  if (image_reload (image) == -1 || disk_open_on (&o, image, &d) == -1)
    return -1;
  if (layers_count (disk_inside (d).view->layers) > 1) {
    r = flatten (d, image, &o, watch, copied);
    err = errno;
  }
  if (disk_close (d) == -1 && r == 0)
    return -1;
  errno = err;
  return r;
}
