/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does all metadata of an image change in one step?
 *
 * Creating, applying and deleting snapshots, and resizing, change refcounts, COPIED flags
 * and tables all over the image.  No order of changes in place would be safe: a COPIED
 * flag and the refcount that it depends on (R7) lie in different sectors.  So no cluster
 * that is in use changes in place.  Everything that changes is written to free clusters:
 *
 *   L2 tables with other flags or entries, the active L1 table, the snapshot table,
 *   refcount blocks with other counts, the refcount table
 *
 * and made durable.  Then one write within a sector of the header switches to all of it
 * at once (headerwrite.c): fields from the size of the disk to the autoclear features;
 * and, if bitmaps change too, the extension that points to their directory.  Before that
 * write the old image is complete, including its refcounts, in which the new places are
 * free.  After it the new image is complete, and in its refcounts the old places are
 * free.  So a crash leaves either the old or the new image, without leaks (R1, R2, R6).
 * When the switch is durable, and no request uses the old image any more, holes are
 * punched and the file is truncated (shadow_release); by the allocator, if clients go on
 * to write meanwhile.
 *
 * This costs little: refcount blocks and tables are small, the clusters that they leave
 * are free afterwards, and the next such change reuses them.
 *
 * This part keeps the refcount blocks that matter in memory, in their old and their new
 * state, and finds clusters that are free in both.  shadowtab.c handles L1 and L2 tables,
 * shadowend.c the switch, shadowwidth.c refcounts of another width.
 *
 * References can be dropped before anything else, while the image changes.  Then it is
 * only counted how many, down from the highest count; when the image is at rest, as many
 * are dropped from the counts in the file (shadow_begin).  So tables can be written
 * ahead, as they will be then, to clusters that the allocator sets aside.
 *
 * New refcounts are computed only as differences from the old ones: clusters that other
 * programs use for data that we do not know about keep their refcounts.
 *
 * Locks: none; one thread.  The caller holds the writer's lock on the file.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "change/shadow-impl.h"

/* A hostile image could make us read a refcount block of 2 MiB for each of its clusters.
 * This limit is enough for 16 TiB in clusters of 64K with refcounts of 16 bits. */
#define MAX_MEMORY (UINT64_C (1) << 30)
/* Clusters; more than a change of bitmaps usually needs. */
#define NEAR 256

int
shadow_corrupt (struct shadow *s, const char *fmt, ...)
{
  char text[200];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  return report_refusal (EUCLEAN, "%s: the image is corrupt and was not changed "
                         "(qemu-img check -r all may repair it): %s",
                         storage_path (s->file), text);
}

struct shadow *
shadow_new_ahead (const struct image *image, bool discard, const struct writable *w)
{
  const struct header *h = &image->header;
  struct shadow *s = calloc (1, sizeof *s);

  if (s) {
    s->image = image;
    s->discard = discard;
    s->h = h;
    s->file = image->file;
    s->ahead = true;
    s->w = w;
    s->file_size = storage_size (s->file);
    s->block_bits = refblock_bits (h->cluster_bits, h->refcount_order);
    s->blocks = sparse_new (SHADOW_MAX_BLOCKS * sizeof *s->blocks);
    s->batch_max = max64 (1, SHADOW_BATCH >> h->cluster_bits);
    s->batch = malloc (s->batch_max << h->cluster_bits);
    s->batch_entries = calloc (s->batch_max, sizeof *s->batch_entries);
  }
  if (s && s->blocks && s->batch && s->batch_entries)
    return s;
  report_error ("%s: out of memory: %m", storage_path (image->file));
  shadow_free (s);
  return NULL;
}

struct shadow *
shadow_new (const struct image *image, bool discard)
{
  struct shadow *s = shadow_new_ahead (image, discard, NULL);

  if (s == NULL || shadow_begin (s) == 0)
    return s;
  shadow_free (s);
  return NULL;
}

void
shadow_free (struct shadow *s)
{
  KEEP_ERRNO_FOR_BLOCK;
  uint64_t i;

  if (s == NULL)
    return;
  /* The header does not point to what was written. */
  if (!s->ahead && !s->switching && storage_is_regular (s->file) &&
      storage_size (s->file) > s->file_size)
    storage_truncate (s->file, s->file_size);
  for (i = 0; i < s->known; i++) {
    free (s->blocks[i].now);
    free (s->blocks[i].was);
  }
  sparse_free (s->blocks, SHADOW_MAX_BLOCKS * sizeof *s->blocks);
  free (s->table);
  free (s->batch);
  free (s->batch_entries);
  free (s);
}

/* --- blocks --- */

uint64_t
shadow_old_place (const struct shadow *s, uint64_t index)
{
  return index < s->table_entries
    ? get64 (s->table[index]) & QCOW2_REFTABLE_OFFSET_MASK : 0;
}

