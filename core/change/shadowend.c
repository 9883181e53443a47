/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the image switch to its shadow?
 *
 * Part of shadow.c.  Changed refcount blocks get new places, and so does the refcount
 * table, which points to them.  This changes more refcounts, those of the old and of the
 * new places, so more blocks may need new places.  When the set of blocks is known, all
 * is written, in the order that shadow.c describes.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "image/bitmapext.h"
#include "image/headerwrite.h"
#include "change/shadow-impl.h"

struct freed_run { uint64_t first, n; };        /* clusters */

void
shadow_get_header (const struct shadow *s, struct shadow_header *sh)
{
  *sh = (struct shadow_header) {
    .size = s->h->size, .l1_offset = s->h->l1_offset,
    .l1_entries = s->h->l1_entries, .nr_snapshots = s->h->nb_snapshots,
    .snapshots_offset = s->h->snapshots_offset, .version = s->h->version,
    .refcount_order = s->h->refcount_order,
    .lazy_refcounts = s->h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS,
    .data_file_raw = s->h->autoclear & QCOW2_AUTOCLEAR_RAW_DATA_FILE,
  };
  if (s->h->has_bitmaps) {
    sh->nr_bitmaps = s->h->bitmaps.count;
    sh->bitmaps_offset = s->h->bitmaps.dir_offset;
    sh->bitmaps_bytes = s->h->bitmaps.dir_size;
  }
}

/* --- the new refcounts --- */

static int
touch_range (struct shadow *s, uint64_t first, uint64_t n)
{
  uint64_t i;

  for (i = first >> s->block_bits; i <= (first + n - 1) >> s->block_bits; i++)
    if (shadow_touch (s, i) == -1)
      return -1;
  return 0;
}

/* Marks the blocks that cover the old places of the table and of the changed blocks. */
static int
touch_old_places (struct shadow *s)
{
  const unsigned bits = s->h->cluster_bits;
  uint64_t i;

  for (i = 0; i < s->known; i++)
    if (s->blocks[i].was && shadow_old_place (s, i) != 0 &&
        touch_range (s, shadow_old_place (s, i) >> bits, 1) == -1)
      return -1;
  return touch_range (s, s->h->reftable_offset >> bits,
                      s->h->reftable_clusters);
}

int
shadow_move_refcounts (struct shadow *s, uint64_t host)
{
  for (uint64_t i = 0; i < s->table_entries; i++)
    if (shadow_old_place (s, i) >= host && shadow_touch (s, i) == -1)
      return -1;
  return 0;
}

static int
lay_out (struct shadow *s, struct shadow_place *p)
{
  const uint64_t per_cluster = s->h->cluster_size / sizeof (struct be64);
  uint64_t before;

  p->first = s->cursor;
  do {
    before = s->changed;
    if (touch_old_places (s) == -1)
      return -1;
    p->blocks = s->changed;
    p->table_clusters = max64 (s->h->reftable_clusters,
                               div_up (s->known, per_cluster));
    /* There is no space for more clusters before the first that had space for fewer. */
    if (shadow_find (s, p->table_clusters + p->blocks, p->first, &p->first) == -1 ||
        touch_range (s, p->first, p->table_clusters + p->blocks) == -1)
      return -1;
  } while (s->changed != before);
  return 0;
}

static int
count_places (struct shadow *s, const struct shadow_place *p)
{
  uint64_t i;

  for (i = 0; i < s->known; i++)
    if (s->blocks[i].was && shadow_old_place (s, i) != 0 &&
        shadow_drop (s, shadow_old_place (s, i) >> s->h->cluster_bits, 1) == -1)
      return -1;
  if (shadow_drop_range (s, s->h->reftable_offset,
                         s->h->reftable_clusters * s->h->cluster_size) == -1)
    return -1;
  return shadow_claim (s, p->first, p->table_clusters + p->blocks);
}

/* Blocks are adjacent in the file but not in memory, so they are copied to a buffer, and
 * as many as fit are written with one call. */
