/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image come to lie over another backing chain, or over none?
 *
 * What the disk shows of the layers below the image, and would not show of the new ones,
 * is copied into the image, by several threads (copy.c).  Flattening is the same, with
 * no new layers, which show zeros.
 *
 * Where data is has been resolved once for each chain (resolve.c), so each byte is read
 * once, from the layer that contains it, and the number of layers hardly matters.  What
 * both chains have in the same place of the same file is not read at all: so if the new
 * backing file is one of the old chain, only what the files between them contain is
 * looked at.  The rest is compared, unit by unit (entry_unit_bits), and a unit that
 * differs is written, like a client does: as data or, if the disk shows zeros there, as a
 * zero cluster (in version 2, as data).
 *
 * No client is served in the meantime.  The order of steps, and the state of the image
 * after a crash:
 *
 *   copies, with checkpoints every few seconds     over the old chain; it contains more
 *   quiesce                                        the same; all of it is durable
 *   backingref_change                              over the new chain
 *
 * The disk shows the same data at each moment.  If it is interrupted, the next run
 * resumes with the rest.  The contents of the disk do not change, so bitmaps record
 * nothing.
 *
 * Internal snapshots come to lie over the new chain, too.  Only data of the active disk
 * is copied.  (QEMU lets snapshots show something else afterwards.)  So an image with
 * snapshots is refused, unless it becomes independent and they need nothing of the layers
 * below.
 *
 * The unsafe mode only changes the header.
 *
 * Locks: none; the image's own modules have theirs.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "format/entry.h"
#include "image/backingref.h"
#include "mapping/places.h"
#include "disk/disk.h"
#include "copy/copy.h"
#include "change/edit.h"
#include "change/rebase.h"
#include "change/snapbelow.h"

/* Resolving longer parts of the chain at a time saves reads in every layer, if the memory
 * limit for mappings allows it. */
#define LONG_SLICE (UINT64_C (64) << 10)
#define MEMORY_FOR_LONG_SLICES (UINT64_C (4) << 20)

/* Bytes that are read and compared at a time, or one cluster if that is larger: they fit
 * into the cache of a processor. */
#define PIECE (UINT64_C (512) << 10)

/* Bytes of decompressed clusters of the new chain that are cached. */
#define CLUSTER_CACHE (UINT64_C (16) << 20)

/* --- views --- */

/* The disk, and what is below it: both chains include the image itself, as layer 0. */
struct copying {
  struct epoch *epoch;
  struct view disk;             /* over the old chain; writable */
  struct view moved;            /* the same image over the new chain; writable */
  struct writable unrecorded;   /* of both: bitmaps record nothing */
  struct view old, new;         /* the layers below the image; read-only */
  uint64_t piece;               /* bytes: a whole number of clusters */
};

static uint64_t
slice_size (const struct disk_options *o)
{
  return o->l2_cache >= MEMORY_FOR_LONG_SLICES ? max64 (o->l2_slice, LONG_SLICE)
    : o->l2_slice;
}

/* A view of the layers below that of V. */
static struct view
below (const struct view *v)
{
  struct view b = *v;

  b.w = NULL;
  return b;
}

static void
close_views (struct copying *c)
{
  KEEP_ERRNO_FOR_BLOCK;

  layers_view_free (c->old.lower);
  layers_view_free (c->new.lower);
  cluster_cache_free (c->new.cluster_cache);
}

/* NEXT: the new chain. */
static int
open_views (struct copying *c, const struct disk_inside *in, struct layers *next,
            const struct disk_options *o)
{
  const struct view *v = in->view;

  c->epoch = in->epoch;
  c->piece = max64 (PIECE, v->image->header.cluster_size);
  c->unrecorded = *v->w;
  c->unrecorded.bitmaps = NULL;
  c->disk = *v;
  c->disk.w = &c->unrecorded;
  c->moved = c->disk;
  c->disk.lower = layers_view_new (v->layers, 1, in->map, v->size, slice_size (o));
  c->old = below (&c->disk);
  c->moved.layers = next;
  c->moved.lower = layers_view_new (next, 1, in->map, v->size, slice_size (o));
  /* A cache knows layers by their numbers. */
  c->moved.cluster_cache = cluster_cache_new (CLUSTER_CACHE);
  c->new = below (&c->moved);
  if (c->old.lower && c->new.lower && c->new.cluster_cache)
    return 0;
  close_views (c);
  return -1;
}

/* --- what has to be compared --- */

/* The image has nothing in [at, at + *len). */
static int
compare_places (const struct copying *c, uint64_t at, uint64_t *len)
{
  const struct places old = { c->old.layers, c->old.lower };
  const struct places new = { c->new.layers, c->new.lower };

  return places_differ (&old, &new, entry_unit_size (&c->disk.image->header), at, len);
}

/* Looks at [at, at + *len), which begins and ends with a unit (or ends with the disk).
 * *LEN becomes the length of its beginning that has to be compared (returns 1) or left
 * alone (0). */