static unsigned char *
new_block (struct shadow *s)
{
  unsigned char *b;

  s->memory += s->h->cluster_size;
  if (s->memory > MAX_MEMORY) {
    report_error ("%s: the image has more refcounts than fit into %" PRIu64
                  " bytes of memory", storage_path (s->file), MAX_MEMORY);
    errno = ENOMEM;
    return NULL;
  }
  b = malloc (s->h->cluster_size);
  if (b == NULL)
    report_error ("%s: refcounts: %m", storage_path (s->file));
  return b;
}

/* Reads a block of the file to B.  Ahead, all counts are the highest. */
static int
read_block (struct shadow *s, uint64_t index, unsigned char *b)
{
  const uint64_t cs = s->h->cluster_size, offset = shadow_old_place (s, index);

  if ((offset & (cs - 1)) != 0 || offset >= s->file_size)
    return shadow_corrupt (s, "the refcount table at %" PRIu64 " names a block at "
                           "%" PRIu64, s->h->reftable_offset, offset);
  if (offset != 0)
    return storage_read (s->file, b, cs, offset);
  memset (b, s->ahead ? 0xff : 0, cs);
  return 0;
}

int
shadow_load (struct shadow *s, uint64_t index)
{
  unsigned char *b;

  if (index >= SHADOW_MAX_BLOCKS)
    return report_refusal (ENOSPC, "%s: the file would be larger than a refcount table "
                           "can describe", storage_path (s->file));
  if (s->blocks[index].now)
    return 0;
  b = new_block (s);
  if (b == NULL)
    return -1;
  if (read_block (s, index, b) == -1) {
    free (b);
    return -1;
  }
  s->blocks[index].now = b;
  s->known = max64 (s->known, index + 1);
  return 0;
}

int
shadow_touch (struct shadow *s, uint64_t index)
{
  struct shadow_block *b;

  if (shadow_load (s, index) == -1)
    return -1;
  b = &s->blocks[index];
  if (b->was || s->ahead)
    return 0;
  b->was = new_block (s);
  if (b->was == NULL)
    return -1;
  memcpy (b->was, b->now, s->h->cluster_size);
  s->changed++;
  return 0;
}

/* --- counts --- */

static int
set_count (struct shadow *s, uint64_t cluster, uint64_t count)
{
  const uint64_t index = cluster >> s->block_bits;

  if (shadow_touch (s, index) == -1)
    return -1;
  refblock_set (s->blocks[index].now, s->h->refcount_order,
                shadow_within (s, cluster), count);
  return 0;
}

static int
unused (struct shadow *s, uint64_t cluster)
{
  return shadow_corrupt (s, "the cluster at %" PRIu64 " is in use but its "
                         "reference count is 0", cluster << s->h->cluster_bits);
}

static int
too_many_references (struct shadow *s, uint64_t cluster)
{
  return report_refusal (EOVERFLOW, "%s: the cluster at offset %" PRIu64 " cannot have "
                         "more references: the refcounts of the image have %u bit%s",
                         storage_path (s->file), cluster << s->h->cluster_bits,
                         1u << s->h->refcount_order, s->h->refcount_order ? "s" : "");
}

/* Changes the refcounts of clusters in use by BY, +1 or -1. */
static int
refer (struct shadow *s, uint64_t first, uint64_t n, int by)
{
  const uint64_t end = first + n, per_block = UINT64_C (1) << s->block_bits;
  uint64_t index, from, to, i;
  unsigned char *b;

  for (; first < end; first += to - from) {
    index = first >> s->block_bits;
    from = shadow_within (s, first);
    to = min64 (per_block, from + (end - first));
    if (shadow_touch (s, index) == -1)
      return -1;
    b = s->blocks[index].now;
    i = refblock_refer (b, s->h->refcount_order, from, to, by);
    if (i < to && refblock_get (b, s->h->refcount_order, i) == 0)
      return unused (s, first + (i - from));
    if (i < to)
      return too_many_references (s, first + (i - from));
  }
  return 0;
}

int
shadow_add (struct shadow *s, uint64_t first, uint64_t n)
{
  return refer (s, first, n, 1);
}

int
shadow_drop (struct shadow *s, uint64_t first, uint64_t n)
{
  return refer (s, first, n, -1);
}

int
shadow_drop_range (struct shadow *s, uint64_t host, uint64_t bytes)
{
  return refer (s, host >> s->h->cluster_bits,
                div_up (bytes, s->h->cluster_size), -1);
}

int
shadow_claim (struct shadow *s, uint64_t first, uint64_t n)
{
  uint64_t c;

  for (c = first; c < first + n; c++)
    if (set_count (s, c, 1) == -1)
      return -1;
  return 0;
}

/* --- the beginning --- */