static int
write_blocks (struct shadow *s, const struct shadow_place *p, struct be64 *table)
{
  const uint64_t cs = s->h->cluster_size;
  uint64_t at = (p->first + p->table_clusters) << s->h->cluster_bits;
  uint64_t i, n = 0;

  for (i = 0; i < s->known; i++) {
    if (s->blocks[i].was == NULL)
      continue;
    memcpy (s->batch + n * cs, s->blocks[i].now, cs);
    table[i] = put64 (at + n * cs);
    if (++n == s->batch_max) {
      if (storage_write (s->file, s->batch, n * cs, at) == -1)
        return -1;
      at += n * cs;
      n = 0;
    }
  }
  return n == 0 ? 0 : storage_write (s->file, s->batch, n * cs, at);
}

static int
write_refcounts (struct shadow *s, const struct shadow_place *p)
{
  const uint64_t bytes = p->table_clusters << s->h->cluster_bits;
  CLEANUP_FREE struct be64 *table = calloc (1, bytes);

  if (table == NULL) {
    report_error ("%s: refcount table of %" PRIu64 " bytes: %m",
                  storage_path (s->file), bytes);
    return -1;
  }
  memcpy (table, s->table, s->table_entries * sizeof *table);
  if (write_blocks (s, p, table) == -1)
    return -1;
  return storage_write (s->file, table, bytes, p->first << s->h->cluster_bits);
}

/* --- the switch --- */

int
shadow_check_version (const struct image *image, unsigned version)
{
  struct headerwrite *w = headerwrite_new (image->file, &image->header);
  bool fits;

  if (w == NULL)
    return -1;
  /* Ask as if all bytes changed. */
  headerwrite_fields (w)->l1_table_offset = put64 (~image->header.l1_offset);
  if (version != image->header.version)
    headerwrite_set_version (w, version);
  fits = headerwrite_fits (w);
  headerwrite_free (w);
  if (fits)
    return 0;
  return report_refusal (ENOTSUP, "%s: the header has no space for a change to version "
                         "%u", storage_path (image->file), version);
}

/* FEATURES with or without BIT. */
static struct be64
with_bit (struct be64 features, uint64_t bit, bool on)
{
  return put64 (on ? get64 (features) | bit : get64 (features) & ~bit);
}

static void
set_fields (struct qcow2_header *raw, const struct header *h,
            const struct shadow_header *sh, const struct shadow_place *p)
{
  raw->size = put64 (sh->size);
  raw->l1_size = put32 (sh->l1_entries);
  raw->l1_table_offset = put64 (sh->l1_offset);
  raw->nb_snapshots = put32 (sh->nr_snapshots);
  raw->snapshots_offset = put64 (sh->snapshots_offset);
  raw->refcount_order = put32 (sh->refcount_order);
  if (p) {
    raw->refcount_table_offset = put64 (p->first << h->cluster_bits);
    raw->refcount_table_clusters = put32 (p->table_clusters);
  }
  raw->compatible_features = with_bit (raw->compatible_features,
                                       QCOW2_COMPAT_LAZY_REFCOUNTS, sh->lazy_refcounts);
  raw->autoclear_features = with_bit (raw->autoclear_features,
                                      QCOW2_AUTOCLEAR_RAW_DATA_FILE, sh->data_file_raw);
}

/* STAYS: see bitmapext_put.  NULL: reported. */
static struct headerwrite *
plan_header (struct shadow *s, const struct shadow_header *sh,
             const struct shadow_place *p, bool stays)
{
  struct headerwrite *w = headerwrite_new (s->file, s->h);
  struct shadow_header before;

  if (w == NULL)
    return NULL;
  if (sh->version != s->h->version)
    headerwrite_set_version (w, sh->version);
  set_fields (headerwrite_fields (w), s->h, sh, p);
  headerwrite_drop_foreign (w);
  if (sh->data_file && sh->data_file[0] == '\0')
    headerwrite_drop_extension (w, QCOW2_EXT_DATA_FILE);
  else if (sh->data_file)
    headerwrite_put_extension (w, QCOW2_EXT_DATA_FILE, sh->data_file,
                               strlen (sh->data_file));
  shadow_get_header (s, &before);
  if (sh->bitmaps_offset != before.bitmaps_offset)
    bitmapext_put (w, sh->nr_bitmaps, sh->bitmaps_bytes, sh->bitmaps_offset, stays);
  if (headerwrite_fits (w) || stays)
    return w;
  headerwrite_free (w);
  return plan_header (s, sh, p, true);
}

