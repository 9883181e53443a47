/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bitmaps adapted to a disk that is resized?
 *
 * Specification: "Bitmaps".
 *
 * As in QEMU, added space is not marked as changed, and space that is cut off loses its
 * bits.  A bit whose area the old or the new end of the disk divides keeps its value.
 *
 * A bitmap needs a new table if the number of its entries changes, or if bits past the
 * last valid one are set (QEMU sets them if all bits are set): until now they were
 * ignored, but now they would become valid.  In the latter case the last cluster that
 * stays is also written to a new place; if its entry has no cluster and says "all ones",
 * it gets one.  Bitmaps that need no change keep their directory entries byte for byte.
 * So do those that are in use: their contents are invalid, and their tables need not fit
 * the size.
 *
 * All changes are written to free clusters, and a new directory points to them.  The
 * header switches to that directory in the same step that changes the size (shadow.c).
 *
 * Memory: the directory, one table, one cluster.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/format.h"
#include "image/bitmapdir.h"
#include "change/bitmapsize.h"

/* One bitmap, and its new state. */
struct next {
  const struct bitmapdir_any *old;
  uint64_t bits, entries;
  uint64_t keep;                /* entries that stay, the last one maybe changed */
  struct be64 *table;           /* the old entries, then zeros */
  uint8_t *last;                /* new contents of entry keep - 1; or NULL */
  bool changed;
};

static int
refuse (const struct image *image, const struct bitmapdir_any *b, const char *why)
{
  char text[PRINTABLE_SIZE (64)];

  report_error ("%s: resize: bitmap \"%s\": %s", storage_path (image->file),
                printable (b->name, 64, text, sizeof text), why);
  errno = EINVAL;
  return -1;
}

static uint64_t
bits_for (const struct bitmapdir_any *b, uint64_t size)
{
  return div_up (size, UINT64_C (1) << b->e.granularity_bits);
}

/* The overlap of the image already contains the bitmaps, so this uses its own. */
static int
read_directory (const struct image *image, struct bitmapdir *dir)
{
  struct overlap *overlap = overlap_new (image->header.cluster_bits);
  char why[BITMAPDIR_WHY];
  int r;

  if (overlap == NULL) {
    report_error ("overlap_new: %m");
    return -1;
  }
  r = bitmapdir_read (image->file, &image->header, overlap, dir, why);
  overlap_free (overlap);
  if (r == 1) {
    report_error ("%s: resize: %s", storage_path (image->file), why);
    errno = EBUSY;
  }
  return r == 0 ? 0 : -1;
}

/* --- planning --- */

/* Clears all bits from BIT on.  Returns whether one of them was set. */
static bool
clear_from (uint8_t *buf, uint64_t bit, uint64_t bytes)
{
  uint8_t found = buf[bit / 8] >> bit % 8;
  uint64_t i;

  buf[bit / 8] &= (1u << bit % 8) - 1;
  for (i = bit / 8 + 1; i < bytes; i++) {
    found |= buf[i];
    buf[i] = 0;
  }
  return found != 0;
}