/* Drops from a block of the file what was dropped ahead. */
static int
catch_up (struct shadow *s, uint64_t index)
{
  struct shadow_block *const b = &s->blocks[index];
  const uint64_t end = UINT64_C (1) << s->block_bits;
  uint64_t i;

  b->was = new_block (s);
  if (b->was == NULL || read_block (s, index, b->was) == -1)
    return -1;
  s->changed++;
  i = refblock_drop_as (b->now, b->was, s->h->refcount_order, end);
  return i == end ? 0 : unused (s, (index << s->block_bits) + i);
}

int
shadow_begin (struct shadow *s)
{
  const uint64_t bytes = s->h->reftable_clusters * s->h->cluster_size;
  uint64_t count;

  s->ahead = false;
  s->w = NULL;
  s->batch_n = 0;
  s->file_size = storage_size (s->file);
  s->end_cursor = div_up (s->file_size, s->h->cluster_size);
  s->table_entries = bytes / sizeof *s->table;
  s->table = memory_get (bytes);
  if (s->table == NULL ||
      storage_read (s->file, s->table, bytes, s->h->reftable_offset) == -1)
    return -1;
  for (uint64_t i = 0; i < s->known; i++)
    if (s->blocks[i].now && catch_up (s, i) == -1)
      return -1;
  /* The header's cluster is always in use.  If its refcount is 0, no refcount is
   * reliable. */
  if (shadow_count (s, 0, &count) == -1)
    return -1;
  return count > 0 ? 0
    : shadow_corrupt (s, "the header's cluster at 0 is in use but its reference "
                      "count is 0");
}

/* --- free clusters --- */

/* Is the cluster free before and after the change, and not known to be metadata (R5)? */
static bool
is_free (const struct shadow *s, uint64_t cluster)
{
  const struct shadow_block *b = &s->blocks[cluster >> s->block_bits];
  const uint64_t i = shadow_within (s, cluster);
  const unsigned order = s->h->refcount_order;

  return (b->now == NULL || refblock_get (b->now, order, i) == 0) &&
    (b->was == NULL || refblock_get (b->was, order, i) == 0) &&
    overlap_find (s->image->overlap, cluster << s->h->cluster_bits, 1) ==
    OVERLAP_NONE;
}

/* Does the file have a block with this index, or will it have one? */
static bool
is_counted (const struct shadow *s, uint64_t index)
{
  return s->blocks[index].now != NULL ||
    (index < s->table_entries && s->table[index].be != 0);
}

uint64_t
shadow_end (struct shadow *s, bool before)
{
  const struct shadow_block *b;
  uint64_t i, n;

  for (i = max64 (s->known, s->table_entries); i-- > 0; ) {
    if (s->blocks[i].now == NULL && shadow_old_place (s, i) == 0)
      continue;
    if (shadow_load (s, i) == -1)
      return UINT64_MAX;
    b = &s->blocks[i];
    n = refblock_end (before && b->was ? b->was : b->now, s->h->refcount_order,
                      s->h->cluster_size);
    if (n > 0)
      return (i << s->block_bits) + n;
  }
  return UINT64_MAX;
}

void
shadow_stay_near (struct shadow *s, uint64_t host)
{
  uint64_t end, cluster;

  if (!storage_is_regular (s->file))
    return;
  end = shadow_end (s, false);
  cluster = end == UINT64_MAX ? 0 : min64 (host >> s->h->cluster_bits, end);
  s->cursor = cluster - min64 (cluster, NEAR);
}

int
shadow_take_written (struct shadow *s, uint64_t host)
{
  const uint64_t cluster = host >> s->h->cluster_bits;

  if (shadow_load (s, cluster >> s->block_bits) == -1)
    return -1;
  if (host + s->h->cluster_size > s->file_size || !is_free (s, cluster))
    return 0;
  return shadow_claim (s, cluster, 1) == -1 ? -1 : 1;
}

int
shadow_find (struct shadow *s, uint64_t n, uint64_t from, uint64_t *first)
{
  const uint64_t per_block = UINT64_C (1) << s->block_bits;
  uint64_t c = from, run = 0, index, skip;

  while (run < n) {
    index = c >> s->block_bits;
    if (index >= SHADOW_MAX_BLOCKS || is_counted (s, index)) {
      if (shadow_load (s, index) == -1)
        return -1;
      if (run == 0) {
        skip = refblock_find_zero (s->blocks[index].now, s->h->refcount_order,
                                   shadow_within (s, c), per_block);
        c = (index << s->block_bits) + skip;
        if (skip == per_block)
          continue;
      }
    }
    run = is_free (s, c) ? run + 1 : 0;
    c++;
  }
  *first = c - n;
  return 0;
}

int
shadow_take (struct shadow *s, uint64_t n, bool at_end, uint64_t *host)
{
  uint64_t *const cursor = at_end ? &s->end_cursor : &s->cursor;
  uint64_t first;

  if (shadow_find (s, n, *cursor, &first) == -1 ||
      shadow_claim (s, first, n) == -1)
    return -1;
  *cursor = first + n;
  *host = first << s->h->cluster_bits;
  return 0;
}
