/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk in use come to do without some of its layers?
 *
 *      top        top'         top contains what it showed of the layers that go
 *      layer 1
 *      layer 2
 *      base       base         or nothing
 *
 * The order of steps, and the state of the image after a crash:
 *
 *   copy, while clients write   over the old layers; it contains more
 *   flush                       the same; all of it is durable
 *   one disk_change             over the base
 *
 * The disk shows the same at each moment.  If it is interrupted, the next run finds what
 * the top has already, and goes on with the rest.
 *
 * A piece is copied as copy-on-read does it (copyup.c), under the same claims: only where
 * the top image contains nothing.  So what clients write meanwhile is never replaced.
 * (An end of copy.c could not see to that: it is written later than it was asked.)  What
 * the base has in the same place is left alone (places.c).  Zeros over data of the base
 * are stored as zeros.
 *
 * What the top contains once, it contains for ever: clients change it, but a trim leaves
 * zeros.  Only in version 2, which has no entries for zeros, a trimmed cluster shows the
 * layers below again, if they are zeros there; over a base it might show something else
 * then.  So there all of it is looked at once more behind the gate, with no client
 * writing.
 *
 * Internal snapshots lie over the same layers as the disk, and nothing is copied for
 * them.  So an image with snapshots is refused, unless it becomes independent and they
 * need nothing of the layers below.
 *
 * The contents of the disk do not change, so bitmaps record nothing.
 *
 * The same for a layer of a disk that is served.  It becomes a disk of its own, over the
 * layers below it, and is its only client.  What it stores is what the layers below it
 * show, and it frees nothing that is mapped.  So the clients of the disk that is served
 * need not know, and see the same whether they look before or after that.  At the end the
 * disk goes on with the layer as its file says then, also if nothing has come of it: the
 * next one that writes it has to know where its metadata is.
 *
 *   disk_change of the layer             its header names the base
 *   it comes to rest, disk_change        the disk that is served has the shorter chain
 *
 * Memory: a piece, and mappings within the disk's limit.
 *
 * Locks: none; the image's own modules have theirs.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/backingref.h"
#include "request/copyup.h"
#include "change/edit.h"
#include "change/snapbelow.h"
#include "change/stream.h"

/* How often that what was copied is made durable. */
#define FLUSH_MS 5000
/* The longest look at what need not be copied, as one piece: as many runs. */
#define MOST_LOOKS 64

struct stream {
  struct disk *disk;            /* the image is its top */
  struct disk *served;          /* NULL: that one; or it has the image as its layer ... */
  unsigned layer;               /* ... with this number, */
  struct image *locked;         /* NULL, or: that layer, locked as by a writer, */
  bool connected;               /* and `disk' has it as its writer */
  struct backingref link;       /* what the header will say */
  char *name;                   /* of the backing file there; NULL: none */
  struct image *image;          /* the top; as of the beginning */
  unsigned nr_layers;           /* of the disk now */
  struct layers *next;          /* the top over those that stay */
  struct places over;           /* those; no view: there are none */
  void *buf;                    /* a piece */
};

static int
refuse_image (const char *path, const char *why, const char *what)
{
  return report_refusal (EPERM, "%s: its backing files cannot be copied into the image: "
                         "%s%s", path, why, what);
}

static int
refuse_stream (const struct disk *d, const char *why, const char *what)
{
  return refuse_image (disk_get_options (d)->path, why, what);
}

/* --- is it possible? --- */

static int
check_snapshots (struct disk *d, bool whole)
{
  const struct disk_inside in = disk_inside (d);
  char name[PRINTABLE_SIZE (64)];
  int r;

  if (in.view->image->snapshots.n > 0 && !whole)
    return refuse_stream (d, "it has internal snapshots, which may show the files that "
                          "go", "");
  r = snapbelow_needs (in.view->layers, in.map, disk_get_options (d)->l2_slice, name);
  return r == 1 ? refuse_stream (d, "an internal snapshot needs them: ", name) : r;
}

static int
check (struct disk *d, bool whole)
{
  const char *why = disk_why_fixed (d);

  if (why == NULL && disk_inside (d).view->image->data)
    why = "it has an external data file";
  return why ? refuse_stream (d, why, "") : check_snapshots (d, whole);
}

/* How will the header call layer BASE?  By its path, or if that is not possible as the
 * image above it does.  NULL: reported. */
static char *
choose_name (struct disk *d, unsigned base)
{
  const struct disk_options *o = disk_get_options (d);
  const struct layers *layers = disk_inside (d).view->layers;
  struct storage *file = layers_file (layers, base);
  const char *names[] = {
    storage_path (file), layers_header (layers, base - 1)->backing_file,
  };

  for (size_t i = 0; i < 2; i++) {
    if (names[i] && edit_name_means (o, o->path, names[i], file))
      return memory_text (names[i]);
    if (names[i] && errno == ENOMEM)
      return NULL;
  }
  refuse_stream (d, "no name in the image can mean the file ", storage_path (file));
  return NULL;
}