/* BITS: the number of valid bits in the cluster of the last entry that stays. */
static int
look_at_last (const struct image *image, struct next *n, uint64_t bits)
{
  const uint64_t cs = image->header.cluster_size;
  const uint64_t entry = get64 (n->table[n->keep - 1]);
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;
  CLEANUP_FREE uint8_t *buf = NULL;

  if (entry == 0 || (offset == 0 && n->bits <= n->old->e.bits))
    return 0;
  buf = malloc (cs);
  if (buf == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  if (offset == 0)
    memset (buf, 0xff, cs);
  else if (storage_read (image->file, buf, cs, offset) == -1)
    return -1;
  if (clear_from (buf, bits, cs)) {
    n->changed = true;
    n->last = buf;
    buf = NULL;                 /* N owns it */
  }
  return 0;
}

/* The caller frees N->table and N->last, also after an error. */
static int
look (const struct image *image, const struct bitmapdir_any *old,
      uint64_t size, struct next *n)
{
  const uint64_t per_cluster = image->header.cluster_size * 8;
  const struct bitmapdir_entry *e = &old->e;
  uint64_t kept;

  *n = (struct next) { .old = old, .bits = bits_for (old, size) };
  n->entries = div_up (n->bits, per_cluster);
  if (old->flags & QCOW2_BITMAP_IN_USE)
    return 0;
  kept = min64 (n->bits, e->bits);
  n->keep = div_up (kept, per_cluster);
  n->changed = n->entries != e->table_entries;
  n->table = calloc (max64 (n->entries, e->table_entries), sizeof *n->table);
  if (n->table == NULL) {
    report_error ("calloc: %m");
    return -1;
  }
  if (storage_read (image->file, n->table, e->table_entries * sizeof *n->table,
                    e->table) == -1)
    return -1;
  return kept % per_cluster == 0 ? 0
    : look_at_last (image, n, kept % per_cluster);
}

static void
forget (struct next *n)
{
  free (n->table);
  free (n->last);
}

/* --- is the resize possible? --- */

static int
check_limits (const struct image *image, const struct bitmapdir *dir,
              uint64_t size)
{
  const uint64_t per_cluster = image->header.cluster_size * 8;
  uint64_t entries = 0, recorded = 0, bits;
  size_t i;

  for (i = 0; i < dir->nr_all; i++) {
    const struct bitmapdir_any *b = &dir->all[i];

    bits = bits_for (b, size);
    if (b->flags & QCOW2_BITMAP_IN_USE)
      entries += b->e.table_entries;
    else if (div_up (bits, per_cluster) >
             QCOW2_MAX_BITMAP_BYTES >> image->header.cluster_bits)
      return refuse (image, b, "it would need more than 512M");
    else
      entries += div_up (bits, per_cluster);
    if (b->follower != SIZE_MAX)
      recorded += div_up (bits, 8);
    if (entries > BITMAPDIR_MAX_ENTRIES ||
        (!bitmapdir_can_record (recorded) && bitmapdir_can_record (dir->recorded)))
      return refuse (image, b, "all bitmaps together would need too much memory");
  }
  return 0;
}

static int
check_all (const struct image *image, const struct bitmapdir *dir,
           uint64_t size)
{
  bool changed = false;
  struct next n;
  size_t i;
  int r = check_limits (image, dir, size);

  for (i = 0; r == 0 && !changed && i < dir->nr_all; i++) {
    r = look (image, &dir->all[i], size, &n);
    changed = n.changed;
    forget (&n);
  }
  return r == 0 && changed ? shadow_check_bitmaps (image) : r;
}

int
bitmapsize_check (const struct image *image, uint64_t size)
{
  struct bitmapdir dir;
  int r;

  if (!image->header.has_bitmaps)
    return 0;
  if (read_directory (image, &dir) == -1)
    return -1;
  r = check_all (image, &dir, size);
  bitmapdir_free (&dir);
  return r;
}

/* --- writing --- */

static int
drop_bits (struct shadow *s, const struct header *h, struct next *n, uint64_t i)
{
  const uint64_t offset = get64 (n->table[i]) & QCOW2_BITMAP_OFFSET_MASK;

  n->table[i] = put64 (0);
  return offset == 0 ? 0 : shadow_drop (s, offset >> h->cluster_bits, 1);
}

/* FIXED: the fixed part of its directory entry. */
static int
write_one (struct shadow *s, const struct header *h, struct next *n,
           struct qcow2_bitmap *fixed)
{
  const struct bitmapdir_entry *e = &n->old->e;
  uint64_t i, host;

  for (i = n->keep - (n->last != NULL); i < e->table_entries; i++)
    if (drop_bits (s, h, n, i) == -1)
      return -1;
  if (n->last) {
    if (shadow_write (s, n->last, h->cluster_size, &host) == -1)
      return -1;
    n->table[n->keep - 1] = put64 (host);
  }
  if (shadow_drop_range (s, e->table, e->table_entries * sizeof *n->table) == -1 ||
      shadow_write (s, n->table, n->entries * sizeof *n->table, &host) == -1)
    return -1;
  fixed->table_offset = put64 (host);
  fixed->table_size = put32 (n->entries);
  return 0;
}

/* Writes all bitmaps that change; BUF: the directory. */
static int
write_all (const struct image *image, struct shadow *s,
           const struct bitmapdir *dir, uint64_t size, uint8_t *buf, bool *changed)
{
  const struct header *h = &image->header;
  struct qcow2_bitmap fixed;
  struct next n;
  size_t i;
  int r = 0;

  *changed = false;
  for (i = 0; r == 0 && i < dir->nr_all; i++) {
    uint8_t *const entry = buf + (dir->all[i].e.at - h->bitmaps.dir_offset);

    r = look (image, &dir->all[i], size, &n);
    if (r == 0 && n.changed) {
      *changed = true;
      memcpy (&fixed, entry, sizeof fixed);
      r = write_one (s, h, &n, &fixed);
      memcpy (entry, &fixed, sizeof fixed);
    }
    forget (&n);
  }
  return r;
}

static int
change (const struct image *image, struct shadow *s,
        const struct bitmapdir *dir, uint64_t size, struct shadow_header *sh)
{
  const struct header *h = &image->header;
  CLEANUP_FREE uint8_t *buf = malloc (h->bitmaps.dir_size);
  bool changed;

  if (buf == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  if (storage_read (image->file, buf, h->bitmaps.dir_size,
                    h->bitmaps.dir_offset) == -1 ||
      write_all (image, s, dir, size, buf, &changed) == -1)
    return -1;
  if (!changed)
    return 0;
  if (shadow_drop_range (s, h->bitmaps.dir_offset, h->bitmaps.dir_size) == -1)
    return -1;
  return shadow_write (s, buf, h->bitmaps.dir_size, &sh->bitmaps_offset);
}

int
bitmapsize_change (const struct image *image, struct shadow *s,
                   uint64_t size, struct shadow_header *sh)
{
  struct bitmapdir dir;
  int r;

  if (!image->header.has_bitmaps)
    return 0;
  if (read_directory (image, &dir) == -1)
    return -1;
  r = change (image, s, &dir, size, sh);
  bitmapdir_free (&dir);
  return r;
}
