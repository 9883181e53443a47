/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the bitmaps of an image replaced by others?
 *
 * Specification: "Bitmaps".
 *
 * A change is planned first, in a list of all bitmaps that the image will have:
 * bitmapedit.c adds, removes and changes them, and a resize gives them another length.
 * Only then are tables, their bits and a directory written, to free clusters, and all
 * that nothing points to any more is dropped.  The header switches to the new directory
 * (shadow.c), together with whatever else changes.
 *
 * A bitmap that does not change keeps its table, and the bytes of its directory entry
 * (but for the flag that says whether it records).  What one contains that is written
 * anew is a list of bitmaps that are in files now (its parts), so that one can be
 * merged, cleared and merged again at once.
 *
 * Resize: as in QEMU, added space is not marked as changed, and space that is cut off
 * loses its bits.  (But what is data is marked, in those that record: preallocated space,
 * and the rest of the cluster in which the disk ended, which was zeroed.  Nothing else
 * could tell a copy of the longer disk that was, before it became smaller, that this is
 * zeros now.)  A bit whose area the old or the new end of the disk divides otherwise
 * keeps its value.  A table of the same length can stay, and clusters of bits stay where
 * they are, unless bits behind the end of the shorter disk are set.  In the old bitmap
 * they meant nothing (QEMU sets them if all bits are set), but would become valid.  The
 * cluster that contains them is written anew, as if the bitmap was merged into an empty
 * one.  Bitmaps that are in use keep their length: their contents are invalid, and their
 * tables need not fit the size.
 *
 * Limits are those of QEMU, for the number, names, granularity and size of bitmaps; and
 * those of bitmapdir.c, because an image that exceeds them would be read-only.
 *
 * Memory: the old directory and the new one, one table before and after, one cluster.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/format.h"
#include "image/bitmapext.h"
#include "change/bitmapset.h"

/* QEMU's limit for the directory, in bytes. */
#define MAX_DIRECTORY (UINT64_C (1024) * QCOW2_MAX_BITMAPS)

/* Bytes of the longest directory entry that we make. */
#define MAX_ENTRY round_up (sizeof (struct qcow2_bitmap) + QCOW2_MAX_BITMAP_NAME, 8)

int
bitmapset_refuse (const struct image *image, const char *name, const char *why)
{
  char text[PRINTABLE_SIZE (64)];

  return report_refusal (EINVAL, "%s: bitmap \"%s\": %s", storage_path (image->file),
                         printable (name, 64, text, sizeof text), why);
}

/* --- the plan --- */

int
bitmapset_new (struct bitmapset *set, const struct image *image,
               const struct bitmapdir *dir, size_t more)
{
  static const struct bitmapdir none;

  *set = (struct bitmapset) {
    .image = image, .dir = dir ? dir : &none, .disk_size = image->header.size,
  };
  set->items = memory_new (set->dir->nr_all + more + 1, sizeof *set->items);
  if (set->items == NULL)
    return -1;
  for (; set->n < set->dir->nr_all; set->n++) {
    const struct bitmapdir_any *old = &set->dir->all[set->n];

    set->items[set->n] = (struct bitmapset_item) {
      .old = old, .name = old->name, .automatic = old->flags & QCOW2_BITMAP_AUTO,
      .granularity_bits = old->e.granularity_bits,
      .bits = old->e.bits, .table_entries = old->e.table_entries,
    };
  }
  return 0;
}

void
bitmapset_free (struct bitmapset *set)
{
  for (size_t i = 0; i < set->n; i++)
    free (set->items[i].parts);
  free (set->items);
}

void
bitmapset_measure (const struct bitmapset *set, struct bitmapset_item *item)
{
  item->bits = div_up (set->disk_size, UINT64_C (1) << item->granularity_bits);
  item->table_entries = div_up (div_up (item->bits, 8), set->image->header.cluster_size);
}

