/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are persistent bitmaps added, removed, cleared, enabled, disabled and merged?
 *
 * Specification: "Bitmaps".
 *
 * All of it is one change of the whole disk, which bitmapset.c plans and writes; the
 * header switches to it with one write (shadow.c).  A new snapshot of that instant can
 * be part of it.  Changes are made in the order in which they are requested.
 *
 * The next generation of the disk reads the bitmaps again, so no state in memory has to
 * be updated.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/format.h"
#include "change/bitmapedit.h"
#include "change/bitmapset.h"
#include "change/snapedit.h"

/* Another image. */
struct source {
  struct image *image;
  struct bitmapdir dir;
};

struct edit {
  struct bitmapset set;
  const struct source *source;          /* where merged bitmaps are; NULL: here ... */
  bool unread;                  /* ... or in an image that is still to change */
};

static int
refuse_edit (const struct edit *e, const char *name, const char *why)
{
  return bitmapset_refuse (e->set.image, name, why);
}

/* --- the requested changes --- */

static struct bitmapset_item *
find (struct edit *e, const char *name)
{
  for (size_t i = 0; i < e->set.n; i++)
    if (strcmp (e->set.items[i].name, name) == 0)
      return &e->set.items[i];
  return NULL;
}

/* The bitmap, which exists and is valid; or NULL (reported). */
static struct bitmapset_item *
find_valid (struct edit *e, const char *name)
{
  struct bitmapset_item *item = find (e, name);

  if (item == NULL)
    refuse_edit (e, name, "there is no such bitmap");
  else if (bitmapset_is_inconsistent (item)) {
    refuse_edit (e, name, "it is inconsistent and can only be removed");
    item = NULL;
  }
  return item;
}

static int
add (struct edit *e, const struct bitmapedit *edit)
{
  struct bitmapset_item item = { .name = edit->name, .automatic = true, .fresh = true };
  const size_t len = strlen (edit->name);

  if (find (e, edit->name))
    return refuse_edit (e, edit->name, "a bitmap with this name exists already");
  if (len == 0 || len > QCOW2_MAX_BITMAP_NAME)
    return refuse_edit (e, edit->name, "the name must have 1 to 1023 bytes");
  if (e->set.n >= QCOW2_MAX_BITMAPS)
    return refuse_edit (e, edit->name, "an image cannot have more than 65535 bitmaps");
  item.granularity_bits = edit->granularity_bits ? edit->granularity_bits
    : min64 (max64 (e->set.image->header.cluster_bits, 12), 16);
  bitmapset_measure (&e->set, &item);
  /* QEMU requires tables to have entries, and a disk of 0 bytes has nothing to record. */
  if (item.table_entries == 0)
    return refuse_edit (e, edit->name, "the disk has a size of 0");
  e->set.items[e->set.n++] = item;
  return 0;
}

/* Everything that FROM contains, in pieces of its size. */
static int
merge_item (const struct edit *e, struct bitmapset_item *item,
            const struct bitmapset_item *from)
{
  struct bitmapmerge_part part;

  if (!from->fresh) {
    part = bitmapset_part (e->set.image, from->old);
    return bitmapset_add_part (item, &part);
  }
  for (size_t i = 0; i < from->nr_parts; i++) {
    part = from->parts[i];
    part.granularity_bits = max64 (part.granularity_bits, from->granularity_bits);
    if (bitmapset_add_part (item, &part) == -1)
      return -1;
  }
  return 0;
}

/* The bitmap NAME of another image. */
static int
merge_from_source (const struct edit *e, struct bitmapset_item *item, const char *name)
{
  const struct image *image = e->source->image;
  const struct bitmapdir *dir = &e->source->dir;
  struct bitmapmerge_part part;
  size_t i = 0;

  while (i < dir->nr_all && strcmp (dir->all[i].name, name) != 0)
    i++;
  if (i == dir->nr_all)
    return bitmapset_refuse (image, name, "there is no such bitmap");
  if (dir->all[i].flags & QCOW2_BITMAP_IN_USE)
    return bitmapset_refuse (image, name, "it is inconsistent");
  if (image->header.size != e->set.disk_size)
    return bitmapset_refuse (image, name, "it belongs to a disk of another size");
  part = bitmapset_part (image, &dir->all[i]);
  return bitmapset_add_part (item, &part);
}

