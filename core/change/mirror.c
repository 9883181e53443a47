/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk move to another image while clients write it?
 *
 * Before a client changes anything, it records which pieces of the disk that will be
 * (disk_record).  The copy goes in rounds over the pieces that are marked:
 *
 *   take      the marks move to a set of this round's own
 *   drain     requests that may have marked before that, end
 *   copy      what the disk shows now; zeros stay sparse
 *
 * What changes after a piece was taken is marked again, for the next round: so no change
 * is lost, and at the end of a round the target lacks only what was marked meanwhile.
 * The first round is all of the disk, what its top image contains, or nothing.  When so
 * little was marked that clients can wait for it, the target is ready, and follows.
 *
 *   near      what was copied is made durable, so that the target has little to do to come
 *             to rest.  If clients wrote much meanwhile, rounds go on; so they do if much is
 *             left when the gate has closed, which opens again then
 *   pivot     one change of the disk (disk_change).  Behind the gate the rest is copied, the
 *             target comes to rest as after its last writer, and the next generation has it
 *             as its top, over its own chain
 *   finish    behind the gate the rest is copied; the disk goes on as it is
 *
 * A crash.  The old image is whole at each instant, and so is the target from the moment
 * when it came to rest.  Until the gate opens, clients have flushed nothing that is not
 * in the old image; from then on, what they flush is in the target alone.  No file says
 * which one is the disk: whoever asked for the pivot learns that it is done, and a line
 * in the server's log says so before the gate opens.
 *
 * The target is an image that this process writes as it would any disk: it has its own
 * allocator, checkpoints and locks, and can fail without harm to the disk.
 *
 * Memory: two sets of at most MOST_PIECES bits, a buffer, and the state of the target,
 * whose mappings are in the memory of those of the disk.
 *
 * Locks: none of its own; the thread that copies has all of it, but for what clients
 * record, and the counters.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "request/dirtyset.h"
#include "disk/export.h"
#include "copy/copy.h"
#include "change/edit.h"
#include "change/mirror.h"
#include "change/overlay.h"

/* Pieces of the disk: 2 MiB of bits in each set. */
#define MOST_PIECES (UINT64_C (1) << 24)
#define USUAL_GRANULARITY 65536
#define LEAST_GRANULARITY 4096

/* Bytes of zeros that are done at a time. */
#define MOST_ZEROS (UINT64_C (1) << 30)
/* So many bytes can be copied while clients wait. */
#define CLOSE (UINT64_C (4) << 20)
/* If requests that ran as the gate closed left more than that, it is not copied there. */
#define MOST_BEHIND_GATE (4 * CLOSE)

struct mirror {
  struct disk *disk;
  struct export *from;          /* all that clients see of it */
  uint64_t size;                /* of both, in bytes */

  struct mirror_target target;
  struct disk *to_disk;         /* made of target.image; or NULL */
  struct export *to;            /* NULL: it is at rest, or the target is raw */
  const char *why_no_pivot;

  unsigned granularity_bits;
  struct dirtyset *live;        /* in which clients record */
  struct dirtyset *round;       /* what this round has not copied yet */
  bool in_round;
  bool recording;
  uint64_t at;                  /* where the round is, in bytes */
  char *buf;                    /* copy_scratch bytes */
  bool target_failed;
  bool too_much;                /* was left when the gate had closed */
  bool locked;                  /* the raw target is, as by a writer */

  _Atomic uint64_t done, left;  /* bytes; what is left of this round */

  struct disk_change change;    /* the pivot */
  struct image *top;            /* the target, when it came to rest */
  const char *old;              /* the image that the disk leaves */
};

static int
refuse (int err, const char *what, const char *why)
{
  report_error ("%s: %s", what, why);
  errno = err;
  return -1;
}

/* --- what is copied, and where to --- */

static const char *
target_path (const struct mirror *m)
{
  return storage_path (m->target.raw ? m->target.raw : m->target.image->file);
}