static int
look_at_range (const struct copying *c, uint64_t at, uint64_t *len)
{
  struct run run;

  if (l2_lookup (c->disk.w->l2, at, *len, &run) == -1)
    return -1;
  *len = run.len;
  return run.kind == RUN_UNALLOCATED || run.kind == RUN_RESERVED
    ? compare_places (c, at, len) : 0;
}

/* The same, but what has to be compared is extended until it fills a piece: it may come
 * from many layers. */
static int
stretch (const struct copying *c, uint64_t at, struct extent *x)
{
  const uint64_t most = x->len;
  uint64_t more;
  int r = look_at_range (c, at, &x->len);

  x->type = r == 1 ? EXTENT_DATA : EXTENT_HOLE;
  while (r == 1 && x->len < min64 (c->piece, most)) {
    more = most - x->len;
    r = look_at_range (c, at + x->len, &more);
    x->len += r == 1 ? more : 0;
  }
  return r == -1 ? -1 : 0;
}

/* --- the ends --- */

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  const struct copying *c = e->opaque;
  const struct epoch_section section = epoch_enter (c->epoch);
  const int r = stretch (c, at, x);
  KEEP_ERRNO_FOR_BLOCK;

  (void) known;
  epoch_leave (c->epoch, section);
  return r;
}

static int
read_old (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  const struct copying *c = e->opaque;

  return request_read (&c->old, buf, count, at);
}

/* DATA: NULL: zeros. */
static int
put (const struct view *v, const void *data, uint64_t count, uint64_t at,
     struct epoch *epoch)
{
  const struct epoch_section section = epoch_enter (epoch);
  const int r = data ? write_data (v, data, count, at, false)
    : request_zero (v, count, at, 0);
  KEEP_ERRNO_FOR_BLOCK;

  epoch_leave (epoch, section);
  checkpoint_relieve (v->w->checkpoint);
  return r == -1 ? -1 : 0;
}

/* R3: over the new chain, the old data might look unneeded after a crash. */
static int
write_units (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  const struct copying *c = e->opaque;

  return put (&c->disk, buf, count, at, c->epoch);
}

/* Over the old chain there would be nothing to hide, and zeros that are there already are
 * not stored.  (In version 2 they are data, of whole clusters: what is around them would
 * be filled from the new chain.) */
static int
zero_units (const struct copy_end *e, uint64_t count, uint64_t at)
{
  const struct copying *c = e->opaque;
  const bool as_data = c->disk.image->header.version < 3;
  CLEANUP_FREE void *zeros = as_data ? memory_new (1, count) : NULL;

  return as_data && zeros == NULL ? -1 : put (&c->moved, zeros, count, at, c->epoch);
}

static int
make_durable (const struct copy_end *e)
{
  const struct copying *c = e->opaque;

  return checkpoint_flush (c->disk.w->checkpoint);
}

static const struct copy_ops ops = {
  .extent = extent, .read = read_old, .write = write_units, .zero = zero_units,
  .sync = make_durable,
};

/* --- words for messages --- */

static bool
is_flatten (const struct rebase *to)
{
  return to->name[0] == '\0';
}

static int
refuse_rebase (const struct disk_options *o, const struct rebase *to, const char *why,
               const char *what)
{
  return report_refusal (EPERM, "%s: the image cannot be %s: %s%s", o->path,
                         is_flatten (to) ? "flattened" : "rebased", why, what);
}

static struct chunks_words
words (const struct disk_options *o, const struct rebase *to,
       const struct chunks_watch *watch)
{
  return (struct chunks_words) {
    .path = o->path, .what = is_flatten (to) ? "flattening" : "rebasing",
    .then = " of the disk", .remedy = watch && watch->image_goes ? NULL
      : remedy (REMEDY_AGAIN),
  };
}

/* --- all of the disk --- */

static int
copy_below (const struct disk_inside *in, struct layers *next, const struct disk_options *o,
            const struct rebase *to, const struct chunks_watch *watch, uint64_t *copied)
{
  const struct chunks_words w = words (o, to, watch);
  struct copying c;
  struct copy copy;
  struct copy_end end, new;
  int r;

  if (open_views (&c, in, next, o) == -1)
    return -1;
  new = copy_view (&c.new);
  end = (struct copy_end) {
    .ops = &ops, .opaque = &c, .size = c.disk.size, .piece = c.piece,
    .remote = layers_are_remote (in->view->layers) || layers_are_remote (next),
  };
  copy = (struct copy) {
    .from = end, .to = end, .contained = true,
    .sparse = entry_unit_size (&c.disk.image->header),
    .zeros = is_flatten (to) ? COPY_ZEROS_SKIP : COPY_ZEROS_MAKE,
    .beside = is_flatten (to) ? NULL : &new,
  };
  r = copy_all (&copy, &w, true, watch, copied);
  close_views (&c);
  return r;
}

/* --- is it allowed? --- */