static int
choose_link (struct stream *s, unsigned base, const char *name)
{
  const struct disk_inside in = disk_inside (s->disk);
  const struct image *image = in.view->image;

  s->link = (struct backingref) { .name = "" };
  if (base > 0) {
    s->name = name ? strdup (name) : choose_name (s->disk, base);
    if (s->name == NULL)
      return -1;
    s->link.name = s->name;
    s->link.format = layers_header (in.view->layers, base) ? "qcow2" : "raw";
  }
  return backingref_check (image->file, &image->header, &s->link);
}

static int
open_next (struct stream *s, unsigned base)
{
  const struct disk_inside in = disk_inside (s->disk);
  const uint64_t slice = disk_get_options (s->disk)->l2_slice;

  s->image = image_ref (in.view->image);
  s->nr_layers = layers_count (in.view->layers);
  s->next = layers_over (s->image, NULL, in.view->layers, base > 0 ? base : s->nr_layers);
  s->buf = memory_new (1, max64 (COPYUP_STORE_PIECE, s->image->header.cluster_size));
  if (s->next == NULL || s->buf == NULL)
    return -1;
  if (base == 0)
    return 0;
  s->over = (struct places) {
    s->next, layers_view_new (s->next, 1, in.map, in.view->size, slice),
  };
  return s->over.view ? 0 : -1;
}

/* --- a layer of a disk that is served --- */

/* That disk goes on with the layer as its file says, over its layers from FROM on. */
static int
renew (const struct stream *s, unsigned from)
{
  const struct layers *const now = disk_inside (s->served).view->layers;
  struct image *const fresh = image_again (layers_image (now, s->layer));
  struct layers *const next = layers_new ();
  const struct disk_change c = { .data_file = true, .unchanged = true, .over = next };
  int r = -1;

  if (fresh && next && layers_share (next, now, 0, s->layer) == 0 &&
      layers_add_image (next, fresh) == 0 &&
      layers_share (next, now, from, layers_count (now)) == 0)
    r = disk_change (s->served, &c);
  KEEP_ERRNO_FOR_BLOCK;
  if (r == 0)
    image_adopt (fresh);
  layers_free (next);
  image_close (fresh);
  return r;
}

/* Why the layer cannot be written; or NULL. */
static const char *
why_not_layer (const struct stream *s, const struct image *image)
{
  return image == NULL ? "it is not a qcow2 image"
    : image_role (image) == IMAGE_WRITER ? "an earlier job that wrote it has not ended"
    : disk_why_fixed (s->served);
}

static int
lock_layer (struct stream *s, struct image *image)
{
  if (image_become_writable (image) == -1)
    return -1;
  if (image_why_readonly (image))
    return refuse_image (storage_path (image->file), image_why_readonly (image), "");
  if (image_lock (image, IMAGE_WRITER) == -1)
    return -1;
  s->locked = image_ref (image);
  return image->snapshots.list ? 0 : image_read_snapshots (image);
}

/* Makes a disk of the layer. */
static int
open_layer (struct stream *s)
{
  const struct disk_inside in = disk_inside (s->served);
  struct image *image = layers_image (in.view->layers, s->layer);
  struct storage *const file = layers_file (in.view->layers, s->layer);
  struct disk_options options =
    disk_options_meanwhile (disk_get_options (s->served), storage_path (file));
  const char *why = why_not_layer (s, image);

  if (why)
    return refuse_image (options.path, why, "");
  options.map = in.map;
  if (storage_is_writable (file) && renew (s, s->layer + 1) == -1)
    return -1;
  /* (That was another one, if it was written before.) */
  image = layers_image (disk_inside (s->served).view->layers, s->layer);
  if (lock_layer (s, image) == -1 ||
      disk_open_over (&options, disk_inside (s->served).view->layers, s->layer,
                      &s->disk) == -1)
    return -1;
  s->connected = true;
  if (disk_connect (s->disk, &s->connected) == -1)
    return -1;
  return s->connected ? 0 : refuse_stream (s->disk, disk_why_readonly (s->disk), "");
}

/* It comes to rest. */
static int
close_layer (struct stream *s)
{
  const bool connected = s->connected;
  struct disk *const d = s->disk;
  int r, err;

  s->connected = false;
  s->disk = NULL;
  r = disk_disconnect (d, connected);
  err = errno;
  if (disk_close (d) == -1)
    return -1;
  errno = err;
  return r;
}

static void
end_layer (struct stream *s)
{
  if (s->disk) {
    report_silence (true);
    close_layer (s);
    renew (s, s->layer + 1);
    report_silence (false);
  }
  if (s->locked)
    image_lock (s->locked, IMAGE_READER);
  image_close (s->locked);
}

/* Its header is changed. */
static int
go_on (struct stream *s)
{
  const unsigned gone = s->nr_layers - layers_count (s->next);
  const int r = close_layer (s);

  return renew (s, s->layer + 1 + gone) == -1 ? -1 : r;
}

/* --- beginning --- */