static struct copy_end
target_end (const struct mirror *m)
{
  return m->to ? copy_export (m->to_disk, m->to) : copy_storage (m->target.raw, true);
}

static int
sync_target (struct mirror *m)
{
  const struct copy_end to = target_end (m);
  const int r = to.ops->sync (&to);

  m->target_failed = r == -1;
  return r;
}

/* Pieces of zeros stay sparse, whatever is beside them. */
static struct copy
copying (const struct mirror *m)
{
  return (struct copy) {
    .from = copy_export (m->disk, m->from), .to = target_end (m),
    .sparse = UINT64_C (1) << m->granularity_bits,
  };
}

/* What is next: from m->at on, up to COUNT bytes, and MOST of data.  *DONE: how many were
 * done, COPIED of them as data. */
static int
copy_some (struct mirror *m, uint64_t count, uint64_t most, uint64_t *done,
           uint64_t *copied)
{
  const struct copy c = copying (m);
  uint64_t at = m->at;
  bool reads;
  int r;

  *copied = 0;
  r = copy_range (&c, m->buf, &at, at + min64 (count, MOST_ZEROS), most, copied, &reads);
  m->target_failed = r == -1 && !reads;
  *done = r == 0 ? at - m->at : 0;
  return r;
}

/* --- rounds --- */

static uint64_t
bytes_of (const struct mirror *m, uint64_t pieces)
{
  return min64 (pieces << m->granularity_bits, m->size);
}

/* The pieces before AT are done. */
static void
advance (struct mirror *m, uint64_t by)
{
  const uint64_t from = m->at, left = m->left;

  m->at += by;
  if (m->at == m->size)
    dirtyset_unmark (m->round, from, by);
  else if (m->at >> m->granularity_bits > from >> m->granularity_bits)
    dirtyset_unmark (m->round, from,
                     round_down (m->at, UINT64_C (1) << m->granularity_bits) - from);
  m->left = left - min64 (by, left);
  m->done += by;
}

/* Goes to the next place that is marked.  Returns how many bytes are, from there on; 0:
 * the round is over. */
static uint64_t
next_marked (struct mirror *m)
{
  uint64_t len;

  for (; m->at < m->size; m->at += len) {
    len = m->size - m->at;
    if (dirtyset_find (m->round, m->at, &len))
      return len;
  }
  return 0;
}

/* Takes what clients have recorded. */
static void
take (struct mirror *m)
{
  dirtyset_take (m->live, m->round);
  m->at = 0;
  m->left = bytes_of (m, dirtyset_count (m->round));
}

static int
check_size (struct mirror *m)
{
  DISK_PIN_FOR_BLOCK now = disk_pin (m->disk);

  return now.view->size == m->size ? 0
    : refuse (EINVAL, target_path (m), "the disk has another size now");
}

/* Returns 1, 0: there is nothing to do, or -1. */
static int
begin_round (struct mirror *m)
{
  if (check_size (m) == -1)
    return -1;
  take (m);
  m->in_round = m->left > 0;
  if (m->in_round)
    disk_drain (m->disk);
  return m->in_round;
}

/* Is so much left that clients should not wait for it? */
static bool
is_far (const struct mirror *m)
{
  return m->in_round || bytes_of (m, dirtyset_count (m->live)) > CLOSE;
}

int
mirror_step (struct mirror *m, uint64_t most, uint64_t *copied)
{
  uint64_t len, done = 0;
  int r;

  *copied = 0;
  if (!m->in_round) {
    r = begin_round (m);
    if (r < 1)
      return r;
  }
  len = next_marked (m);
  if (len > 0 && copy_some (m, len, most, &done, copied) == -1)
    return -1;
  if (len > 0)
    advance (m, done);
  m->in_round = next_marked (m) > 0;
  return is_far (m);
}

int
mirror_near (struct mirror *m)
{
  return sync_target (m) == -1 ? -1 : is_far (m);
}

bool
mirror_target_failed (const struct mirror *m)
{
  return m->target_failed;
}

