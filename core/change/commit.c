/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the data of layers get into a layer below them?
 *
 * What the layers from the top to the one above the base contain, data and zeros, is
 * copied into the base, where these layers hide it.  Then either the image on top becomes
 * empty, or these layers leave the chain.  The base is a layer of the disk that is
 * opened read-write; it becomes a disk of its own, over the layers below it, that is
 * written like any other: with snapshots, bitmaps (which record the writes), LUKS.  Or
 * it is a raw file, device or export.  If it is smaller, it grows first.
 *
 *   copies                         layers above hide them: they contain the same ranges
 *   flush                          all of it is durable in the base
 *   disk_change                    the same chain, with the base read anew
 *   rest                           the base is clean, unless a client still reads it as
 *                                  it was: then it comes to rest when that has left
 *   disk_change                    the image on top gets empty tables, in one step
 *                                  (shadow.c), or the header of the image above those
 *                                  that leave names the base, and the chain is a shorter
 *                                  one
 *
 * So the disk shows the same data at each moment, and a crash leaves the chain as it
 * was, or as it is to be.  If the copying ends early, some of the new data is in the
 * base, which by itself is then neither old nor new, as with QEMU.
 *
 * Readers in the meantime.  A part of a cluster of the base may be hidden, and another
 * part visible: when the cluster is rewritten elsewhere (it was compressed, or shared
 * with a snapshot), readers may go on to use the place that they have looked up.  So no
 * cluster that the base frees is used again until the last reader has gone that could
 * know it: a read section lasts from the first copy on.  The disk changes to a chain in
 * which the base was read anew, whether the commit succeeds or not, and when no
 * generation is left with the layer as it was (`gone'), the section ends.  The
 * image is one object for readers and for the writer: places of new tables, and the
 * length of the file, are known to both.  Where the L1 table is, is known only to those
 * who have read the header: so when the base grows, readers first get to know the new
 * table, and then the old one is freed (may_free_old).  A client that keeps an older
 * generation is in the way of that.
 *
 * No other process uses these files: the image on top is locked as by a writer when this
 * begins, unless it is served, and so is the base until it is at rest.
 *
 * The image on top while clients write it (`follows').  What it contains is copied until
 * little is left (follow.c), and hides the base all the time: what it contains once, it
 * contains for ever.  (A trim leaves zeros.  Version 2 has no entries for zeros, and is
 * refused.)  So the disk shows the same at each moment, and after a power cut, except
 * that the base may show writes that were not flushed.  At the end:
 *
 *   close the gate                 for all that follows
 *   rest                           what clients have written meanwhile
 *   flush, disk_change, rest       as above; a client that keeps an older generation is
 *                                  in the way.  The base is clean, and by itself the disk
 *   disk_change                    the next generation has the base as its top, and the
 *                                  headers say so (overlayref.c)
 *   open the gate                  from then on, what clients flush is in the base alone
 *
 * A line in the server's log tells it, too, before the gate opens.
 *
 * Internal snapshots show the base where they have no data of their own, and would show
 * something else afterwards (QEMU lets that happen).  So layers that are copied must have
 * none.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/remedy.h"
#include "util/report.h"
#include "image/backingref.h"
#include "image/overlayref.h"
#include "disk/export.h"
#include "copy/copy.h"
#include "change/commit.h"
#include "change/edit.h"
#include "change/snapedit.h"

/* Bytes of decompressed clusters that are cached. */
#define CLUSTER_CACHE (UINT64_C (4) << 20)

/* Bytes of the pieces in which changes are recorded; powers of two. */
#define MOST_GRANULARITY 65536
#define LEAST_GRANULARITY 4096

/* How long clients may take to leave a generation that has ended. */
#define LEAVE_MS 50

/* What is written.  It may outlive the commit. */
struct base {
  struct storage *file;
  struct image *image;          /* NULL: the file is raw */
  struct disk *disk;            /* NULL: it is raw, or not open */
  struct export *to;            /* the same */
  bool locked;                  /* as by a writer */
  bool held;                    /* a read section of its disk ... */
  struct epoch_section section;  /* ... this one */
  int *rest;                    /* NULL, or: set to an errno if it does not come to
                                   rest */
};

struct commit {
  struct disk *disk;
  const struct disk_options *options;
  struct commit_layers what;
  struct layers *stack;         /* the layers of the disk, as they were */
  struct view from;             /* those that are copied, alone (FOLLOWS: below the image
                                   on top) */
  struct export *shown;         /* FOLLOWS: the disk; or NULL */
  struct follow *follow;        /* FOLLOWS: its copying; NULL: not begun */
  struct base *base;            /* NULL: it is closed, or goes its own way */
  struct image *locked;         /* NULL, or the base, which is closed and still locked */
  struct image *above;          /* the layer whose header changes, locked as by a writer;
                                   NULL: none, or the image on top */
  void *buf;                    /* of commit_range; or NULL */
  bool copied;                  /* everything is in the base, durably */
  bool changed;                 /* and the disk is changed */

  struct disk_change change;
  struct layers *next;          /* the chain after it */
  struct image *fresh, *fresh_above;    /* layers of it that were read anew; NULL: none */
  struct shadow *emptied;
  int named;                    /* as overlayref_arrive has left the base */
  int error;                    /* of what could not fail at once */
};

static int
refuse_commit (const struct commit *c, const char *why)
{
  return report_refusal (EPERM, "%s: the image cannot be committed: %s",
                         storage_path (layers_file (c->stack, c->what.top)), why);
}

/* Does the image on top keep what it contains? */
static bool
keeps (const struct commit *c)
{
  return c->what.keep || c->what.follows;
}

/* --- the base --- */

/* Brings it to rest. */
static void
close_base (void *opaque)
{
  struct base *b = opaque;
  int r;
  KEEP_ERRNO_FOR_BLOCK;

  if (b->held)
    epoch_leave (disk_inside (b->disk).epoch, b->section);
  r = b->to ? export_close (b->to) : 0;
  if (r == -1 && b->rest)
    *b->rest = errno;
  if (disk_close (b->disk) == -1 && r == 0 && b->rest)
    *b->rest = errno;
  if (b->locked && b->image)
    image_lock (b->image, IMAGE_READER);
  else if (b->locked)
    storage_lock (b->file, STORAGE_READER);
  image_close (b->image);
  free (b);
}

static struct copy_end
base_end (const struct commit *c, const struct base *b)
{
  return b->to ? copy_export (b->disk, b->to)
    : copy_storage (b->file, c->options->discard);
}

static int
sync_below (const struct commit *c, const struct base *b)
{
  const struct copy_end end = base_end (c, b);

  return end.ops->sync (&end);
}

static int
refuse_below (const struct commit *c, int err, const char *why)
{
  return report_refusal (err, "%s: the backing file of %s cannot be written: %s",
                         storage_path (c->base->file),
                         storage_path (layers_file (c->stack, c->what.base - 1)), why);
}

/* An image that is emptied shows the file that it names, which is not always the one of
 * backing=PATH.  A file that is read in a format that it does not have shows the
 * wrong disk; one that is written so is destroyed. */
static int
check_named (const struct commit *c)
{
  const struct header *h = layers_header (c->stack, 0);
  const char *const format = c->base->image ? "qcow2" : "raw";
  bool named;

  errno = 0;
  named = c->options->backing != BACKING_PATH ||
    (h->backing_file && edit_name_means (c->options, c->options->path, h->backing_file,
                                        c->base->file));
  if (!named && errno == ENOMEM)
    return -1;
  if (c->what.top > 0)
    return 0;
  if (!named && !keeps (c))
    return refuse_commit (c, h->backing_file == NULL ? "it has no backing file"
                          : remedy (REMEDY_NAME_BACKING));
  if (!named || h->backing_format == NULL ||
      strcmp (chain_format (h->backing_format, storage_path (c->base->file)), format) == 0)
    return 0;
  return report_refusal (EPERM, "%s: the image cannot be committed into a file of the "
                         "format %s: it says that the format of its backing file is "
                         "\"%s\"", c->options->path, format, h->backing_format);
}

/* --- the chain --- */

/* Makes `next' of the present chain, in which layers [FROM, base) are left out.  The base
 * is read anew, and so is the layer above those, if ABOVE is not NULL. */
static int
plan_chain (struct commit *c, unsigned from, struct image *above)
{
  const struct layers *now = disk_inside (c->disk).view->layers;
  const unsigned n = layers_count (now), base = c->what.base;
  struct layers *next;

  if (n != layers_count (c->stack) || !layers_same (now, c->stack, from) ||
      !layers_same (now, c->stack, base))
    return report_refusal (EBUSY, "%s: the backing chain has changed meanwhile",
                           c->options->path);
  next = layers_new ();
  if (next == NULL)
    return -1;
  if (layers_share (next, now, 0, above ? from - 1 : from) == -1 ||
      (above && layers_add_image (next, above) == -1) ||
      (c->fresh ? layers_add_image (next, c->fresh)
       : layers_share_raw (next, now, base)) == -1 ||
      layers_share (next, now, base + 1, n) == -1) {
    layers_free (next);
    return -1;
  }
  layers_free (c->next);
  c->next = next;
  c->change.over = next;
  return 0;
}

static struct backingref
link_to (const struct commit *c)
{
  return (struct backingref) {
    .name = c->what.name ? c->what.name
      : storage_path (layers_file (c->stack, c->what.base)),
    .format = layers_image (c->stack, c->what.base) ? "qcow2" : "raw",
  };
}

/* The base named one of those that leave, which may be deleted.  (If it cannot name the
 * one above it now, it will not be refused as a disk then.) */
static void
name_above (const struct commit *c, const struct image *above)
{
  if (c->locked)
    overlayref_set (c->locked, storage_path (above->file), false);
}

/* TOP: the image on top. */
static int
change_link (struct commit *c, const struct image *top)
{
  const struct backingref link = link_to (c);
  struct image *before;
  int r;

  if (c->above == NULL) {
    r = backingref_change (top->file, &top->header, top->health, &link);
    if (r == 0)
      name_above (c, top);
    return r;
  }
  before = image_again (c->above);
  r = before ? backingref_change (before->file, &before->header, before->health, &link)
    : -1;
  image_close (before);
  if (r == -1)
    return -1;
  name_above (c, c->above);
  /* (If there is no memory for this, queries show the old name.) */
  c->fresh_above = image_again (c->above);
  if (c->fresh_above)
    plan_chain (c, c->what.top, c->fresh_above);
  return 0;
}

/* Without any data in the base, the chain is the same, with the base as the file says. */
static int
make (void *opaque, struct image *image)
{
  struct commit *c = opaque;
  const bool leaves = c->copied && c->what.top > 0;

  if (plan_chain (c, leaves ? c->what.top : c->what.base, NULL) == -1)
    return -1;
  return leaves ? change_link (c, image)
    : c->copied && !keeps (c) ? snapedit_empty (image, c->options->discard, &c->emptied)
    : 0;
}

/* (When the image on top was emptied.) */
static void
release (void *opaque, struct alloc *alloc)
{
  const struct commit *c = opaque;
  struct storage *data = disk_inside (c->disk).view->image->data;

  if (c->emptied == NULL)
    return;
  shadow_release (c->emptied, alloc);
  if (alloc || data == NULL || !c->options->discard)
    return;
  /* What is left there is not needed; it is no harm if it stays. */
  report_silence (true);
  storage_discard (data, 0, storage_size (data));
  report_silence (false);
}

/* The features of its file change together with its header, if the disk goes on with
 * it. */
static void
adopt (const struct commit *c, struct image *image)
{
  const struct layers *now = disk_inside (c->disk).view->layers;

  for (unsigned i = 0; image && i < layers_count (now); i++)
    if (layers_image (now, i) == image)
      image_adopt (image);
}

/* Changes the disk.  FRESH (NULL: it is raw, or none, which was reported): the base as
 * the file says now; the function drops it. */
static int
change (struct commit *c, struct image *fresh)
{
  int r = -1;

  c->change = (struct disk_change) {
    .opaque = c, .make = make, .release = release, .data_file = true,
    .unchanged = !c->copied,
  };
  c->fresh = fresh;
  if (fresh || layers_image (c->stack, c->what.base) == NULL)
    r = disk_change (c->disk, &c->change);
  KEEP_ERRNO_FOR_BLOCK;
  adopt (c, fresh);
  adopt (c, c->fresh_above);
  image_close (fresh);
  image_close (c->fresh_above);
  c->fresh = c->fresh_above = NULL;
  layers_free (c->next);
  c->next = NULL;
  return r;
}

/* The base as the file says, when all is durable in it.  NULL: reported. */
static struct image *
read_base (const struct base *b)
{
  return image_again (disk_inside (b->disk).view->image);
}

/* Does no generation have the base as it was before?  Clients that come just then have
 * the one before for a moment. */
static bool
is_left (const struct commit *c)
{
  const struct timespec moment = { .tv_nsec = 1000000 };

  for (unsigned i = 0; i < LEAVE_MS && layers_is_shared (c->stack, c->what.base); i++)
    nanosleep (&moment, NULL);
  return !layers_is_shared (c->stack, c->what.base);
}

/* The disk goes on with the base as the file says now.  1: and no export shows it any
 * more as it was before; then it is closed, if it ENDS.  0: an export does; at last its
 * client closes it. */
static int
renew (struct commit *c, struct image *fresh, struct base *ends)
{
  struct layers *stack;
  int rest = 0;
  bool last;

  if (change (c, fresh) == -1 ||
      (stack = layers_copy (disk_inside (c->disk).view->layers)) == NULL)
    return -1;
  last = is_left (c);
  if (ends)
    c->base = NULL;
  if (ends && last) {
    c->locked = image_ref (ends->image);
    ends->locked = false;
    ends->rest = &rest;
  }
  layers_free (c->stack);
  c->stack = stack;
  if (rest == 0)
    return last;
  errno = rest;
  return -1;
}

/* --- opening the base --- */

static int
grow_raw (const struct commit *c, uint64_t size)
{
  return storage_size (c->base->file) >= size ? 0
    : storage_truncate (c->base->file, size);
}

static int
open_raw (struct commit *c)
{
  struct base *b = c->base;

  if (storage_become_writable (b->file) == -1)
    return -1;
  if (!storage_is_writable (b->file)) {
    const char *why = storage_why_readonly (b->file);

    return refuse_below (c, EROFS, why ? why : "the file is not writable");
  }
  if (c->options->lock && storage_lock (b->file, STORAGE_WRITER) == -1)
    return -1;
  b->locked = c->options->lock;
  return check_named (c) == -1 ? -1
    : grow_raw (c, layers_size (c->stack, c->what.top));
}

static int
refuse_used (const struct commit *c)
{
  return refuse_below (c, EBUSY, "a client has used a snapshot or a layer of the disk since "
                       "before the backing file became larger, or was written");
}

/* Nothing has been written to the clusters that the change has freed, and nothing will
 * be if this fails. */
static bool
may_free_old (void *opaque)
{
  struct commit *c = opaque;
  const int r = renew (c, image_ref (disk_inside (c->base->disk).view->image), NULL);

  if (r != 1)
    c->error = r == -1 ? errno : EBUSY;
  return r == 1;
}

static int
grow_qcow2 (struct commit *c)
{
  const uint64_t size = layers_size (c->stack, c->what.top);
  const struct edit edit = { .kind = EDIT_RESIZE, .size = round_up (size, 512) };
  const struct edit_options options = {
    .preallocation = PREALLOCATION_OFF, .may_free = may_free_old, .opaque = c,
  };

  if (layers_size (c->stack, c->what.base) >= size)
    return 0;
  if (edit_disk (c->base->disk, &options, &edit, 1) == -1)
    return -1;
  if (c->error == EBUSY)
    return refuse_used (c);
  errno = c->error;
  return errno == 0 ? 0 : -1;
}

/* Only one generation of the image may be known: that which the file describes. */
static int
renew_base (struct commit *c)
{
  struct base *b = c->base;

  if (renew (c, image_again (b->image), NULL) == -1)
    return -1;
  image_close (b->image);
  b->image = image_ref (layers_image (c->stack, c->what.base));
  return image_is_alone (b->image) ? 0 : refuse_used (c);
}

/* Opens the file of the base anew.  NULL: reported. */
static struct image *
reopen (const struct commit *c, const struct storage *file)
{
  struct image_options options = disk_chain_options (c->options).image;
  struct image *image;

  options.file.try_writable = false;
  options.file.in_dir.name = NULL;
  options.below_top = true;
  image = image_open (storage_path (file), &options);
  if (image && !storage_same (image->file, file)) {
    refuse_below (c, EBUSY, "an earlier commit has failed, and there is another file now");
    image_close (image);
    return NULL;
  }
  if (image && image_open_data (image, &options) == 0 && image_load (image) == 0)
    return image;
  image_close (image);
  return NULL;
}

/* An earlier commit has failed for good (R9).  What it had written is hidden, so the base
 * can be treated as after a crash.  -1, or as `renew'. */
static int
begin_anew (struct commit *c, struct base *earlier)
{
  if (image_lock (earlier->image, IMAGE_READER) == -1)
    return -1;
  earlier->locked = false;
  return renew (c, reopen (c, earlier->file), NULL);
}

/* An earlier commit could not end: nothing of what it had written could be made durable,
 * or there was no memory.  The disk still has the base as it was before, and that
 * commit's goes on.  Does now what was left then, and goes on with the base at rest. */
static int
end_earlier (struct commit *c)
{
  struct base *const b = c->base;
  struct base *const earlier = layers_whose_end (c->stack, c->what.base, close_base);
  const bool lost = earlier && sync_below (c, earlier) == -1;
  int r;

  if (earlier == NULL)
    return refuse_used (c);
  if (lost && storage_may_try_again (errno))
    return refuse_below (c, errno, "an earlier commit has failed, and there is still no "
                         "space or memory for what it has written");
  r = lost ? begin_anew (c, earlier) : renew (c, read_base (earlier), earlier);
  c->base = b;
  if (r == -1)
    return -1;
  image_close (b->image);
  b->image = image_ref (layers_image (c->stack, c->what.base));
  b->file = b->image->file;
  if (r == 0)
    return refuse_used (c);
  if (lost)
    return 0;
  image_close (c->locked);      /* it stays locked, for this commit */
  c->locked = NULL;
  b->locked = true;
  return 0;
}

/* The lock comes first: QEMU's, too, are taken before anything changes. */
static int
lock_qcow2 (struct commit *c)
{
  struct base *b = c->base;
  bool written;

  if (image_role (b->image) == IMAGE_WRITER && end_earlier (c) == -1)
    return -1;
  written = storage_is_writable (b->file);
  if (image_become_writable (b->image) == -1)
    return -1;
  if (image_why_readonly (b->image))
    return refuse_below (c, EROFS, image_why_readonly (b->image));
  if (image_lock (b->image, IMAGE_WRITER) == -1)
    return -1;
  b->locked = true;
  if (check_named (c) == -1)
    return -1;
  if (written || b->image->header.size < layers_size (c->stack, c->what.top))
    return renew_base (c);
  return b->image->snapshots.list ? 0 : image_read_snapshots (b->image);
}

static int
open_qcow2 (struct commit *c)
{
  struct base *b = c->base;
  struct disk_options options = disk_options_meanwhile (c->options, storage_path (b->file));

  options.map = disk_inside (c->disk).map;
  if (lock_qcow2 (c) == -1 ||
      disk_open_over (&options, c->stack, c->what.base, &b->disk) == -1)
    return -1;
  if (disk_why_readonly (b->disk))
    return refuse_below (c, EROFS, disk_why_readonly (b->disk));
  if (grow_qcow2 (c) == -1)
    return -1;
  b->to = export_open (b->disk, "", true);
  if (b->to && !export_is_writable (b->to))
    return refuse_below (c, EROFS, disk_why_readonly (b->disk));
  if (b->to == NULL)
    return -1;
  b->section = epoch_hold (disk_inside (b->disk).epoch);
  b->held = true;
  return 0;
}

static int
open_base (struct commit *c)
{
  const unsigned i = c->what.base;
  struct base *b = memory_new (1, sizeof *b);
  int r;

  if (b == NULL)
    return -1;
  c->base = b;
  b->file = layers_file (c->stack, i);
  b->image = layers_image (c->stack, i);
  if (b->image)
    image_ref (b->image);
  r = b->image ? open_qcow2 (c) : open_raw (c);
  if (r == 0 && b->image)
    layers_when_gone (c->stack, i, close_base, b);
  else if (r == -1) {
    close_base (b);
    c->base = NULL;
  }
  return r;
}

/* --- what is copied --- */

/* Where a layer that leaves the chain is shorter than the base, the layers above show
 * zeros. */
static uint64_t
copied_size (const struct commit *c)
{
  const uint64_t top = layers_size (c->stack, c->what.top);

  return c->what.top == 0 ? top : max64 (top, layers_size (c->stack, c->what.base));
}

static int
open_from (struct commit *c)
{
  const unsigned first = c->what.top + c->what.follows;

  if (c->what.follows && (c->shown = export_open (c->disk, "", false)) == NULL)
    return -1;
  c->from = (struct view) {
    .size = copied_size (c), .image = layers_image (c->stack, first),
    .layers = c->stack, .single = true,
  };
  if (first == c->what.base)
    return 0;
  c->from.lower =
    layers_view_new_part (c->stack, first, c->what.base, disk_inside (c->disk).map,
                          c->from.size, c->options->l2_slice);
  c->from.cluster_cache = cluster_cache_new (CLUSTER_CACHE);
  return c->from.lower && c->from.cluster_cache ? 0 : -1;
}

uint64_t
commit_size (const struct commit *c)
{
  return c->from.size;
}

/* Once both ends are open. */
static struct copy
copying (const struct commit *c)
{
  return (struct copy) {
    .from = copy_view (&c->from), .to = base_end (c, c->base), .contained = true,
  };
}

int
commit_range (struct commit *c, uint64_t start, uint64_t end, uint64_t *copied, bool *reads)
{
  const struct copy copy = copying (c);
  bool ignored;

  if (c->buf == NULL)
    c->buf = memory_pages (copy_scratch (&copy));
  return c->buf == NULL ? -1
    : copy_range (&copy, c->buf, &start, end, UINT64_MAX, copied, reads ? reads : &ignored);
}

static void
close_from (struct commit *c)
{
  layers_view_free (c->from.lower);
  cluster_cache_free (c->from.cluster_cache);
  c->from.lower = NULL;
  c->from.cluster_cache = NULL;
}

/* Brings it to rest, if no export shows it as it was.  0: one does; -1: reported. */
static int
settle_base (struct commit *c)
{
  struct base *b = c->base;

  close_from (c);
  if (sync_below (c, b) == -1)
    return -1;
  if (b->disk == NULL)
    return 1;
  return renew (c, read_base (c->base), b);
}

/* --- with clients that write the image on top --- */

/* What does the image on top contain?  (A client of its export would hold the present
 * generation.) */
static int
extent_on_top (const struct commit *c, uint64_t at, struct extent *x,
               struct storage_holes *known)
{
  DISK_SECTION_FOR_BLOCK now = disk_enter (c->disk);
  struct view alone = *now.view;
  const struct copy_end top = copy_view (&alone);

  alone.single = true;
  alone.lower = alone.alone;    /* (Not used while it is writable.) */
  return top.ops->extent (&top, at, x, known);
}

/* What do the layers above the base contain? */
static int
extent_above (const struct copy_end *e, uint64_t at, struct extent *x,
              struct storage_holes *known)
{
  const struct commit *c = e->opaque;
  const struct copy_end below = copy_view (&c->from);
  const int r = extent_on_top (c, at, x, known);

  return r == 0 && x->type == EXTENT_HOLE && c->from.lower
    ? below.ops->extent (&below, at, x, known) : r;
}

static int
read_shown (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  const struct commit *c = e->opaque;

  return export_read (c->shown, buf, count, at);
}

static struct copy_end
end_above (const struct commit *c)
{
  static const struct copy_ops ops = { .extent = extent_above, .read = read_shown };

  return (struct copy_end) {
    .ops = &ops, .opaque = c, .size = c->from.size,
    .remote = layers_are_remote (c->stack),
  };
}

int
commit_begin (struct commit *c)
{
  const struct header *h = layers_header (c->stack, c->what.base);
  const struct follow_options options = {
    .disk = c->disk, .path = storage_path (layers_file (c->stack, c->what.base)),
    .granularity = max64 (min64 (h->cluster_size, MOST_GRANULARITY), LEAST_GRANULARITY),
    .copy = { .from = end_above (c), .to = base_end (c, c->base), .contained = true },
  };

  c->follow = follow_new (&options);
  return c->follow == NULL ? -1 : follow_add (c->follow, &options.copy.from);
}

struct follow *
commit_follow (const struct commit *c)
{
  return c->follow;
}

static void
end_follow (struct commit *c)
{
  follow_free (c->follow);
  c->follow = NULL;
  if (c->shown)
    export_close (c->shown);
  c->shown = NULL;
}

static int
copy_rest (void *opaque)
{
  const struct commit *c = opaque;

  return follow_rest (c->follow);
}

int
commit_stay (struct commit *c)
{
  int r;

  if (follow_begin_end (c->follow) == -1)
    return -1;
  r = disk_hold (c->disk, copy_rest, c);
  follow_open (c->follow);
  if (r == -1)
    return follow_why (c->follow);
  c->changed = settle_base (c) != -1;
  return c->changed ? 0 : -1;
}

static int
arrive (void *opaque, struct image *present)
{
  struct commit *c = opaque;

  c->named = overlayref_arrive (c->change.top, present);
  return c->named == -1 ? -1 : 0;
}

static void
tell_move (void *opaque, const struct image *before)
{
  const struct commit *c = opaque;

  overlayref_moved (before, c->change.top, c->named);
}

/* The base is at rest. */
static int
go_down (struct commit *c)
{
  struct image *top = image_again (layers_image (c->stack, c->what.base));
  struct layers *over = layers_new ();
  int r = -1;

  c->change = (struct disk_change) {
    .opaque = c, .make = arrive, .moved = tell_move, .data_file = true, .top = top,
    .over = over,
  };
  if (top && over &&
      layers_share (over, c->stack, c->what.base, layers_count (c->stack)) == 0)
    r = disk_change (c->disk, &c->change);
  KEEP_ERRNO_FOR_BLOCK;
  if (r == -1)
    overlayref_stay (layers_image (c->stack, c->what.base));
  layers_free (over);
  image_close (top);
  return r;
}

/* Behind the gate. */
static int
pivot (struct commit *c)
{
  int r;

  if (follow_rest (c->follow) == -1)
    return follow_why (c->follow);
  r = settle_base (c);
  if (r == -1)
    return -1;
  c->changed = true;
  if (r == 0)
    return refuse_commit (c, "a client has used a layer of the disk since before its "
                          "base was written");
  if (go_down (c) == -1)
    return -1;
  image_close (c->locked);      /* it stays locked, for the disk */
  c->locked = NULL;
  return 0;
}

int
commit_pivot (struct commit *c)
{
  int r;

  if (follow_begin_end (c->follow) == -1)
    return -1;
  disk_close_gate (c->disk);
  r = pivot (c);
  KEEP_ERRNO_FOR_BLOCK;
  disk_open_gate (c->disk);
  follow_open (c->follow);
  return r;
}

/* --- the whole change --- */

/* The header of the layer above those that leave will be written. */
static int
open_above (struct commit *c)
{
  const struct backingref link = link_to (c);
  struct image *const above = layers_image (c->stack, c->what.top - 1);

  if (backingref_check (above->file, &above->header, &link) == -1)
    return -1;
  if (c->what.top == 1)
    return 0;
  if (image_role (above) == IMAGE_WRITER || storage_become_writable (above->file) == -1 ||
      !storage_is_writable (above->file) ||
      (above->header.incompatible & QCOW2_INCOMPAT_CORRUPT))
    return report_refusal (EPERM, "%s: its header cannot be changed: %s",
                           storage_path (above->file),
                           image_role (above) == IMAGE_WRITER ? "it is in use"
                           : storage_is_writable (above->file)
                           ? remedy (REMEDY_MARKED_CORRUPT) : "the file is not writable");
  if (image_lock (above, IMAGE_WRITER) == -1)
    return -1;
  c->above = image_ref (above);
  return 0;
}

/* Why the disk cannot go on with the base, or could show something else meanwhile. */
static const char *
why_no_pivot (const struct commit *c)
{
  const struct image *const top = layers_image (c->stack, 0);
  const struct image *const base = layers_image (c->stack, c->what.base);

  if (base == NULL)
    return "its base is not a qcow2 image";
  if (base->data)
    return "its base has an external data file";
  if (base->cipher == NULL && top->cipher)
    return "it is encrypted, and its base is not";
  if (top->header.version < 3)
    return "it is of version 2, and clients that trim it would see its base";
  if (c->options->compress &&
      base->header.compression_type != top->header.compression_type)
    return "its base has another compression type";
  if (c->options->watermark > 0 && storage_is_regular (base->file))
    return "a watermark is set, and its base is in a file";
  return NULL;
}

static int
check (const struct commit *c)
{
  const char *why = c->what.follows ? why_no_pivot (c) : NULL;

  if (why)
    return refuse_commit (c, why);
  if (layers_size (c->stack, c->what.top) % 512 != 0)
    return refuse_commit (c, "its size is not a multiple of 512");
  for (unsigned i = c->what.top; i < c->what.base; i++)
    if (layers_header (c->stack, i)->nb_snapshots > 0)
      return refuse_commit (c, "it has internal snapshots, which may show its backing "
                            "file");
  return c->what.top == 0 && !keeps (c) && layers_data_is_raw (c->stack, 0)
    ? refuse_commit (c, "it has a raw external data file, which contains all of the "
                     "disk") : 0;
}

static int
open_commit (struct commit *c)
{
  if (c->stack == NULL)
    return -1;
  if (layers_count (c->stack) <= c->what.base)
    return refuse_commit (c, "it has no backing file");
  /* (If the disk has gone on elsewhere, the base may be what clients write there.) */
  if (check (c) == -1 || disk_lock (c->disk) == -1)
    return -1;
  return open_base (c) == -1 || (c->what.top > 0 && open_above (c) == -1) ||
    open_from (c) == -1 ? -1 : 0;
}

struct commit *
commit_new (struct disk *disk, const struct commit_layers *what)
{
  const bool locked = image_role (disk_inside (disk).view->image) == IMAGE_WRITER;
  struct commit *c = memory_new (1, sizeof *c);

  if (c == NULL)
    return NULL;
  c->disk = disk;
  c->options = disk_get_options (disk);
  c->what = *what;
  c->stack = layers_copy (disk_inside (c->disk).view->layers);
  if (open_commit (c) == 0)
    return c;
  commit_free (c);
  KEEP_ERRNO_FOR_BLOCK;
  if (!locked)
    disk_unlock (disk);
  return NULL;
}

int
commit_finish (struct commit *c)
{
  struct image *base;

  if (settle_base (c) == -1)
    return -1;
  base = layers_image (c->stack, c->what.base);
  c->copied = true;
  c->changed = change (c, base ? image_again (base) : NULL) == 0;
  return c->changed ? 0 : -1;
}

/* The disk goes on with a base that contains a part of the data.  If that is not
 * possible, its clusters wait until the next commit (end_earlier), or until the disk is
 * closed. */
static void
give_up (struct commit *c)
{
  report_silence (true);
  if (c->base->disk && sync_below (c, c->base) == 0)
    change (c, read_base (c->base));
  report_silence (false);
}

void
commit_free (struct commit *c)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (c == NULL)
    return;
  end_follow (c);
  if (c->base && !c->changed)
    give_up (c);
  close_from (c);
  shadow_free (c->emptied);
  if (c->above)
    image_lock (c->above, IMAGE_READER);
  image_close (c->above);
  if (c->locked)
    image_lock (c->locked, IMAGE_READER);
  image_close (c->locked);
  if (c->base && c->base->image == NULL)
    close_base (c->base);
  layers_free (c->stack);
  free (c->buf);
  free (c);
}

/* --- at once --- */

int
commit_disk (struct disk *d, const struct commit_layers *what,
             const struct chunks_watch *watch, uint64_t *copied)
{
  const struct chunks_words words = {
    .path = disk_get_options (d)->path, .what = "the commit",
    .then = " of the disk: the image is unchanged, and its backing file may contain a part "
      "of its data", .remedy = remedy (REMEDY_AGAIN),
  };
  struct copy copy;
  struct commit *c;
  int r;

  *copied = 0;
  if (chunks_may_begin (&words, disk_inside (d).view->size, watch) == -1)
    return -1;
  c = commit_new (d, what);
  if (c == NULL)
    return -1;
  copy = copying (c);
  copy.rate = what->rate;
  r = copy_all (&copy, &words, true, watch, copied);
  if (r == 0)
    r = commit_finish (c);
  commit_free (c);
  return r;
}