struct bitmapmerge_part
bitmapset_part (const struct image *image, const struct bitmapdir_any *any)
{
  return (struct bitmapmerge_part) {
    .file = image->file, .cluster_bits = image->header.cluster_bits,
    .e = &any->e, .granularity_bits = any->e.granularity_bits,
  };
}

int
bitmapset_add_part (struct bitmapset_item *item, const struct bitmapmerge_part *part)
{
  struct bitmapmerge_part *p;

  for (size_t i = 0; i < item->nr_parts; i++) {
    p = &item->parts[i];
    if (p->e == part->e) {
      p->granularity_bits = max64 (p->granularity_bits, part->granularity_bits);
      return 0;
    }
  }
  if (MEMORY_APPEND (item->parts, item->nr_parts) == -1)
    return -1;
  item->parts[item->nr_parts++] = *part;
  return 0;
}

int
bitmapset_renew (const struct bitmapset *set, struct bitmapset_item *item)
{
  struct bitmapmerge_part part;

  item->keep = 0;
  if (item->fresh)
    return 0;
  item->fresh = true;
  part = bitmapset_part (set->image, item->old);
  return bitmapset_add_part (item, &part);
}

/* Is anything set behind the END of a disk, in the cluster of bits that it divides?
 * Returns 1, 0, or -1. */
static int
is_set_past (const struct bitmapset *set, const struct bitmapdir_entry *old, uint64_t end)
{
  const uint64_t cs = set->image->header.cluster_size, at = end / 8 % cs;
  CLEANUP_FREE uint8_t *buf = NULL;
  struct be64 entry;

  if (end % (cs * 8) == 0)
    return 0;
  buf = memory_get (cs);
  if (buf == NULL || storage_read (set->image->file, &entry, sizeof entry,
                    old->table + end / 8 / cs * sizeof entry) == -1)
    return -1;
  if (get64 (entry) <= QCOW2_BITMAP_ALL_ONES)
    return get64 (entry);
  if (storage_read (set->image->file, buf, cs, get64 (entry)) == -1)
    return -1;
  return buf[at] >> end % 8 != 0 || !bytes_are_zero (buf + at + 1, cs - at - 1);
}

/* Whether a resize marks bits: [*FIRST, *END) of the bitmap. */
static bool
marked_bits (const struct bitmapset *set, const struct bitmapset_item *item,
             uint64_t *first, uint64_t *end)
{
  *first = set->marked >> item->granularity_bits;
  *end = div_up (set->marked_end, UINT64_C (1) << item->granularity_bits);
  return item->automatic && set->marked < set->marked_end;
}

static int
resize_item (struct bitmapset *set, struct bitmapset_item *item)
{
  const uint64_t bits = item->bits, entries = item->table_entries;
  const uint64_t per_cluster = set->image->header.cluster_size * 8;
  uint64_t shorter, first, end;
  bool marks;
  int past;

  bitmapset_measure (set, item);
  marks = marked_bits (set, item, &first, &end);
  if ((item->bits == bits && !marks) || item->fresh)
    return 0;
  shorter = min64 (bits, item->bits);
  past = is_set_past (set, &item->old->e, shorter);
  if (past == -1)
    return -1;
  if (!past && !marks && item->table_entries == entries)
    return 0;
  set->changed = true;
  if (bitmapset_renew (set, item) == -1)
    return -1;
  item->keep = past ? shorter / per_cluster : div_up (shorter, per_cluster);
  if (marks)
    item->keep = min64 (item->keep, first / per_cluster);
  return 0;
}

int
bitmapset_resize (struct bitmapset *set, uint64_t size, bool preallocated)
{
  const uint64_t old = set->disk_size;

  if (size > old) {
    set->marked = old;
    set->marked_end = preallocated ? size
      : min64 (size, round_up (old, set->image->header.cluster_size));
  }
  set->disk_size = size;
  for (size_t i = 0; i < set->n; i++)
    if (!bitmapset_is_inconsistent (&set->items[i]) &&
        resize_item (set, &set->items[i]) == -1)
      return -1;
  return 0;
}