void
mirror_progress (struct mirror *m, uint64_t *done, uint64_t *left)
{
  *left = min64 (m->left + bytes_of (m, dirtyset_count (m->live)), m->size);
  *done = m->done;
}

/* Behind the gate: nobody changes the disk any more. */
static int
copy_rest (void *opaque)
{
  struct mirror *m = opaque;
  uint64_t len, done, copied;

  if (check_size (m) == -1)
    return -1;
  take (m);
  m->too_much = m->in_round = m->left > MOST_BEHIND_GATE;
  if (m->too_much)
    return -1;
  while ((len = next_marked (m)) > 0) {
    if (copy_some (m, len, UINT64_MAX, &done, &copied) == -1)
      return -1;
    advance (m, done);
  }
  return 0;
}

/* Clients have written too much since mirror_near: not reported. */
static int
refuse_far (void)
{
  errno = EAGAIN;
  return -1;
}

/* --- the end --- */

/* The target is durable, and clean. */
static int
come_to_rest (struct mirror *m)
{
  struct export *const to = m->to;

  if (to == NULL)
    return sync_target (m);
  m->to = NULL;
  m->target_failed = export_close (to) == -1;
  return m->target_failed ? -1 : 0;
}

int
mirror_finish (struct mirror *m)
{
  if (is_far (m))
    return refuse_far ();
  m->too_much = false;
  if (disk_hold (m->disk, copy_rest, m) == 0)
    return come_to_rest (m);
  return m->too_much ? refuse_far () : -1;
}

static int
make_top (void *opaque, struct image *present)
{
  struct mirror *m = opaque;

  m->old = storage_path (present->file);
  if (copy_rest (m) == -1 || come_to_rest (m) == -1)
    return -1;
  m->top = image_again (m->target.image);
  m->change.top = m->top;
  m->change.over = disk_inside (m->to_disk).view->layers;
  return m->top ? 0 : -1;
}

/* Clients that write still wait.  Whoever finds the files after a crash can learn from
 * this which one was the disk. */
static void
tell_move (void *opaque, struct alloc *alloc)
{
  const struct mirror *m = opaque;

  (void) alloc;
  report_notice ("%s: the disk has moved here from %s", target_path (m), m->old);
}

const char *
mirror_why_no_pivot (const struct mirror *m)
{
  return m->why_no_pivot;
}

int
mirror_pivot (struct mirror *m)
{
  if (m->why_no_pivot)
    return refuse (ENOTSUP, target_path (m), m->why_no_pivot);
  if (is_far (m))
    return refuse_far ();
  m->too_much = false;
  m->change = (struct disk_change) {
    .opaque = m, .make = make_top, .release = tell_move, .data_file = true,
  };
  if (disk_change (m->disk, &m->change) == 0)
    return 0;
  return m->too_much ? refuse_far () : -1;
}

void
mirror_end (struct mirror *m)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (m == NULL)
    return;
  if (m->recording)
    disk_record (m->disk, NULL);
  if (m->from)
    export_close (m->from);
  if (m->to)
    export_close (m->to);
  disk_close (m->to_disk);
  image_close (m->top);
  if (m->locked)
    storage_lock (m->target.raw, STORAGE_UNLOCKED);
  dirtyset_free (m->live);
  dirtyset_free (m->round);
  free (m->buf);
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
  DISK_PIN_FOR_BLOCK now = disk_pin (m->disk);
  const struct storage *const file = m->target.raw ? m->target.raw : m->target.image->file;
  const char *why = NULL;

  if (is_in_chain (file, now.view->layers))
    why = "cannot be the target: it is a file of the disk";
  else if (now.view->image->header.crypt_method != QCOW2_CRYPT_NONE)
    why = "cannot be the target: the disk is encrypted, and the target would not be";
  return why ? refuse (EBUSY, target_path (m), why) : 0;
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
  return refuse (EROFS, target_path (m), "cannot be the target: it is read-only");
}

