/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the changes served that a bitmap has recorded?
 *
 * bitmap:NAME shows the active disk where the bitmap is marked.  All of these ranges are
 * reported as data, including zeros: a client that applies them to an older copy must not
 * leave anything out.  The rest is a hole.
 *
 * The bits of a bitmap are copied when the first client opens the export, and are used
 * for all clients until the last one has left.  So all connections of one client agree,
 * however much is recorded meanwhile.  The bytes are those that the disk has when they
 * are read.
 *
 * bitmap:NAME@SNAPSHOT shows the data of an internal snapshot where the bitmap is marked.
 * If the snapshot was taken when the bitmap ceased to record, that is what has changed
 * up to this instant, whatever clients have written since.
 *
 * Locks: the disk's lock guards which copies of bits there are, their users, and their
 * state.  Bits are copied without it, because there may be many.  Until a copy is
 * complete, only clients of the same bitmap wait.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "disk/exportkind.h"

/* Maximum number of bytes of copied bits in one disk: as much as its bitmaps may need
 * while they record. */
#define MAX_FROZEN QCOW2_MAX_BITMAP_BYTES

enum bits_state { BITS_FILLING, BITS_READY, BITS_FAILED };

/* Kept in the slot while the bitmap has clients. */
struct bits {
  unsigned users;               /* under the disk's lock */
  enum bits_state state;        /* likewise; other clients wait for d->kept_changed */
  uint64_t bytes;               /* maximum size of SET; constant */
  struct dirtyset *set;         /* constant in state BITS_READY */
};

struct bitmap_export {
  struct export e;
  struct bits *bits;
  struct view instant;          /* if e.instant is set */
};

/* --- names --- */

static size_t
count_bitmaps (const struct generation *g)
{
  return bitmap_count (g->bitmaps);
}

static size_t
find_bitmap (const struct generation *g, const char *name)
{
  return bitmap_find (g->bitmaps, name);
}

static void
hint_bitmap (const struct generation *g, char *text, size_t size)
{
  if (g->why_bitmaps[0])
    snprintf (text, size, ": %s", g->why_bitmaps);
}

static const char *
name_bitmap (const struct generation *g, size_t number, unsigned which,
             char buf[EXPORT_NUMBER])
{
  (void) buf;
  return which == 0 ? bitmap_get (g->bitmaps, number)->name : NULL;
}

static void
describe_bitmap (const struct generation *g, size_t number, char *text, size_t size)
{
  const struct bitmapdir_any *b = bitmap_get (g->bitmaps, number);

  snprintf (text, size, "what has changed, in pieces of %" PRIu64 " bytes; %s",
            UINT64_C (1) << b->e.granularity_bits,
            b->flags & QCOW2_BITMAP_AUTO ? "recording" : "disabled");
}

static bool
bitmap_is_void (const struct generation *g, size_t number)
{
  return bitmap_get (g->bitmaps, number)->flags & QCOW2_BITMAP_IN_USE;
}

/* --- clients come and leave --- */

/* The bytes of all bitmaps that have clients.  Called with the lock held. */
static uint64_t
frozen_bytes (const struct disk *d)
{
  const struct generation *g;
  uint64_t bytes = 0;

  for (g = d->generations; g; g = g->older)
    for (size_t i = 0; i < g->nr_exports; i++)
      if (g->exports[i].kind == &export_bitmap && g->exports[i].kept)
        bytes += ((const struct bits *) g->exports[i].kept)->bytes;
  return bytes;
}

/* Makes bits with one user, still empty.  Called with the lock held. */
static struct bits *
new_bits (const struct generation *g, size_t number)
{
  const struct disk *d = g->disk;
  const uint64_t others = frozen_bytes (d);
  const uint64_t bytes = dirtyset_bytes (bitmap_get (g->bitmaps, number)->e.bits);
  struct bits *b;

  /* A single bitmap always fits. */
  if (others > 0 && others + bytes > MAX_FROZEN) {
    report_error ("%s: the bitmaps that clients read at the same time need more than %"
                  PRIu64 " bytes", storage_path (g->image->file), MAX_FROZEN);
    errno = ENOMEM;
    return NULL;
  }
  b = memory_new (1, sizeof *b);
  if (b == NULL)
    return NULL;
  b->users = 1;
  b->bytes = bytes;
  b->state = BITS_FILLING;
  return b;
}

static void
free_bits (void *kept)
{
  struct bits *b = kept;

  dirtyset_free (b->set);
  free (b);
}

