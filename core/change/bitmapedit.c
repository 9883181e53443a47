/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are persistent bitmaps added, removed, cleared, enabled, disabled and merged?
 *
 * Specification: "Bitmaps".
 *
 * All of it is one change of the whole disk.  New tables, their bits and a new directory are
 * written to free clusters, and the header switches to them, and to refcounts without the
 * old ones, with one write (shadow.c).  A new snapshot of that instant can be part of it.
 * Bitmaps that do not change keep their directory entries byte for byte.
 *
 * Changes are made in the order in which they are requested, but only planned at first: a
 * bitmap that will be written anew is a list of bitmaps that are in files now (its
 * parts).  So a bitmap can be merged, cleared and merged again at once.
 *
 * Limits are those of QEMU, for the number, names, granularity and size of bitmaps; and
 * those of bitmapdir.c, because an image that exceeds them would be read-only.
 *
 * The next generation of the disk reads the bitmaps again, so no state in memory has to be
 * updated.
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
#include "image/bitmapext.h"
#include "change/bitmapedit.h"
#include "change/bitmapmerge.h"
#include "change/snapedit.h"

/* QEMU's limit for the directory, in bytes. */
#define MAX_DIRECTORY (UINT64_C (1024) * QCOW2_MAX_BITMAPS)
struct item {
  const struct bitmapdir_any *old;      /* NULL: a new bitmap */
  const struct bitmapedit *added;       /* a new bitmap; else NULL */
  bool automatic;                       /* it records */
  bool fresh;                           /* needs a new table */
  unsigned granularity_bits;
  uint64_t bits, table_entries;
  struct bitmapmerge_part *parts;       /* what a fresh one contains */
  size_t nr_parts;
  uint64_t table;                       /* the place of a fresh one */
};

/* Another image. */
struct source {
  struct image *image;
  struct bitmapdir dir;
};

struct edit {
  const struct image *image;
  struct shadow *s;
  const struct bitmapdir *dir;          /* the current bitmaps; nr_all = 0: none */
  const struct source *source;          /* where merged bitmaps are; NULL: here */
  struct item *items;
  size_t n;
  uint8_t *bytes;                       /* the new directory */
  uint64_t size;
};

static int
refuse (const struct edit *e, const char *name, const char *why)
{
  char text[PRINTABLE_SIZE (64)];

  report_error ("%s: bitmap \"%s\": %s", storage_path (e->image->file),
                printable (name, 64, text, sizeof text), why);
  errno = EINVAL;
  return -1;
}

/* --- the requested changes --- */

static const char *
name_of (const struct item *item)
{
  return item->old ? item->old->name : item->added->name;
}

static struct item *
find (struct edit *e, const char *name)
{
  for (size_t i = 0; i < e->n; i++)
    if (strcmp (name_of (&e->items[i]), name) == 0)
      return &e->items[i];
  return NULL;
}

static bool
is_inconsistent (const struct item *item)
{
  return item->old && item->old->flags & QCOW2_BITMAP_IN_USE;
}

/* The bitmap, which exists and is valid; or NULL (reported). */
static struct item *
find_valid (struct edit *e, const char *name)
{
  struct item *item = find (e, name);

  if (item == NULL)
    refuse (e, name, "there is no such bitmap");
  else if (is_inconsistent (item)) {
    refuse (e, name, "it is inconsistent and can only be removed");
    item = NULL;
  }
  return item;
}

static int
add (struct edit *e, const struct bitmapedit *edit)
{
  const struct header *h = &e->image->header;
  struct item item = { .added = edit, .automatic = true, .fresh = true };
  const size_t len = strlen (edit->name);

  if (find (e, edit->name))
    return refuse (e, edit->name, "a bitmap with this name exists already");
  if (len == 0 || len > QCOW2_MAX_BITMAP_NAME)
    return refuse (e, edit->name, "the name must have 1 to 1023 bytes");
  if (e->n >= QCOW2_MAX_BITMAPS)
    return refuse (e, edit->name, "an image cannot have more than 65535 bitmaps");
  item.granularity_bits = edit->granularity_bits ? edit->granularity_bits
    : min64 (max64 (h->cluster_bits, 12), 16);
  item.bits = div_up (h->size, UINT64_C (1) << item.granularity_bits);
  if (div_up (item.bits, 8) > QCOW2_MAX_BITMAP_BYTES)
    return refuse (e, edit->name, "it would need more than 512M: choose a larger "
                   "granularity");
  item.table_entries = div_up (div_up (item.bits, 8), h->cluster_size);
  /* QEMU requires tables to have entries, and a disk of 0 bytes has nothing to record. */
  if (item.table_entries == 0)
    return refuse (e, edit->name, "the disk has a size of 0");
  e->items[e->n++] = item;
  return 0;
}