static int
open_raw (struct mirror *m)
{
  if (!storage_is_writable (m->target.raw))
    return refuse (EROFS, target_path (m), "cannot be the target: it is read-only");
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
    : refuse (EINVAL, target_path (m), "Source and target image have different sizes");
}

/* With the disk's layers pinned. */
static const char *
find_why_no_pivot (const struct mirror *m, enum mirror_sync sync, const struct view *v)
{
  const struct disk_options *const d = disk_get_options (m->disk);
  const struct image *const image = m->target.image;

  if (d->in_dir.name)
    return "the disk is one of a directory";
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
  DISK_PIN_FOR_BLOCK now = disk_pin (m->disk);

  m->why_no_pivot = find_why_no_pivot (m, sync, now.view);
  /* (What it contains would hide what is below it, which is not copied.) */
  if (m->why_no_pivot == NULL && sync == MIRROR_TOP &&
      overlay_is_empty (m->target.image) != 1)
    m->why_no_pivot = "the target contains data of its own already";
}

static unsigned
choose_granularity (const struct mirror *m, uint64_t wanted)
{
  unsigned bits;

  if (wanted == 0)
    wanted = m->target.raw ? USUAL_GRANULARITY
      : max64 (min64 (m->target.image->header.cluster_size, USUAL_GRANULARITY),
               LEAST_GRANULARITY);
  bits = __builtin_ctzll (wanted);
  while (m->size >> bits > MOST_PIECES)
    bits++;
  return bits;
}

static int
open_record (struct mirror *m, uint64_t granularity)
{
  struct copy copy;
  uint64_t pieces;

  m->granularity_bits = choose_granularity (m, granularity);
  pieces = max64 (div_up (m->size, UINT64_C (1) << m->granularity_bits), 1);
  m->live = dirtyset_new (pieces, m->granularity_bits);
  m->round = dirtyset_new (pieces, m->granularity_bits);
  copy = copying (m);
  m->buf = memory_get (copy_scratch (&copy));
  if (m->live == NULL || m->round == NULL)
    report_error ("%s: no memory for the record of changes: %m", target_path (m));
  m->recording = m->live && m->round && m->buf && disk_record (m->disk, m->live) == 0;
  return m->recording ? 0 : -1;
}

/* Marks what the top image contains. */
static int
mark_top (struct mirror *m)
{
  struct export *top = export_open (m->disk, "layer:0", false);
  struct extent x;
  int r = top ? 0 : -1;

  for (uint64_t at = 0; r == 0 && at < m->size; at += x.len) {
    x.len = 0;
    r = export_extents (top, m->size - at, at, true, extent_keep, &x);
    if (r == 0 && x.type != EXTENT_HOLE)
      dirtyset_record (m->round, at, x.len);
  }
  KEEP_ERRNO_FOR_BLOCK;
  if (top)
    export_close (top);
  return r;
}

static int
mark_first (struct mirror *m, enum mirror_sync sync)
{
  if (sync == MIRROR_FULL)
    dirtyset_record (m->round, 0, m->size);
  if (sync == MIRROR_TOP && mark_top (m) == -1)
    return -1;
  m->left = bytes_of (m, dirtyset_count (m->round));
  m->in_round = m->left > 0;
  return 0;
}

static int
begin (struct mirror *m, const struct mirror_options *o)
{
  m->from = export_open (m->disk, "", false);
  if (m->from == NULL)
    return -1;
  m->size = export_size (m->from);
  if (check_target (m) == -1 || open_target (m) == -1)
    return -1;
  choose_pivot (m, o->sync);
  return open_record (m, o->granularity) == -1 ? -1 : mark_first (m, o->sync);
}

int
mirror_begin (struct disk *d, const struct mirror_options *o, struct mirror **ret)
{
  struct mirror *m = memory_new (1, sizeof *m);

  if (m == NULL)
    return -1;
  m->disk = d;
  m->target = o->target;
  if (begin (m, o) == 0) {
    *ret = m;
    return 0;
  }
  mirror_end (m);
  return -1;
}