static int
begin (struct stream *s, unsigned base, const char *name)
{
  if (s->served && open_layer (s) == -1)
    return -1;
  return check (s->disk, base == 0) == -1 || choose_link (s, base, name) == -1 ? -1
    : open_next (s, base);
}

struct stream *
stream_new (struct disk *d, unsigned layer, unsigned base, const char *name)
{
  struct stream *s = memory_new (1, sizeof *s);

  if (s == NULL)
    return NULL;
  s->layer = layer;
  *(layer > 0 ? &s->served : &s->disk) = d;
  if (begin (s, base > 0 ? base - layer : 0, name) == 0)
    return s;
  stream_free (s);
  return NULL;
}

void
stream_free (struct stream *s)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (s == NULL)
    return;
  layers_view_free (s->over.view);
  layers_free (s->next);
  image_close (s->image);
  if (s->served)
    end_layer (s);
  free (s->buf);
  free (s->name);
  free (s);
}

uint64_t
stream_size (const struct stream *s)
{
  return s->image->header.size;
}

bool
stream_is_done (const struct stream *s)
{
  return layers_count (s->next) == s->nr_layers;
}

/* --- copying --- */

struct copying {
  const struct stream *s;
  struct copyup_store store;
  uint64_t size;                /* of the disk */
};

/* Is the image still what it was at the beginning, over the same layers? */
static int
check_same (const struct stream *s, const struct image *image, unsigned nr_layers)
{
  const struct header *a = &s->image->header, *b = &image->header;

  if (storage_same (s->image->file, image->file) && s->nr_layers == nr_layers &&
      a->size == b->size && s->image->snapshots.n == image->snapshots.n)
    return 0;
  return refuse_stream (s->disk, "the disk has changed meanwhile", "");
}

/* Copies a piece, or skips what need not be copied. */
static int
copy_piece (void *opaque, const struct view *v)
{
  struct copying *c = opaque;
  int r = check_same (c->s, v->image, layers_count (v->layers));

  c->store.reads = true;
  c->store.copied = 0;
  c->size = v->size;
  for (unsigned i = 0; r == 0 && i < MOST_LOOKS && c->store.at < c->size; i++)
    r = copyup_store (v, &c->store, c->size);
  return r == -1 ? -1 : 0;
}

static struct copying
begin_copy (const struct stream *s)
{
  return (struct copying) {
    .s = s, .size = s->image->header.size,
    .store = { .over = s->over.view ? &s->over : NULL, .buf = s->buf },
  };
}

/* The part [C->at, C->at + PIECE) is left out. */
static void
leave_out (struct copying *c)
{
  const uint64_t cs = c->s->image->header.cluster_size;

  c->store.at = min64 (c->size, round_down (c->store.at, cs) +
                       max64 (COPYUP_STORE_PIECE, cs));
}

static int
copy (struct copying *c, const struct stream_watch *w)
{
  int r = disk_piece (c->s->disk, copy_piece, c);

  if (r == -1)
    r = w->fails (w->opaque, c->store.reads, errno);
  if (r == 1)
    leave_out (c);
  return r == -1 ? -1 : w->step (w->opaque, c->store.at, c->size, c->store.copied);
}

static int
make_durable (struct disk *d, const struct stream_watch *w)
{
  int r = 0;

  while (r == 0 && disk_flush (d) == -1)
    r = w->fails (w->opaque, false, errno);
  return r == -1 ? -1 : 0;
}

int
stream_copy (struct stream *s, const struct stream_watch *w)
{
  struct copying c = begin_copy (s);
  int64_t flushed = clock_ms ();

  while (c.store.at < c.size) {
    if (copy (&c, w) == -1)
      return -1;
    if (clock_ms () - flushed < FLUSH_MS)
      continue;
    if (make_durable (s->disk, w) == -1)
      return -1;
    flushed = clock_ms ();
  }
  return make_durable (s->disk, w);
}

/* --- the change --- */

/* Version 2 over a base: what clients have trimmed. */
static int
copy_again (void *opaque, const struct view *v)
{
  struct copying c = begin_copy (opaque);

  while (c.store.at < c.size) {
    if (copy_piece (&c, v) == -1)
      return -1;
    checkpoint_relieve (v->w->checkpoint);
  }
  return 0;
}

static int
make (void *opaque, struct image *image)
{
  const struct stream *s = opaque;

  if (check_same (s, image, layers_count (disk_inside (s->disk).view->layers)) == -1 ||
      backingref_check (image->file, &image->header, &s->link) == -1)
    return -1;
  return backingref_change (image->file, &image->header, image->health, &s->link);
}

int
stream_finish (struct stream *s)
{
  struct disk_change c = { .opaque = s, .make = make, .over = s->next };

  if (s->nr_layers == 1)
    return 0;
  if (s->over.view && s->image->header.version < 3)
    c.write = copy_again;
  if (disk_change (s->disk, &c) == -1)
    return -1;
  return s->served ? go_on (s) : 0;
}