static int
add_part (struct item *item, const struct bitmapmerge_part *part)
{
  struct bitmapmerge_part *p;

  for (size_t i = 0; i < item->nr_parts; i++) {
    p = &item->parts[i];
    if (p->e == part->e) {
      if (p->granularity_bits < part->granularity_bits)
        p->granularity_bits = part->granularity_bits;
      return 0;
    }
  }
  p = realloc (item->parts, (item->nr_parts + 1) * sizeof *p);
  if (p == NULL) {
    report_error ("realloc: %m");
    return -1;
  }
  item->parts = p;
  p[item->nr_parts++] = *part;
  return 0;
}

/* A valid bitmap as it is in the file of IMAGE. */
static struct bitmapmerge_part
part_of (const struct image *image, const struct bitmapdir_any *any)
{
  return (struct bitmapmerge_part) {
    .file = image->file, .cluster_bits = image->header.cluster_bits,
    .e = &any->e, .granularity_bits = any->e.granularity_bits,
  };
}

static int
merge_one (struct item *item, const struct bitmapmerge_part *part, unsigned by)
{
  struct bitmapmerge_part p = *part;

  if (p.granularity_bits < by)
    p.granularity_bits = by;
  return add_part (item, &p);
}

/* Everything that FROM contains, in pieces of its size. */
static int
merge_item (const struct edit *e, struct item *item, const struct item *from)
{
  struct bitmapmerge_part part;

  if (!from->fresh) {
    part = part_of (e->image, from->old);
    return add_part (item, &part);
  }
  for (size_t i = 0; i < from->nr_parts; i++)
    if (merge_one (item, &from->parts[i], from->granularity_bits) == -1)
      return -1;
  return 0;
}

static int
refuse_source (const struct edit *e, const char *name, const char *why)
{
  struct edit there = *e;

  there.image = e->source->image;
  return refuse (&there, name, why);
}

/* The bitmap NAME of another image. */
static int
merge_from_source (const struct edit *e, struct item *item, const char *name)
{
  const struct bitmapdir *dir = &e->source->dir;
  struct bitmapmerge_part part;
  size_t i = 0;

  while (i < dir->nr_all && strcmp (dir->all[i].name, name) != 0)
    i++;
  if (i == dir->nr_all)
    return refuse_source (e, name, "there is no such bitmap");
  if (dir->all[i].flags & QCOW2_BITMAP_IN_USE)
    return refuse_source (e, name, "it is inconsistent");
  if (e->source->image->header.size != e->image->header.size)
    return refuse_source (e, name, "it belongs to a disk of another size");
  part = part_of (e->source->image, &dir->all[i]);
  return add_part (item, &part);
}

static int
merge (struct edit *e, struct item *item, const char *name)
{
  const struct item *from = NULL;
  struct bitmapmerge_part part;

  if (e->source == NULL) {
    from = find_valid (e, name);
    if (from == NULL)
      return -1;
    if (from == item)
      return 0;
  }
  if (!item->fresh) {
    part = part_of (e->image, item->old);
    if (add_part (item, &part) == -1)
      return -1;
    item->fresh = true;
  }
  return from ? merge_item (e, item, from) : merge_from_source (e, item, name);
}

static int
remove_item (struct edit *e, const char *name)
{
  struct item *item = find (e, name);

  if (item == NULL)
    return refuse (e, name, "there is no such bitmap");
  free (item->parts);
  memmove (item, item + 1, (e->items + e->n - (item + 1)) * sizeof *item);
  e->n--;
  return 0;
}

