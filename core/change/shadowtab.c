/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do L1 and L2 tables point to, and where are changed tables written?
 *
 * Part of shadow.c.  Each table is read once, in the order of the L1 entries, and the
 * next ones are prefetched.  L2 tables that have to change are gathered and written
 * together.
 *
 * An entry may point anywhere.  If it pointed to other metadata, as a table or as data,
 * we would change refcounts that do not belong to it (R5), so such entries are refused.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "format/compress.h"
#include "format/entry.h"
#include "change/shadow-impl.h"

struct be64 *
shadow_read_l1 (struct shadow *s, uint64_t host, uint64_t old, uint64_t n)
{
  struct be64 *l1 = calloc (n, sizeof *l1);

  if (l1 == NULL) {
    report_error ("%s: L1 table of %" PRIu64 " entries: %m",
                  storage_path (s->file), n);
    return NULL;
  }
  if (storage_read (s->file, l1, min64 (old, n) * sizeof *l1, host) == -1) {
    free (l1);
    return NULL;
  }
  return l1;
}

#define EXPECTED 64

void
shadow_expect (struct shadow *s, const struct be64 *l1, uint64_t first,
               uint64_t n)
{
  uint64_t i, offset;

  if (first % EXPECTED != 0)
    return;
  for (i = first; i < min64 (n, first + EXPECTED); i++) {
    offset = get64 (l1[i]) & QCOW2_L1_OFFSET_MASK;
    if (offset != 0 && offset < s->file_size)
      storage_prefetch (s->file, offset, s->h->cluster_size);
  }
}

int
shadow_read_l2 (struct shadow *s, uint64_t l1_entry, struct be64 *l2)
{
  const uint64_t offset = l1_entry & QCOW2_L1_OFFSET_MASK;
  const uint64_t cs = s->h->cluster_size;
  int kind;

  if ((offset & (cs - 1)) != 0 || offset >= s->file_size)
    return shadow_corrupt (s, "an L1 table names an L2 table at %" PRIu64, offset);
  kind = overlap_add (s->image->overlap, offset, cs, OVERLAP_L2);
  if (kind == -1)
    return -1;
  if (kind > 0 && kind != OVERLAP_INACTIVE_L2)
    return shadow_corrupt (s, "the L2 table at %" PRIu64 " overlaps the %s",
                           offset, overlap_name (kind));
  return storage_read (s->file, l2, cs, offset);
}

/* Finds the N clusters from FIRST on that an L2 entry points to; *N is 0 if none. */
static int
named_by (struct shadow *s, uint64_t entry, uint64_t *first, uint64_t *n)
{
  const struct header *h = s->h;
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;

  *n = 0;
  if (entry & QCOW2_OFLAG_COMPRESSED) {
    if (!compress_clusters (h, entry & (QCOW2_OFLAG_COMPRESSED - 1), first, n))
      return shadow_corrupt (s, "the compressed cluster 0x%" PRIx64
                             " lies beyond all limits", entry);
  }
  else if (offset != 0) {
    if (offset & (h->cluster_size - 1))
      return shadow_corrupt (s, "the data cluster at %" PRIu64 " is not aligned",
                             offset);
    *first = offset >> h->cluster_bits;
    *n = 1;
  }
  return 0;
}

/* Clusters that adjacent entries point to. */
struct clusters { uint64_t first, n; };

static int
refer_clusters (struct shadow *s, const struct clusters *c,
                int (*fn) (struct shadow *, uint64_t first, uint64_t n))
{
  const unsigned bits = s->h->cluster_bits;
  const uint64_t bytes = c->n << bits;
  const uint64_t clear = overlap_clear (s->image->overlap, c->first << bits, bytes);
  const uint64_t host = (c->first << bits) + clear;

  if (clear == bytes)
    return fn (s, c->first, c->n);
  return shadow_corrupt (s, "the data cluster at %" PRIu64 " overlaps the %s", host,
                         overlap_name (overlap_find (s->image->overlap, host, 1)));
}

static int
refer_l2 (struct shadow *s, const struct be64 *l2, uint64_t from, uint64_t to,
          int (*fn) (struct shadow *, uint64_t first, uint64_t n))
{
  const unsigned step = entry_words (s->h);
  struct clusters c = { 0, 0 };
  uint64_t i, first, n;

  if (entry_is_external (s->h))
    return 0;                   /* clusters of a data file have no refcounts */
  for (i = from; i < to; i++) {
    if (l2[i * step].be == 0)
      continue;
    if (named_by (s, get64 (l2[i * step]), &first, &n) == -1)
      return -1;
    if (n > 0 && first == c.first + c.n)
      c.n += n;
    else if (n > 0) {
      if (refer_clusters (s, &c, fn) == -1)
        return -1;
      c = (struct clusters) { first, n };
    }
  }
  return refer_clusters (s, &c, fn);
}

int
shadow_add_l2 (struct shadow *s, const struct be64 *l2, uint64_t from,
               uint64_t to)
{
  return refer_l2 (s, l2, from, to, shadow_add);
}