/* Called with the lock held. */
static void
drop_bits (struct export_slot *slot, struct bits *b)
{
  if (--b->users > 0)
    return;
  if (slot->kept == b)
    slot->kept = NULL;
  free_bits (b);
}

/* Adds a user to the bits if they exist, and waits until they are ready.  NULL: the
 * caller has to make them.  Called with the lock held. */
static struct bits *
join_bits (struct disk *d, struct export_slot *slot)
{
  struct bits *b;

  while ((b = slot->kept) != NULL) {
    b->users++;
    while (b->state == BITS_FILLING)
      pthread_cond_wait (&d->kept_changed, &d->lock);
    if (b->state == BITS_READY)
      return b;
    drop_bits (slot, b);
  }
  return NULL;
}

/* Copies the bits.  Takes the lock only after that.  If it fails, the next client tries
 * again. */
static int
fill_bits (struct generation *g, struct export_slot *slot, struct bits *b)
{
  struct disk *d = g->disk;
  const int r = bitmap_freeze (g->bitmaps, slot->number, &b->set), err = errno;
  LOCK_FOR_BLOCK (&d->lock);

  b->state = r == 0 ? BITS_READY : BITS_FAILED;
  pthread_cond_broadcast (&d->kept_changed);
  if (r == 0)
    return 0;
  slot->kept = NULL;
  drop_bits (slot, b);
  errno = err;
  return -1;
}

/* The bits are about a disk of the present size. */
static int
open_instant (struct export *e)
{
  struct bitmap_export *x = (struct bitmap_export *) e;

  if (exportsnapshot_view (e, e->instant, &x->instant) == -1)
    return -1;
  if (x->instant.size == e->size)
    return 0;
  return report_refusal (EINVAL, "%s: a bitmap of a disk of %" PRIu64 " bytes cannot be "
                         "served with a snapshot of %" PRIu64 " bytes",
                         storage_path (e->generation->image->file), e->size,
                         x->instant.size);
}

static int
open_bitmap (struct export *e)
{
  struct bitmap_export *x = (struct bitmap_export *) e;
  struct export_slot *slot = e->slot;
  struct generation *g = e->generation;
  struct disk *d = e->disk;

  e->size = g->frozen.size;
  if (e->instant && open_instant (e) == -1)
    return -1;
  {
    LOCK_FOR_BLOCK (&d->lock);

    x->bits = join_bits (d, slot);
    if (x->bits)
      return 0;
    x->bits = slot->kept = new_bits (g, slot->number);
    if (x->bits == NULL)
      return -1;
  }
  return fill_bits (g, slot, x->bits);
}

static void
close_bitmap (struct export *e)
{
  struct bitmap_export *x = (struct bitmap_export *) e;
  LOCK_FOR_BLOCK (&e->disk->lock);

  drop_bits (e->slot, x->bits);
}

/* --- requests --- */

static const struct view *
view_bitmap (const struct export *e, const struct view *current, struct view *made)
{
  (void) made;
  return e->instant ? &((const struct bitmap_export *) e)->instant : current;
}

static int
read_bitmap (const struct export *e, const struct view *v, void *buf, uint64_t count,
             uint64_t offset)
{
  const struct dirtyset *set = ((const struct bitmap_export *) e)->bits->set;
  uint64_t len;
  int r = 0;

  for (; r == 0 && count > 0; count -= len, offset += len) {
    len = count;
    if (dirtyset_find (set, offset, &len))
      r = request_read (v, buf, len, offset);
    else
      memset (buf, 0, len);
    buf = (char *) buf + len;
  }
  return r;
}

static int
extents_bitmap (const struct export *e, const struct view *v, uint64_t count,
                uint64_t offset, const struct extents_query *x)
{
  const struct dirtyset *set = ((const struct bitmap_export *) e)->bits->set;
  uint64_t len;
  bool dirty;
  int r = 0;

  (void) v;
  for (; r == 0 && count > 0; count -= len, offset += len) {
    len = count;
    dirty = dirtyset_find (set, offset, &len);
    r = x->emit (x->opaque, offset, len, dirty ? EXTENT_DATA : EXTENT_HOLE);
    if (x->one)
      break;
  }
  return r;
}

const struct export_kind export_bitmap = {
  .noun = "bitmap", .prefix = "bitmap:",
  .count = count_bitmaps, .find = find_bitmap, .hint = hint_bitmap,
  .name = name_bitmap, .describe = describe_bitmap,
  .is_void = bitmap_is_void,
  .bytes = sizeof (struct bitmap_export), .open = open_bitmap, .close = close_bitmap,
  .forget = free_bits,
  .view = view_bitmap, .read = read_bitmap, .extents = extents_bitmap,
};
