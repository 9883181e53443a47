/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are parts of a disk served: what a single layer holds, what a bitmap says has
 * changed?
 *
 * A part is a read-only disk with holes where it has nothing to say:
 *
 *   layer:N      what layer N holds itself: its data; clusters that say "zero"
 *                are zeros but no holes, since they hide what lies below
 *   bitmap:NAME  the active disk where the bitmap is marked.  All of that is called data,
 *                also what reads as zeros: a client that applies it to an older copy
 *                must not leave anything out
 *
 * The bits of a bitmap are copied when the first client comes to it, and serve all
 * until the last has left: connections of one client agree, however much is recorded
 * meanwhile.  The bytes are those that the disk has when they are read.
 *
 * Layer 0 is the image itself: the view of it is made anew for each request from the
 * one that is current, so that it follows what is written.
 *
 * Locks: the disk's lock guards the list, the counts of users, and what state a part is
 * in.  Bits are copied without it, as there may be many: until that is done, only those
 * wait who want the same bitmap.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "disk/disk-impl.h"

/* Copies of bits, of one disk: as much as its bitmaps may need while they record. */
#define MAX_FROZEN QCOW2_MAX_BITMAP_BYTES

enum part_state { PART_FILLING, PART_READY, PART_FAILED };

struct disk_part {
  struct disk_part *next;       /* under the disk's lock */
  unsigned users;               /* likewise */
  enum part_state state;        /* likewise; others wait for d->part_filled */

  /* Constant once the part is ready. */
  size_t index;                 /* of the layer or the bitmap */
  bool is_bitmap;               /* else a layer */
  struct dirtyset *set;         /* of a bitmap */
  struct layers_view *lower;    /* of a layer, alone */
  uint64_t size;
  uint64_t bytes;               /* that SET may hold */
  char description[128];
};

/* --- names --- */

static bool
is_void (const struct bitmapdir_any *b)
{
  return b->flags & QCOW2_BITMAP_IN_USE;
}

static void
describe_layer (const struct disk *d, size_t i, char *text, size_t size)
{
  const struct header *h = layers_header (d->layers, i);

  if (h == NULL)
    snprintf (text, size, "layer %zu of %u only, raw", i,
              layers_count (d->layers));
  else
    snprintf (text, size, "layer %zu of %u only, qcow2, clusters of %" PRIu64 " bytes",
              i, layers_count (d->layers), h->cluster_size);
}

static void
describe_bitmap (const struct bitmapdir_any *b, char *text, size_t size)
{
  snprintf (text, size, "what has changed, in pieces of %" PRIu64 " bytes; %s",
            UINT64_C (1) << b->e.granularity_bits,
            b->flags & QCOW2_BITMAP_AUTO ? "recording" : "disabled");
}

static const char *
bitmap_name (const void *bitmaps, size_t i)
{
  return bitmap_get (bitmaps, i)->name;
}

int
disk_name_bitmaps (struct disk *d)
{
  d->bitmap_names = names_new (bitmap_count (d->bitmaps), bitmap_name, d->bitmaps);
  return d->bitmap_names ? 0 : -1;
}

static int
list_bitmap (const struct disk *d, size_t i, export_fn emit, void *opaque,
             unsigned *unlisted)
{
  const struct bitmapdir_any *b = bitmap_get (d->bitmaps, i);
  char name[sizeof DISK_BITMAP + QCOW2_MAX_BITMAP_NAME], text[128];

  if (is_void (b))              /* it would be refused */
    return 0;
  snprintf (name, sizeof name, DISK_BITMAP "%s", b->name);
  if (!disk_may_list (name) || names_find (d->bitmap_names, b->name) != i) {
    ++*unlisted;
    return 0;
  }
  describe_bitmap (b, text, sizeof text);
  return emit (opaque, name, text);
}

int
disk_list_parts (const struct disk *d, export_fn emit, void *opaque,
                 unsigned *unlisted)
{
  char name[32], text[128];
  size_t i;
  int r = 0;

  for (i = 0; r == 0 && i < layers_count (d->layers); i++) {
    snprintf (name, sizeof name, DISK_LAYER "%zu", i);
    describe_layer (d, i, text, sizeof text);
    r = emit (opaque, name, text);
  }
  for (i = 0; r == 0 && i < bitmap_count (d->bitmaps); i++)
    r = list_bitmap (d, i, emit, opaque, unlisted);
  return r;
}

/* --- coming and going: with the lock held --- */