static int
plan_one (struct edit *e, const struct bitmapedit *edit)
{
  struct item *item;

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

static int
check_limits (struct edit *e)
{
  uint64_t entries = 0, recorded = 0;

  for (size_t i = 0; i < e->n; i++) {
    const struct item *item = &e->items[i];

    entries += item->table_entries;
    if (item->automatic && !is_inconsistent (item))
      recorded += div_up (item->bits, 8);
    if (entries > BITMAPDIR_MAX_ENTRIES ||
        (!bitmapdir_can_record (recorded) && bitmapdir_can_record (e->dir->recorded)))
      return refuse (e, name_of (item),
                     "all bitmaps together would need too much memory");
  }
  return 0;
}

static int
plan (struct edit *e, const struct bitmapedit *edits, size_t n)
{
  e->items = calloc (e->dir->nr_all + n, sizeof *e->items);
  if (e->items == NULL) {
    report_error ("calloc: %m");
    return -1;
  }
  for (size_t i = 0; i < e->dir->nr_all; i++) {
    const struct bitmapdir_any *old = &e->dir->all[i];

    e->items[e->n++] = (struct item) {
      .old = old, .automatic = old->flags & QCOW2_BITMAP_AUTO,
      .granularity_bits = old->e.granularity_bits,
      .bits = old->e.bits, .table_entries = old->e.table_entries,
    };
  }
  for (size_t i = 0; i < n; i++)
    if (plan_one (e, &edits[i]) == -1)
      return -1;
  return check_limits (e) == -1 ? -1
    : bitmapext_check (e->image->file, &e->image->header, e->n == 0);
}

/* --- clusters that nothing points to any more --- */

/* Those of the table of an old bitmap, and of its bits. */
static int
drop_table (struct edit *e, const struct bitmapdir_entry *old)
{
  const uint64_t bytes = old->table_entries * sizeof (struct be64);
  CLEANUP_FREE struct be64 *table = malloc (bytes);
  uint64_t offset;

  if (table == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  if (storage_read (e->image->file, table, bytes, old->table) == -1)
    return -1;
  for (uint64_t i = 0; i < old->table_entries; i++) {
    offset = get64 (table[i]) & QCOW2_BITMAP_OFFSET_MASK;
    if (offset != 0 &&
        shadow_drop_range (e->s, offset, e->image->header.cluster_size) == -1)
      return -1;
  }
  return shadow_drop_range (e->s, old->table, bytes);
}

static bool
is_kept (const struct edit *e, const struct bitmapdir_any *old)
{
  for (size_t i = 0; i < e->n; i++)
    if (e->items[i].old == old)
      return !e->items[i].fresh;
  return false;
}

static int
drop_old (struct edit *e)
{
  const struct header *h = &e->image->header;

  for (size_t i = 0; i < e->dir->nr_all; i++)
    if (!is_kept (e, &e->dir->all[i]) &&
        drop_table (e, &e->dir->all[i].e) == -1)
      return -1;
  return e->dir->nr_all == 0 ? 0
    : shadow_drop_range (e->s, h->bitmaps.dir_offset, h->bitmaps.dir_size);
}

/* --- new clusters --- */

/* Writes the bits that entry I of the table stands for, if there are any.  WORDS is one
 * cluster. */
static int
make_cell (struct edit *e, const struct item *item, struct be64 *table, uint64_t i,
           uint64_t *words)
{
  const uint64_t cs = e->image->header.cluster_size;
  const struct bitmapmerge_cell cell = {
    .disk_size = e->image->header.size, .granularity_bits = item->granularity_bits,
    .first = i * cs * 8, .bytes = cs, .words = words,
  };
  uint64_t host;
  int r = bitmapmerge_compute (item->parts, item->nr_parts, &cell);

  if (r <= 0)
    return r;
  if (shadow_write (e->s, words, cs, &host) == -1)
    return -1;
  table[i] = put64 (host);
  return 0;
}

static int
make_table (struct edit *e, struct item *item)
{
  const uint64_t bytes = item->table_entries * sizeof (struct be64);
  CLEANUP_FREE uint64_t *words = malloc (e->image->header.cluster_size);
  CLEANUP_FREE struct be64 *table = calloc (1, bytes);

  if (words == NULL || table == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  for (uint64_t i = 0; item->nr_parts > 0 && i < item->table_entries; i++)
    if (make_cell (e, item, table, i, words) == -1)
      return -1;
  return shadow_write (e->s, table, bytes, &item->table);
}

static int
make_tables (struct edit *e)
{
  for (size_t i = 0; i < e->n; i++)
    if (e->items[i].fresh && make_table (e, &e->items[i]) == -1)
      return -1;
  return 0;
}

/* Appends a directory entry: FIXED, then the variable part of the old entry, or the new
 * name. */
static int
append_entry (struct edit *e, const struct qcow2_bitmap *fixed,
              const struct item *item)
{
  const uint64_t rest = get16 (fixed->name_size) + get32 (fixed->extra_size);
  const uint64_t len = round_up (sizeof *fixed + rest, 8);
  uint8_t *p;

  if (e->size + len > MAX_DIRECTORY)
    return refuse (e, name_of (item),
                   "the bitmap directory would be too long: use shorter names");
  p = realloc (e->bytes, e->size + len);
  if (p == NULL) {
    report_error ("realloc: %m");
    return -1;
  }
  e->bytes = p;
  p += e->size;
  e->size += len;
  memset (p, 0, len);
  memcpy (p, fixed, sizeof *fixed);
  if (item->old)
    return storage_read (e->image->file, p + sizeof *fixed, rest,
                         item->old->e.at + sizeof *fixed);
  memcpy (p + sizeof *fixed, item->added->name, rest);
  return 0;
}

static int
make_directory (struct edit *e)
{
  for (size_t i = 0; i < e->n; i++) {
    const struct item *item = &e->items[i];
    struct qcow2_bitmap fixed = { 0 };

    if (item->old) {
      if (storage_read (e->image->file, &fixed, sizeof fixed,
                        item->old->e.at) == -1)
        return -1;
    }
    else {
      fixed.table_size = put32 (item->table_entries);
      fixed.type = QCOW2_BITMAP_DIRTY_TRACKING;
      fixed.granularity_bits = item->granularity_bits;
      fixed.name_size = put16 (strlen (item->added->name));
    }
    fixed.flags = put32 ((get32 (fixed.flags) & ~QCOW2_BITMAP_AUTO) |
                         (item->automatic ? QCOW2_BITMAP_AUTO : 0));
    if (item->fresh)
      fixed.table_offset = put64 (item->table);
    if (append_entry (e, &fixed, item) == -1)
      return -1;
  }
  return 0;
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

static int
apply (struct edit *e, const struct change *c, struct shadow_header *sh)
{
  if (plan (e, c->edits, c->n) == -1 || drop_old (e) == -1 || make_tables (e) == -1 ||
      make_directory (e) == -1)
    return -1;
  sh->nr_bitmaps = e->n;
  sh->bitmaps_bytes = e->size;
  sh->bitmaps_offset = 0;
  return e->n == 0 ? 0 : shadow_write (e->s, e->bytes, e->size, &sh->bitmaps_offset);
}

/* Writes changed tables and the new directory, and has *SH refer to it. */
static int
change_bitmaps (void *opaque, const struct image *image, struct shadow *s,
                struct shadow_header *sh)
{
  static const struct bitmapdir none;
  const struct change *c = opaque;
  struct bitmaps *bitmaps = disk_inside (c->disk).bitmaps;
  struct edit e = {
    .image = image, .s = s, .source = c->source,
    .dir = bitmaps ? bitmap_directory (bitmaps) : &none,
  };
  const int r = apply (&e, c, sh);

  for (size_t i = 0; i < e.n; i++)
    free (e.items[i].parts);
  free (e.items);
  free (e.bytes);
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
  if (sh.nr_bitmaps > 0)
    shadow_stay_near (s, sh.bitmaps_offset);
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
release (void *opaque)
{
  const struct change *c = opaque;

  shadow_release (c->done);
}

static int
change_disk (struct change *c)
{
  const struct disk_change dc = {
    .opaque = c, .make = make, .release = release, .data_file = c->snapshot == NULL,
  };
  const int r = disk_change (c->disk, &dc);

  shadow_free (c->done);
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
  char why[BITMAPDIR_WHY];
  int r = -1;

  *s = (struct source) { .image = image_open_file (path, &options) };
  if (s->image == NULL)
    return -1;
  if (image_read_header (s->image) == 0) {
    overlap = overlap_new (s->image->header.cluster_bits);
    if (overlap == NULL)
      report_error ("overlap_new: %m");
    else if (!s->image->header.has_bitmaps)
      r = 0;
    else
      r = bitmapdir_read (s->image->file, &s->image->header, overlap, &s->dir, why);
    overlap_free (overlap);
  }
  if (r == 1) {
    report_error ("%s: %s", path, why);
    errno = EINVAL;
  }
  if (r != 0)
    image_close (s->image);
  return r == 0 ? 0 : -1;
}

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
