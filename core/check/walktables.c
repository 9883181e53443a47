/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters do L1 and L2 tables point to?
 *
 * Part of walk.c.  Specification: "Cluster mapping".
 *
 * The L2 tables of an L1 table are gathered, up to WALK_TABLES of them, and sorted.  Each
 * is walked once for all L1 entries that point to it, because snapshots share most of
 * their L2 tables.  A few threads take a few tables at a time.
 *
 * Locks: none; each table belongs to one thread.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>

#include "format/compress.h"
#include "format/entry.h"
#include "check/parallel.h"
#include "check/walk-impl.h"

/* Bytes of tables that a thread reads at once; at least a cluster. */
#define BUFFER (UINT64_C (1) << 20)

/* --- L2 tables --- */

static int
refer_compressed (struct walk *w, const struct walk_l2 *table, uint64_t entry)
{
  uint64_t first, n;

  if (w->data_file)
    return w->visitor->fault (w->opaque, FINDING_ENTRY, table->times, table->offset,
                              "an L2 table has a compressed cluster, 0x%" PRIx64
                              ", which is not allowed with an external data file", entry);
  if (!compress_clusters (w->h, entry & (QCOW2_OFLAG_COMPRESSED - 1), &first, &n))
    return w->visitor->fault (w->opaque, FINDING_BEYOND, table->times, table->offset,
                              "the compressed cluster 0x%" PRIx64
                              " lies beyond the end of the file", entry);
  return refwindow_add (&w->window, first << w->h->cluster_bits, n << w->h->cluster_bits,
                        ROLE_DATA, table->times, "compressed cluster");
}

int
walk_l2_entry (struct walk *w, const struct walk_l2 *table, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;

  if (entry & QCOW2_OFLAG_COMPRESSED)
    return refer_compressed (w, table, entry);
  if (offset == 0 || w->data_file)
    return 0;
  return refwindow_add (&w->window, offset, w->h->cluster_size, ROLE_DATA, table->times,
                        "data cluster");
}

static int
walk_l2 (struct walk *w, struct walk_l2 *table, const struct be64 *raw)
{
  const unsigned step = entry_words (w->h);
  const uint64_t n = UINT64_C (1) << w->h->l2_bits;
  uint64_t i;

  if (w->visitor->l2)
    return w->visitor->l2 (w->opaque, table, raw);
  for (i = 0; i < n; i++, raw += step)
    if (raw[0].be != 0 && walk_l2_entry (w, table, get64 (raw[0])) == -1)
      return -1;
  return 0;
}

/* Returns how many of the N tables from T on, which are sorted, lie completely in one
 * hole and therefore are empty. */
static uint64_t
in_hole (struct walk *w, const struct walk_l2 *t, uint64_t n)
{
  const uint64_t cs = w->h->cluster_size;
  uint64_t len = t[n - 1].offset + cs - t->offset, i;

  if (!w->sparse || !storage_hole (w->file, t->offset, &len))
    return 0;
  for (i = 0; i < n && t[i].offset - t->offset + cs <= len; i++)
    ;
  return i;
}

static int
walk_some (void *opaque, void *buffer, uint64_t from, uint64_t to)
{
  struct walk *w = opaque;
  const uint64_t cs = w->h->cluster_size;
  const uint64_t most = max64 (1, BUFFER / cs);
  struct walk_l2 *t = w->tables;
  uint64_t i, k, n;

  for (i = from; i < to; i += n) {
    n = in_hole (w, &t[i], to - i);
    if (n > 0)
      continue;
    /* Read adjacent tables at once, and prefetch the next one. */
    for (n = 1; n < most && i + n < to && t[i + n].offset == t[i].offset + n * cs;
         n++)
      ;
    if (!w->sparse && i + n < to)
      storage_prefetch (w->file, t[i + n].offset, cs);
    if (storage_read (w->file, buffer, n * cs, t[i].offset) == -1)
      return -1;
    for (k = 0; k < n; k++)
      if (walk_l2 (w, &t[i + k], (struct be64 *) ((char *) buffer + k * cs)) == -1)
        return -1;
  }
  return 0;
}

static int
compare_tables (const void *a, const void *b)
{
  const struct walk_l2 *x = a, *y = b;

  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  /* The first of equal tables represents all: an active one if possible. */
  if (x->active != y->active)
    return x->active ? -1 : 1;
  return x->l1_index < y->l1_index ? -1 : x->l1_index > y->l1_index;
}

/* Merges equal tables into one.  (Also with an external data file, although the guest
 * offset that a table is for matters there: to share one is a fault anyway.) */
static void
merge_tables (struct walk *w)
{
  uint32_t i, n = 0;

  qsort (w->tables, w->nr_tables, sizeof *w->tables, compare_tables);
  for (i = 0; i < w->nr_tables; i++)
    if (n > 0 && w->tables[n - 1].offset == w->tables[i].offset) {
      w->tables[n - 1].times += w->tables[i].times;
      w->tables[n - 1].active += w->tables[i].active;
    }
    else
      w->tables[n++] = w->tables[i];
  w->nr_tables = n;
}

int
walk_gathered (struct walk *w)
{
  const uint64_t cs = w->h->cluster_size;
  uint32_t i, n = 0;
  int r;

  merge_tables (w);
  for (i = 0; i < w->nr_tables; i++) {
    r = refwindow_add (&w->window, w->tables[i].offset, cs, ROLE_L2, w->tables[i].times,
                       "L2 table");
    if (r == -1)
      return -1;
    if (r == 1)
      w->tables[n++] = w->tables[i];
  }
  w->nr_tables = 0;
  pace_part (w->pace, n * cs);
  if (parallel_run (storage_path (w->file), n, min64 (16, max64 (1, BUFFER / cs)),
                    max64 (BUFFER, cs), walk_some, w, w->pace) == -1)
    return -1;
  return w->visitor->l2_tables ? w->visitor->l2_tables (w->opaque, w->tables, n) : 0;
}

/* --- L1 tables --- */

static int
gather_table (struct walk *w, uint64_t index, uint64_t entry, const void *opaque)
{
  const struct walk_l1 *l1 = opaque;
  const uint64_t offset = entry & QCOW2_L1_OFFSET_MASK;

  if (w->visitor->l1_entry)
    w->visitor->l1_entry (w->opaque, l1, index, entry);
  if (offset == 0)
    return 0;
  w->tables[w->nr_tables++] = (struct walk_l2) {
    .offset = offset, .l1_index = index, .times = 1, .active = l1->active,
  };
  return w->nr_tables == WALK_TABLES ? walk_gathered (w) : 0;
}

int
walk_gather (struct walk *w, const struct walk_l1 *l1)
{
  return walk_entries (w, l1->offset, l1->entries, gather_table, l1);
}
