/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do the refcounts of an image get another width?
 *
 * Part of shadow.c.  All refcounts are written anew, past the end of everything: first
 * the table, then a block for each part of the file of which a block is in memory, and
 * for the new structure itself.  The old table and blocks become free.  All of that is
 * counted in the blocks in memory first, which keep the old width; only what is written
 * has the new one.  So nothing else of the shadow notices, and the switch is the same as
 * that to any other refcounts.
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
#include "space/refblock.h"
#include "space/reflayout.h"
#include "change/shadow-impl.h"

struct width {
  struct shadow *s;
  unsigned order, block_bits;   /* new */
  uint64_t max_count;
  unsigned char *block;
};

/* --- the old structure --- */

static int
drop_old (struct shadow *s)
{
  const unsigned bits = s->h->cluster_bits;
  uint64_t i;

  for (i = 0; i < s->table_entries; i++)
    if (s->table[i].be != 0 && shadow_load (s, i) == -1)
      return -1;
  for (i = 0; i < s->table_entries; i++)
    if (shadow_old_place (s, i) != 0 &&
        shadow_drop (s, shadow_old_place (s, i) >> bits, 1) == -1)
      return -1;
  return shadow_drop_range (s, s->h->reftable_offset,
                            s->h->reftable_clusters * s->h->cluster_size);
}

/* One past the last cluster that is used, now or before, or is in the file; a device has
 * an end of its own. */
static uint64_t
end_of_all (const struct shadow *s)
{
  uint64_t end = !storage_is_regular (s->file) ? 0
    : max64 (s->end_cursor, div_up (storage_size (s->file), s->h->cluster_size));
  uint64_t i, n;

  for (i = 0; i < s->known; i++)
    if (s->blocks[i].now) {
      n = refblock_end (s->blocks[i].was ? s->blocks[i].was : s->blocks[i].now,
                        s->h->refcount_order, s->h->cluster_size);
      n = max64 (n, refblock_end (s->blocks[i].now, s->h->refcount_order,
                                  s->h->cluster_size));
      if (n > 0)
        end = max64 (end, (i << s->block_bits) + n);
    }
  return end;
}

/* --- the new structure --- */

static const struct shadow_block *
old_block (const struct shadow *s, uint64_t cluster)
{
  const uint64_t index = cluster >> s->block_bits;

  return index < s->known && s->blocks[index].now ? &s->blocks[index] : NULL;
}

/* Is there a block in memory with counts that the new block INDEX will have? */
static bool
is_needed (const struct width *w, uint64_t index)
{
  const uint64_t step = UINT64_C (1) << min64 (w->block_bits, w->s->block_bits);
  const uint64_t end = (index + 1) << w->block_bits;

  for (uint64_t c = index << w->block_bits; c < end; c += step)
    if (old_block (w->s, c))
      return true;
  return false;
}

/* R5: the refcounts of metadata past the end of everything would be wrong. */
static int
check_place (struct shadow *s, const struct shadow_place *p)
{
  const unsigned bits = s->h->cluster_bits;
  const uint64_t at = p->first << bits, bytes = (p->table_clusters + p->blocks) << bits;
  const uint64_t clear = overlap_clear (s->image->overlap, at, bytes);

  return clear == bytes ? 0
    : shadow_corrupt (s, "the %s at %" PRIu64 " is in use but its reference count is 0",
                      overlap_name (overlap_find (s->image->overlap, at + clear, 1)),
                      at + clear);
}

static int
lay_out (const struct width *w, struct shadow_place *p)
{
  struct shadow *const s = w->s;
  struct reflayout l = {
    .cluster_bits = s->h->cluster_bits, .block_bits = w->block_bits,
    .first = end_of_all (s), .n = 1, .min_table = 1,
  };
  struct reflayout_size size;

  /* The blocks that will count the new structure may not change what is needed below. */
  if (shadow_load (s, l.first >> s->block_bits) == -1)
    return -1;
  for (uint64_t i = 0; i < l.first >> w->block_bits; i++)
    l.blocks += is_needed (w, i);
  if (reflayout_find (&l, &size) == -1) {
    report_error ("%s: there are more clusters than refcounts of %u bits can count",
                  storage_path (s->file), 1u << w->order);
    return -1;
  }
  *p = (struct shadow_place) { l.first, size.table, size.blocks };
  return check_place (s, p);
}

/* The new block INDEX, to w->block. */
static int
fill (const struct width *w, uint64_t index)
{
  const struct shadow *const s = w->s;
  const uint64_t first = index << w->block_bits;
  const uint64_t within = (UINT64_C (1) << s->block_bits) - 1;
  const struct shadow_block *b;
  uint64_t count;

  memset (w->block, 0, s->h->cluster_size);
  for (uint64_t i = 0; i < UINT64_C (1) << w->block_bits; i++) {
    b = old_block (s, first + i);
    if (b == NULL)
      continue;
    count = refblock_get (b->now, s->h->refcount_order, (first + i) & within);
    if (count > w->max_count)
      return report_refusal (EOVERFLOW, "%s: the cluster at offset %" PRIu64 " has %"
                             PRIu64 " references, too many for refcounts of %u bit%s",
                             storage_path (s->file), (first + i) << s->h->cluster_bits,
                             count, 1u << w->order, w->order ? "s" : "");
    refblock_set (w->block, w->order, i, count);
  }
  return 0;
}

static int
write_all (const struct width *w, const struct shadow_place *p)
{
  const struct shadow *const s = w->s;
  const uint64_t cs = s->h->cluster_size;
  const uint64_t last = (p->first + p->table_clusters + p->blocks) >> w->block_bits;
  CLEANUP_FREE struct be64 *table = calloc (p->table_clusters, cs);
  uint64_t at = (p->first + p->table_clusters) << s->h->cluster_bits;
  uint64_t i, n = 0;

  if (table == NULL) {
    report_error ("%s: refcount table: %m", storage_path (s->file));
    return -1;
  }
  for (i = 0; i <= last && n < p->blocks; i++) {
    /* (All from that of the structure on.) */
    if (i < p->first >> w->block_bits && !is_needed (w, i))
      continue;
    if (fill (w, i) == -1 || storage_write (s->file, w->block, cs, at + n * cs) == -1)
      return -1;
    table[i] = put64 (at + n * cs);
    n++;
  }
  return storage_write (s->file, table, p->table_clusters * cs,
                        p->first << s->h->cluster_bits);
}

int
shadow_write_width (struct shadow *s, unsigned order, struct shadow_place *p)
{
  struct width w = {
    .s = s, .order = order, .block_bits = refblock_bits (s->h->cluster_bits, order),
    .max_count = refblock_max (order),
  };
  CLEANUP_FREE unsigned char *block = w.block = malloc (s->h->cluster_size);

  if (block == NULL) {
    report_error ("%s: refcounts: %m", storage_path (s->file));
    return -1;
  }
  if (drop_old (s) == -1 || lay_out (&w, p) == -1 ||
      shadow_claim (s, p->first, p->table_clusters + p->blocks) == -1)
    return -1;
  return write_all (&w, p);
}