static int
check_snapshots (const struct disk_inside *in, const struct disk_options *o,
                 const struct rebase *to)
{
  char name[PRINTABLE_SIZE (64)];
  int r;

  if (!is_flatten (to) && in->view->image->snapshots.n > 0)
    return refuse_rebase (o, to, "it has internal snapshots, which may show its backing "
                          "file", "");
  r = snapbelow_needs (in->view->layers, in->map, o->l2_slice, name);
  return r == 1 ? refuse_rebase (o, to, "an internal snapshot needs the backing file: ",
                                 name)
    : r;
}

/* A raw data file contains all of the disk. */
static int
check_data_file (const struct image *image, const struct disk_options *o,
                 const struct rebase *to)
{
  return image_data_is_raw (image)
    ? refuse_rebase (o, to, "it has a raw external data file", "") : 0;
}

/* --- the whole change --- */

static struct backingref
link_to (const struct rebase *to)
{
  return (struct backingref) { to->name, to->format };
}

/* Opens the image with the new chain.  NULL: reported. */
static struct layers *
open_next (struct image *image, const struct disk_options *options,
           const struct rebase *to)
{
  struct disk_options o = *options;
  CLEANUP_FREE char *path = NULL;
  const char *told;

  o.backing = BACKING_IGNORE;
  if (!is_flatten (to)) {
    path = filename_of_backing (o.path, to->name, &o.rules, &told);
    if (path == NULL)
      return NULL;
    o.backing = BACKING_PATH;
    o.backing_path = path;
    o.backing_format = to->format;
  }
  return disk_open_layers (&o, image);
}

struct relinking {
  struct disk *d;
  const struct disk_options *o; /* with what unlocks the new chain */
  const struct rebase *to;
  struct layers *next;          /* the new chain; NULL: the unsafe mode */
  const struct chunks_watch *watch;
  uint64_t *copied;
};

static int
copy (void *opaque, const struct view *v)
{
  const struct relinking *r = opaque;
  struct disk_inside in = disk_inside (r->d);

  in.view = v;
  return copy_below (&in, r->next, r->o, r->to, r->watch, r->copied);
}

/* Has the header name the new chain.  Everything that the image will need of the old one
 * is durable in it. */
static int
make (void *opaque, struct image *image)
{
  const struct relinking *r = opaque;
  const struct backingref link = link_to (r->to);

  return backingref_change (image->file, &image->header, image->health, &link);
}

static int
rebase (struct relinking *r)
{
  const struct disk_inside in = disk_inside (r->d);
  const struct image *image = in.view->image;
  const struct backingref link = link_to (r->to);
  const struct disk_change c = {
    .opaque = r, .write = copy, .make = make, .data_file = true, .over = r->next,
  };
  const struct chunks_words w = words (r->o, r->to, r->watch);

  if (disk_why_fixed (r->d))
    return refuse_rebase (r->o, r->to, disk_why_fixed (r->d), "");
  if (check_data_file (image, r->o, r->to) == -1 ||
      check_snapshots (&in, r->o, r->to) == -1 ||
      backingref_check (image->file, &image->header, &link) == -1)
    return -1;
  /* Ask before this: it writes to an image that is dirty or has bitmaps. */
  return chunks_may_begin (&w, in.view->size, r->watch) == -1 ? -1
    : disk_change (r->d, &c);
}

static int
rebase_safely (struct relinking *r)
{
  const struct view *v = disk_inside (r->d).view;
  int result;

  if (is_flatten (r->to) && layers_count (v->layers) == 1)
    return 0;
  /* Without our own writer's lock in the way of a chain that leads back to the image. */
  r->next = open_next (v->image, r->o, r->to);
  result = r->next ? rebase (r) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  layers_free (r->next);
  return result;
}

/* --- the unsafe mode --- */

/* The file may not exist, and the name may be for other programs.  But no URI in an image
 * has secrets. */
static int
check_uri (const struct disk_options *o, const struct rebase *to)
{
  CLEANUP_FREE char *path = NULL;
  const char *told;

  if (!nbduri_is (to->name))
    return 0;
  path = filename_of_backing (o->path, to->name, &o->rules, &told);
  return path ? 0 : -1;
}

static int
make_unsafely (void *opaque, struct image *image)
{
  const struct relinking *r = opaque;
  const struct backingref link = link_to (r->to);

  if (!is_flatten (r->to) &&
      (check_data_file (image, r->o, r->to) == -1 || check_uri (r->o, r->to) == -1 ||
       edit_check_backing (r->o, &link, image->file) == -1 ||
       backingref_check (image->file, &image->header, &link) == -1))
    return -1;
  return make (opaque, image);
}

int
rebase_disk (struct disk *d, const struct image_secret *secret, const struct rebase *to,
             const struct chunks_watch *watch, uint64_t *copied)
{
  struct disk_options o = *disk_get_options (d);
  struct relinking r = {
    .d = d, .o = &o, .to = to, .watch = watch, .copied = copied,
  };
  const struct disk_change unsafe = {
    .opaque = &r, .make = make_unsafely, .data_file = true,
  };

  *copied = 0;
  o.secret = *secret;
  return to->unsafe ? disk_change (d, &unsafe) : rebase_safely (&r);
}