int
bitmapset_check (const struct bitmapset *set)
{
  uint64_t entries = 0, recorded = 0;

  for (size_t i = 0; i < set->n; i++) {
    const struct bitmapset_item *item = &set->items[i];
    const uint64_t bytes = bitmapset_is_inconsistent (item) ? 0 : div_up (item->bits, 8);

    entries += item->table_entries;
    recorded += item->automatic ? bytes : 0;
    if (bytes > QCOW2_MAX_BITMAP_BYTES)
      return bitmapset_refuse (set->image, item->name, "it would need more than 512M: "
                               "it requires a larger granularity");
    if (entries > BITMAPDIR_MAX_ENTRIES ||
        (!bitmapdir_can_record (recorded) && bitmapdir_can_record (set->dir->recorded)))
      return bitmapset_refuse (set->image, item->name,
                               "all bitmaps together would need too much memory");
  }
  return set->changed
    ? bitmapext_check (set->image->file, &set->image->header, set->n == 0) : 0;
}

/* --- tables --- */

/* Drops the old table, which contains WAS, and the bits that entries from KEEP on stand
 * for. */
static int
drop_table (const struct bitmapset *set, struct shadow *s,
            const struct bitmapdir_entry *old, const uint64_t *was, uint64_t keep)
{
  for (uint64_t i = keep; i < old->table_entries; i++) {
    const uint64_t offset = was[i] & QCOW2_BITMAP_OFFSET_MASK;

    if (offset != 0 &&
        shadow_drop_range (s, offset, set->image->header.cluster_size) == -1)
      return -1;
  }
  return shadow_drop_range (s, old->table, old->table_entries * sizeof *was);
}

/* Returns whether a bit is set now. */
static bool
mark_added (const struct bitmapset *set, const struct bitmapset_item *item,
            const struct bitmapmerge_cell *cell)
{
  uint8_t *const bytes = (uint8_t *) cell->words;
  uint64_t bit, end;
  const bool marks = marked_bits (set, item, &bit, &end);

  bit = max64 (bit, cell->first);
  end = min64 (end, cell->first + cell->bytes * 8);
  if (!marks || bit >= end)
    return false;
  for (; bit < end; bit++)
    bytes[(bit - cell->first) / 8] |= 1 << bit % 8;
  return true;
}

/* Writes the bits that entry I of the table stands for, if there are any.  WORDS is one
 * cluster. */
static int
make_cell (const struct bitmapset *set, struct shadow *s,
           const struct bitmapset_item *item, struct be64 *table, uint64_t i,
           uint64_t *words)
{
  const uint64_t cs = set->image->header.cluster_size;
  const struct bitmapmerge_cell cell = {
    .disk_size = set->disk_size, .granularity_bits = item->granularity_bits,
    .first = i * cs * 8, .bytes = cs, .words = words,
  };
  uint64_t host;
  const int r = bitmapmerge_compute (item->parts, item->nr_parts, &cell);

  if (r == -1)
    return -1;
  if (!mark_added (set, item, &cell) && r == 0)
    return 0;
  if (shadow_write (s, words, cs, &host) == -1)
    return -1;
  table[i] = put64 (host);
  return 0;
}

/* WAS: the old table; NULL: there is none. */
static int
make_table (const struct bitmapset *set, struct shadow *s, struct bitmapset_item *item,
            const uint64_t *was)
{
  const uint64_t bytes = item->table_entries * sizeof (struct be64);
  CLEANUP_FREE uint64_t *words = memory_get (set->image->header.cluster_size);
  CLEANUP_FREE struct be64 *table = memory_new (1, bytes);
  uint64_t i;

  if (words == NULL || table == NULL)
    return -1;
  for (i = 0; i < item->keep; i++)
    table[i] = put64 (was[i]);
  for (; item->nr_parts > 0 && i < item->table_entries; i++)
    if (make_cell (set, s, item, table, i, words) == -1)
      return -1;
  return shadow_write (s, table, bytes, &item->table);
}