static int
merge (struct edit *e, struct bitmapset_item *item, const char *name)
{
  const struct bitmapset_item *from = NULL;

  if (e->unread)
    return 0;
  if (e->source == NULL) {
    from = find_valid (e, name);
    if (from == NULL)
      return -1;
    if (from == item)
      return 0;
  }
  if (bitmapset_renew (&e->set, item) == -1)
    return -1;
  return from ? merge_item (e, item, from) : merge_from_source (e, item, name);
}

static int
remove_item (struct edit *e, const char *name)
{
  struct bitmapset_item *item = find (e, name);

  if (item == NULL)
    return refuse_edit (e, name, "there is no such bitmap");
  free (item->parts);
  e->set.n--;
  memmove (item, item + 1, (e->set.items + e->set.n - item) * sizeof *item);
  return 0;
}

static int
plan_one (struct edit *e, const struct bitmapedit *edit)
{
  struct bitmapset_item *item;

  if (edit->what == BITMAP_ADD)
    return add (e, edit);
  if (edit->what == BITMAP_REMOVE)
    return remove_item (e, edit->name);
  item = find_valid (e, edit->name);
  if (item == NULL)
    return -1;
  switch (edit->what) {
  case BITMAP_ENABLE:
  case BITMAP_DISABLE:
    item->automatic = edit->what == BITMAP_ENABLE;
    return 0;
  case BITMAP_CLEAR:
    item->fresh = true;
    item->nr_parts = 0;
    return 0;
  case BITMAP_MERGE:
    return merge (e, item, edit->merged);
  default:
    abort ();
  }
}

/* --- the whole change --- */

struct change {
  struct disk *disk;
  const char *snapshot;         /* to be taken in the same step; NULL: none */
  const struct bitmapedit *edits;
  size_t n;
  const struct source *source;
  struct shadow *done;
};

/* Nothing is written. */
static int
plan (struct edit *e, const struct change *c)
{
  e->set.changed = true;
  for (size_t i = 0; i < c->n; i++)
    if (plan_one (e, &c->edits[i]) == -1)
      return -1;
  return bitmapset_check (&e->set);
}

/* Writes changed tables and the new directory, and has *SH refer to it. */
static int
change_bitmaps (void *opaque, const struct image *image, struct shadow *s,
                struct shadow_header *sh)
{
  const struct change *c = opaque;
  struct bitmaps *bitmaps = disk_bitmaps (c->disk);
  struct edit e = { .source = c->source };
  const int r = bitmapset_new (&e.set, image, bitmap_directory (bitmaps), c->n) == -1
    || plan (&e, c) == -1 ? -1 : bitmapset_write (&e.set, s, sh);

  bitmapset_free (&e.set);
  return r;
}

/* Without a snapshot. */
static int
make_bitmaps (struct change *c, const struct image *image, bool discard)
{
  struct shadow *s = shadow_new (image, discard);
  struct shadow_header sh;
  int r;

  if (s == NULL)
    return -1;
  shadow_get_header (s, &sh);
  shadow_stay_near (s, sh.nr_bitmaps > 0 ? sh.bitmaps_offset : UINT64_MAX);
  r = change_bitmaps (c, image, s, &sh) == -1 ? -1 : shadow_commit (s, &sh);
  if (r == 0)
    c->done = s;
  else
    shadow_free (s);
  return r;
}

static int
make (void *opaque, struct image *image)
{
  struct change *c = opaque;
  const bool discard = disk_get_options (c->disk)->discard;
  const struct snapedit_also also = { change_bitmaps, c };

  return c->snapshot
    ? snapedit_create (image, discard, c->snapshot, &also, &c->done)
    : make_bitmaps (c, image, discard);
}

static void
release (void *opaque, struct alloc *alloc)
{
  const struct change *c = opaque;

  shadow_release (c->done, alloc);
}

