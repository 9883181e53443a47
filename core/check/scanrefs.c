/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do the stored refcounts agree with the references that were counted?
 *
 * Specification: "Host cluster management".
 *
 * A refcount that is too high is a leak: it wastes space and is harmless.  A refcount
 * that is too low is a corruption: the cluster could be allocated a second time.
 * Adjacent clusters with the same fault are reported as one finding.  A cluster that has
 * two uses (R5) was already reported, so a low refcount of it is not.  Refcounts of
 * clusters past the end of the file are not checked, because these clusters use no space.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <inttypes.h>

#include "space/refblock.h"
#include "check/parallel.h"
#include "check/scan-impl.h"

/* Reads refcount block INDEX, and sets [*FROM, *TO) to those of its refcounts that belong
 * to the window.  Returns 1; 0 if there is no such block; -1 on error (reported). */
static int
read_block (struct scan *s, uint64_t index, void *buffer,
            uint64_t *from, uint64_t *to)
{
  const uint64_t start = index << s->block_bits;
  const uint64_t offset = walk_refblock (s->walk, index);

  *from = max64 (start, s->window->first) - start;
  *to = min64 (start + (UINT64_C (1) << s->block_bits),
               s->window->first + s->window->n) - start;
  if (offset == 0)
    return 0;
  return storage_read (s->file, buffer, s->h->cluster_size, offset) == -1 ? -1
    : 1;
}

static uint64_t
first_block (const struct scan *s)
{
  return s->window->first >> s->block_bits;
}

static int
each_block (struct scan *s,
            int (*work) (void *opaque, void *buffer, uint64_t from, uint64_t to))
{
  const uint64_t n =
    ((s->window->first + s->window->n - 1) >> s->block_bits) + 1 - first_block (s);

  pace_part (s->pace, n << s->h->cluster_bits);
  return parallel_run (storage_path (s->file), n,
                       max64 (1, SCAN_BUFFER >> s->h->cluster_bits),
                       s->h->cluster_size, work, s, s->pace);
}

/* --- before references are counted --- */

static int
load_blocks (void *opaque, void *buffer, uint64_t from, uint64_t to)
{
  struct scan *s = opaque;
  const unsigned order = s->h->refcount_order;
  uint64_t b, i, lo, hi;
  int r;

  for (b = first_block (s) + from; b < first_block (s) + to; b++) {
    r = read_block (s, b, buffer, &lo, &hi);
    if (r == -1)
      return -1;
    if (r == 0)
      continue;
    for (i = lo; i < hi; i++)
      if (refblock_get (buffer, order, i) == 1)
        refwindow_mark (s->window, (b << s->block_bits) + i);
  }
  return 0;
}

int
scan_load_refcounts (struct scan *s)
{
  return each_block (s, load_blocks);
}

void
scan_reftable (struct scan *s)
{
  uint64_t n, i, entry, offset, at;
  const struct be64 *reftable = walk_reftable (s->walk, &n);

  for (i = 0; i < n; i++) {
    entry = get64 (reftable[i]);
    offset = entry & QCOW2_REFTABLE_OFFSET_MASK;
    at = s->h->reftable_offset + i * sizeof *reftable;
    if (entry != offset)
      findings_add (s->findings, FINDING_REFTABLE, 1, at,
                    "entry %" PRIu64 " of the refcount table has reserved bits "
                    "set: 0x%" PRIx64, i, entry);
    if (offset != 0 && walk_refblock (s->walk, i) == 0)
      findings_add (s->findings, FINDING_REFTABLE, 1, at,
                    "entry %" PRIu64 " of the refcount table, 0x%" PRIx64
                    ", %s", i, entry, offset & (s->h->cluster_size - 1) ?
                    "is not aligned to a cluster" :
                    "lies beyond the end of the file");
  }
}

/* --- after references were counted --- */

/* Adjacent clusters with the same fault. */
struct same {
  uint64_t from, n, stored;
  uint32_t count;
};

static void
tell (struct scan *s, struct same *same)
{
  const uint64_t offset = same->from << s->h->cluster_bits;
  const bool leak = same->stored > same->count;

  if (same->n == 1)
    findings_add (s->findings, leak ? FINDING_LEAK : FINDING_REFCOUNT, 1, offset,
                  "the cluster at %" PRIu64 " has %" PRIu32 " reference%s, "
                  "but its refcount is %" PRIu64, offset, same->count,
                  same->count == 1 ? "" : "s", same->stored);
  else if (same->n > 1)
    findings_add (s->findings, leak ? FINDING_LEAK : FINDING_REFCOUNT, same->n,
                  offset, "the %" PRIu64 " clusters from %" PRIu64 " on have "
                  "%" PRIu32 " reference%s, but their refcount is %" PRIu64,
                  same->n, offset, same->count, same->count == 1 ? "" : "s",
                  same->stored);
  same->n = 0;
}

static void
compare_one (struct scan *s, uint64_t cluster, uint64_t stored,
             struct same *same, uint64_t *end)
{
  bool shared;
  const uint32_t count = refwindow_count (s->window, cluster, &shared);

  if (stored > 0 || count > 0)
    *end = cluster + 1;
  if (stored == count || (stored < count && shared) ||
      (count == REFWINDOW_MAX && stored >= count)) {
    tell (s, same);
    return;
  }
  if (same->n > 0 && same->from + same->n == cluster &&
      same->stored == stored && same->count == count) {
    same->n++;
    return;
  }
  tell (s, same);
  *same = (struct same) { cluster, 1, stored, count };
}

static int
compare_blocks (void *opaque, void *buffer, uint64_t from, uint64_t to)
{
  struct scan *s = opaque;
  const unsigned order = s->h->refcount_order;
  struct same same = { .n = 0 };
  uint64_t b, i, lo, hi, end = 0, old;
  int r;

  for (b = first_block (s) + from; b < first_block (s) + to; b++) {
    r = read_block (s, b, buffer, &lo, &hi);
    if (r == -1)
      return -1;
    for (i = lo; i < hi; i++)
      compare_one (s, (b << s->block_bits) + i,
                   r ? refblock_get (buffer, order, i) : 0, &same, &end);
  }
  tell (s, &same);
  end <<= s->h->cluster_bits;
  old = atomic_load (&s->end);
  while (end > old && !atomic_compare_exchange_weak (&s->end, &old, end))
    ;
  return 0;
}

int
scan_compare_refcounts (struct scan *s)
{
  return each_block (s, compare_blocks);
}

/* The clusters that a block covers may have no references, only leaks. */
uint64_t
scan_refcounts_next (const struct scan *s)
{
  uint64_t i = div_up (s->window->first + REFWINDOW_CLUSTERS,
                       UINT64_C (1) << s->block_bits);
  uint64_t n;

  walk_reftable (s->walk, &n);
  for (; i < n && i << s->block_bits < s->window->clusters; i++)
    if (walk_refblock (s->walk, i) != 0)
      return round_down (i << s->block_bits, REFWINDOW_CLUSTERS);
  return UINT64_MAX;
}
