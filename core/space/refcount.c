/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does a host cluster have?
 *
 * Specification: "Host cluster management".
 *
 *    header ---> refcount table ---> refcount block ---> counts of
 *                (contiguous)        (one cluster)       2^block_bits clusters
 *
 * The whole table is in memory (8 MiB at most); blocks are cached as they are in the file
 * (refblock.c).  Counts change in memory only: refgrow.c makes more clusters countable,
 * and refwrite.c writes the changes to the file.  The callers
 * see to it that no count is ever too low (the life of a cluster, alloc.h), so a block
 * may be written at any time.
 *
 * The contents of the file are not trusted: before a block is read, its table entry is
 * checked for alignment, for the end of the file, for two entries that name the same
 * block, and for other metadata in its place (R5).
 *
 * Locks: one, see refcount-impl.h.  It may be taken with the allocator's lock held;
 * overlap's lock is taken inside it.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "space/refcount-impl.h"

/* Clean blocks to keep: 2 MiB of them, but no fewer than this.  (Large blocks contain
 * mostly zeros, which take no memory.) */
#define MIN_CLEAN 4
#define CLEAN_BYTES (UINT64_C (2) << 20)

static int
corrupt (void)
{
  errno = EUCLEAN;
  return -1;
}

static int
compare_u64 (const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* If two entries named the same block, a change of counts in one range of clusters would
 * also appear in the other: such an image must not be written. */
static int
check_distinct (struct refcounts *r)
{
  CLEANUP_FREE uint64_t *sorted = NULL;
  uint64_t n = 0;

  for (uint64_t i = 0; i < r->entries; i++)
    n += r->table[i] != 0;
  sorted = memory_get (n * sizeof *sorted + 1);
  if (sorted == NULL)
    return -1;
  n = 0;
  for (uint64_t i = 0; i < r->entries; i++)
    if (r->table[i] != 0)
      sorted[n++] = r->table[i];
  qsort (sorted, n, sizeof *sorted, compare_u64);
  for (uint64_t i = 1; i < n; i++)
    if (sorted[i] == sorted[i-1]) {
      report_error ("%s: corrupt refcount table at %" PRIu64 ": two entries name "
                    "the refcount block at %" PRIu64,
                    storage_path (r->file), r->header->reftable_offset,
                    sorted[i]);
      return corrupt ();
    }
  return 0;
}

static int
read_table (struct refcounts *r)
{
  const uint64_t cs = r->header->cluster_size;
  const uint64_t bytes = r->header->reftable_clusters * cs;
  int kind;

  /* (header.c refuses others.) */
  assert (bytes > 0 && bytes <= QCOW2_MAX_REFTABLE_BYTES);
  r->entries = r->room = bytes / sizeof *r->table;
  r->table = sparse_new (bytes);
  if (r->table == NULL) {
    report_error ("refcount table of %" PRIu64 " bytes: %m", bytes);
    return -1;
  }
  if (storage_read_sparse (r->file, r->table, bytes, r->header->reftable_offset) == -1)
    return -1;
  for (uint64_t i = 0; i < r->entries; i++)
    if (r->table[i] != 0)
      r->table[i] = get64 ((struct be64) { r->table[i] });
  if (check_distinct (r) == -1)
    return -1;

  kind = overlap_add (r->overlap, r->header->reftable_offset, bytes,
                      OVERLAP_REFTABLE);
  if (kind > 0) {
    report_error ("%s: corrupt: the refcount table at %" PRIu64
                  " overlaps the %s", storage_path (r->file),
                  r->header->reftable_offset, overlap_name (kind));
    return corrupt ();
  }
  if (kind == -1)
    return -1;
  /* Blocks in the wrong place are detected when they are loaded. */
  for (uint64_t i = 0; i < r->entries; i++)
    if (r->table[i] != 0 && (r->table[i] & (cs - 1)) == 0 &&
        range_within (r->table[i], cs, QCOW2_MAX_HOST_OFFSET) &&
        overlap_add (r->overlap, r->table[i], cs, OVERLAP_REFBLOCK) == -1)
      return -1;
  return 0;
}

static void
free_refcounts (struct refcounts *r)
{
  refblock_cache_free (&r->cache);
  sparse_free (r->table, r->room * sizeof *r->table);
  pthread_mutex_destroy (&r->lock);
  free (r);
}

struct refcounts *
refcount_open (struct storage *file, struct header *header,
               struct overlap *overlap)
{
  struct refcounts *r = memory_new (1, sizeof *r);

  if (r == NULL)
    return NULL;
  pthread_mutex_init (&r->lock, NULL);
  r->file = file;
  r->header = header;
  r->overlap = overlap;
  r->cluster_bits = header->cluster_bits;
  r->order = header->refcount_order;
  r->block_bits = refblock_bits (header->cluster_bits, header->refcount_order);
  r->max = refblock_max (r->order);
  refblock_cache_init (&r->cache, header->cluster_size,
                       max64 (MIN_CLEAN, CLEAN_BYTES >> r->cluster_bits));
  if (read_table (r) == -1)
    goto error;
  if (refblock_cache_grow (&r->cache, r->entries) == -1) {
    report_error ("refcount table of %" PRIu64 " entries: %m", r->entries);
    goto error;
  }
  return r;

 error: {
    KEEP_ERRNO_FOR_BLOCK;

    free_refcounts (r);
    return NULL;
  }
}

void
refcount_close (struct refcounts *r)
{
  if (r == NULL)
    return;
  free_refcounts (r);
}

uint64_t
refcount_max (const struct refcounts *r)
{
  return r->max;
}

uint64_t
refcount_block_clusters (const struct refcounts *r)
{
  return UINT64_C (1) << r->block_bits;
}

/* Can a block be at the offset in entry INDEX? */
static int
check_entry (struct refcounts *r, uint64_t index)
{
  const uint64_t cs = UINT64_C (1) << r->cluster_bits;
  const uint64_t offset = r->table[index];
  const char *why, *what = "";
  enum overlap_kind kind;

  if ((offset & (cs - 1)) != 0)
    why = "not aligned to a cluster, or reserved bits set";
  else if (!range_within (offset, cs, QCOW2_MAX_HOST_OFFSET) ||
           offset >= storage_size (r->file))
    why = "beyond the end of the file";
  else if ((kind = overlap_find (r->overlap, offset, cs)) != OVERLAP_REFBLOCK) {
    why = "same place as ";
    what = overlap_name (kind);
  }
  else
    return 0;
  report_error ("%s: corrupt refcount table: entry %" PRIu64 " is 0x%" PRIx64
                ": %s%s", storage_path (r->file), index, offset, why, what);
  return corrupt ();
}

/* Gets the block of table entry INDEX; *RET is NULL if there is none (all its counts are
 * 0).  The caller holds the lock. */
static int
load (struct refcounts *r, uint64_t index, struct refblock **ret)
{
  struct refblock *b;

  *ret = NULL;
  if (index >= r->entries || r->table[index] == 0)
    return 0;
  *ret = refblock_cache_find (&r->cache, index);
  if (*ret)
    return 0;

  if (check_entry (r, index) == -1)
    return -1;
  /* Giving back clusters must not need memory. */
  b = refblock_new (&r->cache, index);
  if (b == NULL)
    b = refblock_recycle (&r->cache, index);
  if (b == NULL) {
    report_error ("calloc: %m");
    return -1;
  }
  if (storage_read_sparse (r->file, b->raw, r->cache.size, r->table[index]) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    refblock_free (&r->cache, b);
    return -1;
  }
  refblock_cache_insert (&r->cache, b);
  *ret = b;
  return 0;
}

int
refcount_get (struct refcounts *r, uint64_t cluster, uint64_t *value)
{
  struct refblock *b;
  LOCK_FOR_BLOCK (&r->lock);

  if (load (r, cluster >> r->block_bits, &b) == -1)
    return -1;
  *value = b == NULL ? 0 :
    refblock_get (b->raw, r->order,
                  cluster & ((UINT64_C (1) << r->block_bits) - 1));
  return 0;
}

/* Reports why the count VALUE of CLUSTER cannot be changed. */
static int
refuse_change (struct refcounts *r, uint64_t cluster, uint64_t value,
               enum refcount_change how)
{
  const char *path = storage_path (r->file);
  const uint64_t offset = cluster << r->cluster_bits;

  switch (how) {
  case REFCOUNT_UP:
    return report_refusal (EOVERFLOW, "%s: cluster at %" PRIu64 ": its reference count %"
                           PRIu64 " cannot be increased with %u refcount bits", path,
                           offset, value, 1u << r->order);
  case REFCOUNT_DOWN:
    report_error ("%s: corrupt refcounts: the cluster at %" PRIu64
                  " is in use but its reference count is 0", path, offset);
    return corrupt ();
  case REFCOUNT_CLAIM:
    report_error ("%s: corrupt refcounts: the cluster at %" PRIu64
                  " should be free but its reference count is %" PRIu64,
                  path, offset, value);
    return corrupt ();
  }
  abort ();
}

/* Changes the counts of the clusters [c, end), all in block B.  On failure, *C is the
 * cluster whose count cannot be changed. */
static int
change_in_block (struct refcounts *r, struct refblock *b, uint64_t *c,
                 uint64_t end, enum refcount_change how)
{
  const uint64_t base = b->index << r->block_bits;

  for (; *c < end; (*c)++) {
    const uint64_t value = refblock_get (b->raw, r->order, *c - base);

    if ((how == REFCOUNT_UP && value == r->max) || (how == REFCOUNT_DOWN && value == 0) ||
        (how == REFCOUNT_CLAIM && value != 0))
      return refuse_change (r, *c, value, how);
    refblock_set (b->raw, r->order, *c - base,
                  how == REFCOUNT_DOWN ? value - 1 : value + 1);
  }
  return 0;
}

/* Undoes the change of [first, end).  The blocks are dirty, so they are in memory, and
 * nothing can fail. */
static void
unchange (struct refcounts *r, uint64_t first, uint64_t end, enum refcount_change how)
{
  const uint64_t mask = (UINT64_C (1) << r->block_bits) - 1;

  for (uint64_t c = first; c < end; c++) {
    struct refblock *b = refblock_cache_find (&r->cache, c >> r->block_bits);
    const uint64_t value = refblock_get (b->raw, r->order, c & mask);

    refblock_set (b->raw, r->order, c & mask,
                  how == REFCOUNT_DOWN ? value + 1 : value - 1);
  }
}

int
refcount_change (struct refcounts *r, uint64_t first, uint64_t n,
                 enum refcount_change how)
{
  const uint64_t per_block = UINT64_C (1) << r->block_bits;
  uint64_t c = first, start, end;

  if (!add_fits (first, n, &end) || end > QCOW2_MAX_HOST_OFFSET) {
    report_error ("%s: cannot count references to %" PRIu64 " clusters at offset %"
                  PRIu64, storage_path (r->file), n, first);
    return corrupt ();
  }
  while (c < end) {
    const uint64_t index = c >> r->block_bits;
    struct refblock *b;
    int res;

    if (load (r, index, &b) == -1)
      goto error;
    if (b == NULL) {
      report_error ("%s: corrupt refcounts: there is no refcount block for the "
                    "cluster at %" PRIu64, storage_path (r->file),
                    c << r->cluster_bits);
      errno = EUCLEAN;
      goto error;
    }
    start = c;
    res = change_in_block (r, b, &c, min64 (end, (index + 1) * per_block), how);
    if (c > start)
      refblock_dirty (&r->cache, b, r->order, start - index * per_block,
                      c - index * per_block);
    if (res == -1)
      goto error;
  }
  return 0;

 error: {
    KEEP_ERRNO_FOR_BLOCK;

    unchange (r, first, c, how);
    return -1;
  }
}

int
refcount_inc (struct refcounts *r, uint64_t first, uint64_t n)
{
  LOCK_FOR_BLOCK (&r->lock);
  return refcount_change (r, first, n, REFCOUNT_UP);
}

int
refcount_claim (struct refcounts *r, uint64_t first, uint64_t n)
{
  LOCK_FOR_BLOCK (&r->lock);
  return refcount_change (r, first, n, REFCOUNT_CLAIM);
}

/* If it fails, nobody may come to lower these counts later.  So what may pass, such as an
 * error of a read, is tried once more. */
static int
lower (struct refcounts *r, uint64_t first, uint64_t n)
{
  if (refcount_change (r, first, n, REFCOUNT_DOWN) == 0)
    return 0;
  return errno == EUCLEAN ? -1 : refcount_change (r, first, n, REFCOUNT_DOWN);
}

int
refcount_dec (struct refcounts *r, uint64_t first, uint64_t n,
              void (*freed) (void *, uint64_t, uint64_t), void *opaque)
{
  const uint64_t mask = (UINT64_C (1) << r->block_bits) - 1;
  uint64_t start = 0, len = 0;
  LOCK_FOR_BLOCK (&r->lock);

  if (lower (r, first, n) == -1)
    return -1;
  if (freed == NULL)
    return 0;
  for (uint64_t c = first; c < first + n; c++) {
    /* In memory, because it is dirty. */
    struct refblock *b = refblock_cache_find (&r->cache, c >> r->block_bits);

    if (refblock_get (b->raw, r->order, c & mask) == 0) {
      if (len == 0)
        start = c;
      len++;
    }
    else if (len > 0) {
      freed (opaque, start, len);
      len = 0;
    }
  }
  if (len > 0)
    freed (opaque, start, len);
  return 0;
}

void
refcount_abandon_table (struct refcounts *r, uint64_t offset,
                        uint64_t clusters)
{
  overlap_remove (r->overlap, offset, clusters << r->cluster_bits);
  if (lower (r, offset >> r->cluster_bits, clusters) == -1)
    report_debug ("%s: %" PRIu64 " clusters at %" PRIu64 " are leaked",
                  storage_path (r->file), clusters, offset);
}

static bool
is_metadata (struct refcounts *r, uint64_t cluster)
{
  return cluster == 0 ||
    overlap_find (r->overlap, cluster << r->cluster_bits,
                  UINT64_C (1) << r->cluster_bits) != OVERLAP_NONE;
}

int
refcount_find_free (struct refcounts *r, uint64_t from, uint64_t limit,
                    uint64_t max_n, uint64_t *first, uint64_t *n,
                    uint64_t *next)
{
  uint64_t countable, index, base, stop, c, end;
  struct refblock *b;
  LOCK_FOR_BLOCK (&r->lock);

  countable = min64 (limit, r->entries << r->block_bits);
  while (from < countable && r->table[from >> r->block_bits] == 0)
    from = ((from >> r->block_bits) + 1) << r->block_bits;
  if (from >= countable) {
    *next = limit;
    return 0;
  }
  index = from >> r->block_bits;
  if (load (r, index, &b) == -1)
    return -1;
  base = index << r->block_bits;
  stop = min64 (countable, base + (UINT64_C (1) << r->block_bits));

  c = from;
  do
    c = base + refblock_find_zero (b->raw, r->order, c - base, stop - base);
  while (c < stop && is_metadata (r, c) && ++c < stop);
  end = c;
  while (end < stop && end - c < max_n &&
         refblock_get (b->raw, r->order, end - base) == 0 &&
         !is_metadata (r, end))
    end++;

  *next = end == countable ? limit : end;
  *first = c;
  *n = end - c;
  return end > c;
}

int
refcount_end (struct refcounts *r, uint64_t *end)
{
  LOCK_FOR_BLOCK (&r->lock);

  for (uint64_t i = r->entries; i-- > 0; ) {
    struct refblock *b;
    uint64_t n;

    if (load (r, i, &b) == -1)
      return -1;
    n = b ? refblock_end (b->raw, r->order, r->cache.size) : 0;
    if (n > 0) {
      *end = (i << r->block_bits) + n;
      return 0;
    }
  }
  *end = 0;
  return 0;
}