int
shadow_drop_l2 (struct shadow *s, const struct be64 *l2, uint64_t from,
                uint64_t to)
{
  return refer_l2 (s, l2, from, to, shadow_drop);
}

/* Ahead: how many references will be left of those that are counted now? */
static int
count_left (struct shadow *s, uint64_t cluster, uint64_t *count)
{
  const uint64_t index = cluster >> s->block_bits;
  const unsigned order = s->h->refcount_order;

  if (!s->ahead)
    return shadow_count (s, cluster, count);
  if (refcount_get (s->w->refcounts, cluster, count) == -1)
    return -1;
  if (index < s->known && s->blocks[index].now)
    *count -= refcount_max (s->w->refcounts) -
      refblock_get (s->blocks[index].now, order, shadow_within (s, cluster));
  return 0;
}

int
shadow_correct_l2 (struct shadow *s, struct be64 *l2, uint64_t bytes, bool as_counted)
{
  const unsigned step = entry_words (s->h);
  const uint64_t n = bytes / sizeof *l2;
  uint64_t i, entry, correct, offset, count;
  bool changed = false;

  for (i = 0; i < n; i += step) {
    if (l2[i].be == 0)
      continue;
    entry = get64 (l2[i]);
    correct = entry & ~QCOW2_OFLAG_COPIED;
    offset = entry & QCOW2_L2_OFFSET_MASK;
    if (as_counted && offset != 0 && !(entry & QCOW2_OFLAG_COMPRESSED)) {
      if (count_left (s, offset >> s->h->cluster_bits, &count) == -1)
        return -1;
      if (count == 1)
        correct |= QCOW2_OFLAG_COPIED;
    }
    changed |= correct != entry;
    l2[i] = put64 (correct);
  }
  return changed;
}

/* --- new tables --- */

/* A place for N tables; ahead, for *N tables or fewer. */
static int
find_place (struct shadow *s, uint64_t *n, uint64_t *host)
{
  struct alloc_run run;

  if (!s->ahead)
    return shadow_take (s, *n, false, host);
  if (alloc_set_aside (s->w->alloc, *n, &run) == -1)
    return -1;
  *n = run.clusters;
  *host = run.host;
  return 0;
}

int
shadow_write_l2 (struct shadow *s)
{
  const unsigned bits = s->h->cluster_bits;
  uint64_t host, done, n, i;

  for (done = 0; done < s->batch_n; done += n) {
    n = s->batch_n - done;
    if (find_place (s, &n, &host) == -1 ||
        storage_write (s->file, s->batch + (done << bits), n << bits, host) == -1)
      return -1;
    for (i = 0; i < n; i++)
      *s->batch_entries[done + i] = put64 (host + (i << bits));
  }
  s->batch_n = 0;
  return 0;
}

int
shadow_replace_l2 (struct shadow *s, const struct be64 *l2,
                   struct be64 *l1_entry)
{
  if (s->batch_n == s->batch_max && shadow_write_l2 (s) == -1)
    return -1;
  memcpy (s->batch + (s->batch_n << s->h->cluster_bits), l2,
          s->h->cluster_size);
  s->batch_entries[s->batch_n++] = l1_entry;
  return 0;
}

int
shadow_write_l1 (struct shadow *s, struct be64 *l1, uint64_t n,
                 uint64_t *host)
{
  uint64_t i, offset, count;

  if (shadow_write_l2 (s) == -1)
    return -1;
  for (i = 0; i < n; i++) {
    offset = get64 (l1[i]) & QCOW2_L1_OFFSET_MASK;
    if (offset == 0) {
      l1[i] = put64 (0);
      continue;
    }
    if (shadow_count (s, offset >> s->h->cluster_bits, &count) == -1)
      return -1;
    l1[i] = put64 (offset | (count == 1 ? QCOW2_OFLAG_COPIED : 0));
  }
  return shadow_write (s, l1, n * sizeof *l1, host);
}

int
shadow_take_zeros (struct shadow *s, uint64_t n, uint64_t *host)
{
  const bool regular = storage_is_regular (s->file);
  const uint64_t bytes = n << s->h->cluster_bits;

  if (shadow_take (s, n, regular, host) == -1)
    return -1;
  if (!regular)
    return storage_write_zeros (s->file, *host, bytes);
  return storage_size (s->file) >= *host + bytes ? 0
    : storage_truncate (s->file, *host + bytes);
}

int
shadow_write (struct shadow *s, const void *data, uint64_t bytes,
              uint64_t *host)
{
  const uint64_t n = div_up (bytes, s->h->cluster_size);

  if (shadow_take (s, n, false, host) == -1 ||
      storage_write (s->file, data, bytes, *host) == -1)
    return -1;
  /* Fill up the last cluster with zeros, so that no old bytes follow a table. */
  return storage_write_zeros (s->file, *host + bytes, (n << s->h->cluster_bits) - bytes);
}