static int
switch_header (struct shadow *s, const struct shadow_header *sh,
               const struct shadow_place *p)
{
  struct headerwrite *w = plan_header (s, sh, p, false);
  int r;

  if (w == NULL)
    return -1;
  r = headerwrite_commit (w, &s->switching);
  headerwrite_free (w);
  if (r == -1 && s->switching) {
    health_fail (s->image->health, "the last step of the change failed: the image is "
                 "either as before or completely changed");
    errno = EIO;
  }
  return r;
}

/* --- release; a failure here only wastes space --- */

/* Frees a run: ALLOC gets it, or a hole is punched.  -1: there can be no hole. */
static int
free_run (struct shadow *s, struct alloc *alloc, const struct freed_run *run)
{
  const unsigned bits = s->h->cluster_bits;

  if (run->n == 0)
    return 0;
  if (alloc == NULL)
    return storage_discard (s->file, run->first << bits, run->n << bits) == -1 ? -1 : 0;
  alloc_hold_freed (alloc, run->first, run->n);
  return 0;
}

/* The clusters before END that are free now, and were in use. */
static void
free_runs (struct shadow *s, struct alloc *alloc, uint64_t end)
{
  const uint64_t per_block = UINT64_C (1) << s->block_bits;
  const unsigned order = s->h->refcount_order;
  struct freed_run run = { 0, 0 };
  uint64_t first, i, j, to;

  for (i = 0; i < s->known; i++) {
    const struct shadow_block *b = &s->blocks[i];

    first = i << s->block_bits;
    to = b->was && first < end ? min64 (per_block, end - first) : 0;
    for (j = 0; (j = refblock_find_zero (b->now, order, j, to)) < to; j++) {
      if (refblock_get (b->was, order, j) == 0)
        continue;
      if (run.first + run.n != first + j) {
        if (free_run (s, alloc, &run) == -1)
          return;
        run = (struct freed_run) { first + j, 0 };
      }
      run.n++;
    }
  }
  free_run (s, alloc, &run);
}

/* Clusters past the last one that had a refcount are kept: if refcounts are wrong, they
 * may contain data, which a repair can still save. */
void
shadow_release (struct shadow *s, struct alloc *alloc)
{
  const uint64_t size = storage_size (s->file);
  const uint64_t clusters = div_up (size, s->h->cluster_size);
  const uint64_t old = div_up (s->file_size, s->h->cluster_size);
  uint64_t end;

  if (!s->counts)
    return;
  end = shadow_end (s, false);
  if (end < old && shadow_end (s, true) < old)
    end = old;
  end = min64 (end, clusters);
  if (alloc)
    alloc_need_only (alloc, end << s->h->cluster_bits);
  else if (end << s->h->cluster_bits < size && storage_is_regular (s->file))
    storage_truncate (s->file, end << s->h->cluster_bits);
  if (alloc || s->discard)
    free_runs (s, alloc, alloc ? clusters : end);
}

int
shadow_commit (struct shadow *s, const struct shadow_header *sh)
{
  const bool width = sh->refcount_order != s->h->refcount_order;
  struct shadow_place p = { 0 };

  s->counts = width || s->changed > 0;
  if (width && shadow_write_width (s, sh->refcount_order, &p) == -1)
    return -1;
  if (!width && s->counts && (lay_out (s, &p) == -1 || count_places (s, &p) == -1 ||
                           write_refcounts (s, &p) == -1))
    return -1;
  if (storage_sync (s->file) == -1)
    return -1;
  if (switch_header (s, sh, s->counts ? &p : NULL) == -1)
    return -1;
  report_debug ("%s: changed in one step: L1 table at %" PRIu64 ", %" PRIu32
                " snapshots, %" PRIu64 " refcount blocks written",
                storage_path (s->file), sh->l1_offset, sh->nr_snapshots,
                p.blocks);
  return 0;
}