static void
tell (const struct change *c)
{
  static const char *const done[] = {
    [BITMAP_REMOVE] = "removed", [BITMAP_CLEAR] = "cleared", [BITMAP_ADD] = "added",
    [BITMAP_ENABLE] = "enabled", [BITMAP_DISABLE] = "disabled",
    [BITMAP_MERGE] = "merged with another one",
  };
  const char *const path = disk_get_options (c->disk)->path;

  if (c->snapshot)
    report_event (EVENT_CHANGED, path, "snapshot \"%s\" was created", c->snapshot);
  for (size_t i = 0; i < c->n; i++)
    report_event (EVENT_CHANGED, path, "bitmap \"%s\" was %s", c->edits[i].name,
                  done[c->edits[i].what]);
}

static int
change_disk (struct change *c)
{
  const struct disk_change dc = {
    .opaque = c, .make = make, .release = release, .data_file = c->snapshot == NULL,
  };
  const int r = disk_change (c->disk, &dc);

  shadow_free (c->done);
  if (r == 0)
    tell (c);
  return r;
}

/* --- another image --- */

static void
close_source (struct source *s)
{
  bitmapdir_free (&s->dir);
  image_close (s->image);
}

/* Only its bitmaps are read, so no passphrase, data file or backing file is needed. */
static int
open_source (const struct disk_options *o, const char *path, struct source *s)
{
  const struct storage_options options = {
    .lock = o->lock, .cache = o->cache, .link = &o->link, .hooks = o->hooks,
  };
  struct overlap *overlap = NULL;
  int r = -1;

  *s = (struct source) { .image = image_open_file (path, &options) };
  if (s->image == NULL)
    return -1;
  if (image_read_header (s->image) == 0) {
    overlap = overlap_new (s->image->header.cluster_bits);
    if (overlap == NULL)
      report_error ("overlap_new: %m");
    else
      r = !s->image->header.has_bitmaps ? 0
        : bitmapdir_list (s->image->file, &s->image->header, overlap, &s->dir);
    overlap_free (overlap);
  }
  if (r == -1)
    image_close (s->image);
  return r;
}

/* --- before the change --- */

static int
check (const struct change *c, const struct image *image, const struct bitmapdir *dir,
       bool unread)
{
  struct edit e = { .source = c->source, .unread = unread };
  const int r = bitmapset_new (&e.set, image, dir, c->n) == -1 ? -1 : plan (&e, c);

  bitmapset_free (&e.set);
  return r;
}

static int
check_snapshot (const struct image *image, const char *name)
{
  if (image->data == NULL)
    return snapedit_check (image, name);
  return report_refusal (EPERM, "%s: the image cannot be changed: it has an external "
                         "data file", storage_path (image->file));
}

int
bitmapedit_check (struct disk *d, const struct image *top, const char *snapshot,
                  const struct bitmapedit *edits, size_t n, const char *source)
{
  const struct image *image = disk_inside (d).view->image;
  const bool unread = source && top && strcmp (source, storage_path (image->file)) == 0;
  struct change c = { .disk = d, .edits = edits, .n = n };
  struct source s;
  int r;

  if (snapshot && check_snapshot (image, snapshot) == -1)
    return -1;
  if (n == 0)
    return 0;
  if (source && !unread) {
    if (open_source (disk_get_options (d), source, &s) == -1)
      return -1;
    c.source = &s;
  }
  r = check (&c, top ? top : image, top ? NULL : bitmap_directory (disk_bitmaps (d)), unread);
  if (c.source)
    close_source (&s);
  return r;
}

/* --- all of it --- */

int
bitmapedit_disk (struct disk *d, const struct bitmapedit *edits, size_t n,
                 const char *source)
{
  return bitmapedit_with_snapshot (d, NULL, edits, n, source);
}

int
bitmapedit_with_snapshot (struct disk *d, const char *snapshot,
                          const struct bitmapedit *edits, size_t n, const char *source)
{
  struct change c = { .disk = d, .snapshot = snapshot, .edits = edits, .n = n };
  struct source s;
  int r;

  if (source == NULL)
    return change_disk (&c);
  if (open_source (disk_get_options (d), source, &s) == -1)
    return -1;
  c.source = &s;
  r = change_disk (&c);
  close_source (&s);
  return r;
}