/* ITEM: what becomes of the bitmap; NULL: nothing. */
static int
replace (const struct bitmapset *set, struct shadow *s, const struct bitmapdir_entry *old,
         struct bitmapset_item *item)
{
  CLEANUP_FREE uint64_t *was = bitmapdir_read_table (set->image->file, old);

  if (was == NULL || drop_table (set, s, old, was, item ? item->keep : 0) == -1)
    return -1;
  return item ? make_table (set, s, item, was) : 0;
}

static int
replace_tables (const struct bitmapset *set, struct shadow *s)
{
  struct bitmapset_item *next = set->items, *const end = next + set->n, *item;

  for (size_t i = 0; i < set->dir->nr_all; i++) {
    const struct bitmapdir_any *old = &set->dir->all[i];

    item = next < end && next->old == old ? next++ : NULL;
    if ((item == NULL || item->fresh) && replace (set, s, &old->e, item) == -1)
      return -1;
  }
  for (; next < end; next++)
    if (make_table (set, s, next, NULL) == -1)
      return -1;
  return 0;
}

/* --- the directory --- */

/* Puts a directory entry at P, and returns its length.  WAS: the old directory. */
static uint64_t
encode (const struct bitmapset *set, const struct bitmapset_item *item,
        const uint8_t *was, uint8_t *p)
{
  struct qcow2_bitmap fixed = {
    .type = QCOW2_BITMAP_DIRTY_TRACKING, .granularity_bits = item->granularity_bits,
    .name_size = put16 (strlen (item->name)),
  };
  uint64_t len;

  if (item->old)
    memcpy (&fixed, was += item->old->e.at - set->image->header.bitmaps.dir_offset,
            sizeof fixed);
  len = round_up (sizeof fixed + get16 (fixed.name_size) + get32 (fixed.extra_size), 8);
  if (item->old)
    memcpy (p, was, len);
  else
    memcpy (p + sizeof fixed, item->name, strlen (item->name));
  fixed.flags = put32 ((get32 (fixed.flags) & ~QCOW2_BITMAP_AUTO) |
                       (item->automatic ? QCOW2_BITMAP_AUTO : 0));
  if (item->fresh) {
    fixed.table_offset = put64 (item->table);
    fixed.table_size = put32 (item->table_entries);
  }
  memcpy (p, &fixed, sizeof fixed);
  return len;
}

static int
write_directory (const struct bitmapset *set, struct shadow *s, struct shadow_header *sh)
{
  const struct header *h = &set->image->header;
  const uint64_t old = set->dir->nr_all > 0 ? h->bitmaps.dir_size : 0;
  CLEANUP_FREE uint8_t *was = memory_get (old + 1);
  CLEANUP_FREE uint8_t *bytes = memory_new (1, old + set->n * MAX_ENTRY);

  if (was == NULL || bytes == NULL)
    return -1;
  if (old > 0 && storage_read (set->image->file, was, old, h->bitmaps.dir_offset) == -1)
    return -1;
  for (size_t i = 0; i < set->n; i++) {
    sh->bitmaps_bytes += encode (set, &set->items[i], was, bytes + sh->bitmaps_bytes);
    if (sh->bitmaps_bytes > MAX_DIRECTORY)
      return bitmapset_refuse (set->image, set->items[i].name, "the bitmap directory "
                               "would be too long: use shorter names");
  }
  return shadow_write (s, bytes, sh->bitmaps_bytes, &sh->bitmaps_offset);
}

int
bitmapset_write (struct bitmapset *set, struct shadow *s, struct shadow_header *sh)
{
  const struct header *h = &set->image->header;

  if (!set->changed)
    return 0;
  if (replace_tables (set, s) == -1 ||
      (set->dir->nr_all > 0 &&
       shadow_drop_range (s, h->bitmaps.dir_offset, h->bitmaps.dir_size) == -1))
    return -1;
  sh->nr_bitmaps = set->n;
  sh->bitmaps_offset = sh->bitmaps_bytes = 0;
  return set->n == 0 ? 0 : write_directory (set, s, sh);
}