static struct disk_part *
serve_layer (struct disk *d, size_t i)
{
  struct disk_part *p = calloc (1, sizeof *p);

  if (p == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  p->index = i;
  p->size = i == 0 ? d->frozen.size : layers_size (d->layers, i);
  p->lower = layers_view_new_single (d->layers, i, d->map,
                                     d->options.l2_slice);
  if (p->lower == NULL) {
    free (p);
    return NULL;
  }
  describe_layer (d, i, p->description, sizeof p->description);
  return p;
}

/* Its bits are not there yet. */
static struct disk_part *
serve_bitmap (struct disk *d, size_t i)
{
  const struct bitmapdir_any *b = bitmap_get (d->bitmaps, i);
  const uint64_t bytes = dirtyset_bytes (b->e.bits);
  uint64_t others = 0;
  struct disk_part *p;

  for (p = d->parts; p; p = p->next)
    others += p->bytes;
  /* One alone always fits. */
  if (others > 0 && others + bytes > MAX_FROZEN) {
    nbdkit_error ("%s: the bitmaps that clients read at the same time need more than %"
                  PRIu64 " bytes", d->options.path, MAX_FROZEN);
    errno = ENOMEM;
    return NULL;
  }
  p = calloc (1, sizeof *p);
  if (p == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  p->index = i;
  p->is_bitmap = true;
  p->size = d->frozen.size;
  p->bytes = bytes;
  describe_bitmap (b, p->description, sizeof p->description);
  return p;
}

/* Which layer?  -1: none. */
static int
find_layer (const struct disk *d, const char *name, size_t *i)
{
  unsigned long n;
  char *end;

  if (name[0] < '0' || name[0] > '9')
    return -1;
  errno = 0;
  n = strtoul (name, &end, 10);
  if (errno != 0 || *end != '\0' || n >= layers_count (d->layers))
    return -1;
  *i = n;
  return 0;
}

static int
find_bitmap (const struct disk *d, const char *name, size_t *i)
{
  *i = names_find (d->bitmap_names, name);
  return *i == SIZE_MAX ? -1 : 0;
}

static void
free_part (struct disk_part *p)
{
  layers_view_free (p->lower);
  dirtyset_free (p->set);
  free (p);
}

static void
drop_part (struct disk *d, struct disk_part *p)
{
  struct disk_part **link;

  /* The mappings of a layer are worth keeping, and count as all mappings do. */
  if (--p->users > 0 || !p->is_bitmap)
    return;
  for (link = &d->parts; *link != p; link = &(*link)->next)
    ;
  *link = p->next;
  free_part (p);
}

static struct disk_part *
find_served (struct disk *d, size_t i, bool is_bitmap)
{
  struct disk_part *p;

  for (p = d->parts; p; p = p->next)
    if (p->index == i && p->is_bitmap == is_bitmap && p->state != PART_FAILED)
      return p;
  return NULL;
}

/* One that is served already, or will be: waits for it.  NULL: the caller has to. */
static struct disk_part *
join_part (struct disk *d, size_t i, bool is_bitmap)
{
  struct disk_part *p;

  while ((p = find_served (d, i, is_bitmap)) != NULL) {
    p->users++;
    while (p->state == PART_FILLING)
      pthread_cond_wait (&d->part_filled, &d->lock);
    if (p->state == PART_READY)
      return p;
    drop_part (d, p);
  }
  return NULL;
}

/* In the list, with one user. */
static struct disk_part *
new_part (struct disk *d, size_t i, bool is_bitmap)
{
  struct disk_part *p = is_bitmap ? serve_bitmap (d, i) : serve_layer (d, i);

  if (p == NULL)
    return NULL;
  p->state = is_bitmap ? PART_FILLING : PART_READY;
  p->users = 1;
  p->next = d->parts;
  d->parts = p;
  return p;
}

/* Takes the lock again only when the bits are there. */
static struct disk_part *
fill_part (struct disk *d, struct disk_part *p)
{
  const int r = bitmap_freeze (d->bitmaps, p->index, &p->set), err = errno;
  LOCK_FOR_BLOCK (&d->lock);

  p->state = r == 0 ? PART_READY : PART_FAILED;
  pthread_cond_broadcast (&d->part_filled);
  if (r == 0)
    return p;
  drop_part (d, p);
  errno = err;
  return NULL;
}

/* Which part has that name?  -1 (reported): none. */
static int
find_part (const struct disk *d, const char *name, bool is_bitmap, size_t *i)
{
  char text[PRINTABLE_SIZE (64)];

  if ((is_bitmap ? find_bitmap : find_layer) (d, name, i) == 0)
    return 0;
  printable (name, strlen (name), text, sizeof text);
  if (is_bitmap)
    nbdkit_error ("%s: there is no bitmap \"%s\"%s%s", d->options.path, text,
                  d->why_bitmaps[0] ? ": " : "", d->why_bitmaps);
  else
    nbdkit_error ("%s: there is no layer \"%s\": the layers are numbered from 0, and "
                  "there are %u of them",
                  d->options.path, text, layers_count (d->layers));
  errno = ENOENT;
  return -1;
}

struct disk_part *
disk_open_part (struct disk *d, const char *name)
{
  const bool is_bitmap = strncmp (name, DISK_BITMAP, strlen (DISK_BITMAP)) == 0;
  struct disk_part *p;
  size_t i;

  {
    LOCK_FOR_BLOCK (&d->lock);

    if (find_part (d, name + strlen (is_bitmap ? DISK_BITMAP : DISK_LAYER), is_bitmap,
                   &i) == -1)
      return NULL;
    p = join_part (d, i, is_bitmap);
    if (p)
      return p;
    p = new_part (d, i, is_bitmap);
    if (p == NULL || p->state == PART_READY)
      return p;
  }
  return fill_part (d, p);
}

void
disk_close_part (struct disk *d, struct disk_part *p)
{
  LOCK_FOR_BLOCK (&d->lock);

  drop_part (d, p);
}

void
disk_free_parts (struct disk *d)
{
  struct disk_part *p;

  while ((p = d->parts) != NULL) {
    d->parts = p->next;
    free_part (p);
  }
  names_free (d->bitmap_names);
}

uint64_t
disk_part_size (const struct disk_part *p)
{
  return p->size;
}

const char *
disk_part_description (const struct disk_part *p)
{
  return p->description;
}

/* --- requests --- */

/* What a request works on.  The caller holds a pin. */
static struct view
part_view (struct disk *d, const struct disk_part *p)
{
  struct view v = *atomic_load (&d->current);

  if (p->set)
    return v;
  v.single = true;
  v.size = p->size;
  if (p->index > 0)
    v.w = NULL;
  v.lower = p->lower;           /* not asked while layer 0 is writable */
  return v;
}

int
disk_part_read (struct disk *d, struct disk_part *p, void *buf,
                uint64_t count, uint64_t offset)
{
  const struct grace_pin pin = grace_enter (d->grace);
  const struct view v = part_view (d, p);
  uint64_t len;
  int r = 0;

  for (; r == 0 && count > 0; count -= len, offset += len) {
    len = count;
    if (p->set && !dirtyset_find (p->set, offset, &len))
      memset (buf, 0, len);
    else
      r = request_read (&v, buf, len, offset);
    buf = (char *) buf + len;
  }
  grace_leave (d->grace, pin);
  return r;
}

int
disk_part_extents (struct disk *d, struct disk_part *p, uint64_t count,
                   uint64_t offset, bool one, extent_fn emit, void *opaque)
{
  struct disk_piece piece = disk_pieces (count, offset);
  uint64_t len;
  bool dirty;
  int r = 0;

  if (p->set) {
    for (; r == 0 && count > 0; count -= len, offset += len) {
      len = count;
      dirty = dirtyset_find (p->set, offset, &len);
      r = emit (opaque, offset, len, dirty ? EXTENT_DATA : EXTENT_HOLE);
      if (one)
        break;
    }
    return r;
  }
  while ((r = disk_next_piece (d, &piece)) == 1) {
    const struct grace_pin pin = grace_enter (d->grace);
    const struct view v = part_view (d, p);

    r = request_extents (&v, one ? count : piece.count, piece.offset, one, emit,
                         opaque);
    grace_leave (d->grace, pin);
    if (r == -1 || one)
      return r;
  }
  return r;
}

int
disk_part_cache (struct disk *d, struct disk_part *p, uint64_t count,
                 uint64_t offset)
{
  struct disk_piece piece = disk_pieces (count, offset);
  int r;

  while ((r = disk_next_piece (d, &piece)) == 1) {
    const struct grace_pin pin = grace_enter (d->grace);
    const struct view v = part_view (d, p);

    r = request_cache (&v, piece.count, piece.offset);
    grace_leave (d->grace, pin);
    if (r == -1)
      return -1;
  }
  return r;
}
