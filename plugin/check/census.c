/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster really have?
 *
 * What the refcounts should say is found by walking everything that names a host cluster:
 *
 *    header        the first cluster
 *    active disk   L1 table -> L2 tables -> data
 *    snapshots     their table; each: L1 table -> L2 tables -> data
 *    bitmaps       directory -> bitmap tables -> bitmap data
 *    encryption    the LUKS header
 *    refcounts     refcount table -> blocks
 *
 * A compressed cluster is a reference to each host cluster that its sectors touch.  With
 * an external data file, L2 entries name nothing in this file.
 *
 * Memory has a bound, whatever the image says: references are counted in one window of
 * CENSUS_WINDOW clusters (64 MiB of memory; with clusters of 64K it spans 1 TiB).  A
 * larger file takes several walks, and windows without references are skipped.
 * Snapshots share most of their L2 tables, so these are gathered, up to
 * MAX_TABLES of them, sorted, and each is walked once for all that name it.
 *
 * Each counter knows what the cluster was found to be: a table that only one place
 * may name, an L2 table, data, or refcounts.  A cluster that is two of these is
 * a fault (R5), like a reference that is not aligned or lies beyond the end
 * of the file.  The first fault ends the census: what is to be done about it is for
 * others to say.
 *
 * Locks: none; one user at a time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/compress.h"
#include "check/census.h"

/* L2 tables that are gathered before they are walked: 8 MiB. */
#define MAX_TABLES (1u << 20)

/* Entries of a table that are read at a time. */
#define CHUNK 8192

enum role { NOTHING, TABLE, L2_TABLE, DATA, REFCOUNTS };

/* A counter is role << ROLE_SHIFT | references. */
#define ROLE_SHIFT 28
#define MAX_COUNT ((UINT32_C (1) << ROLE_SHIFT) - 1)

struct census {
  struct hostfile *file;
  const struct header *h;
  const struct snapshots *snapshots;
  bool count_refcounts;

  uint64_t clusters;            /* in the file */
  uint64_t first, n;            /* the window; n <= CENSUS_WINDOW */
  uint32_t *counters;           /* n of them; NULL: none was taken */
  uint64_t next, end;

  uint64_t *tables;             /* offsets of L2 tables to be walked */
  uint32_t nr_tables;
  struct be64 *l2;              /* one L2 table */
  struct be64 *chunk;           /* CHUNK entries */
  char fault[200];
};

struct census *
census_new (struct hostfile *file, const struct header *h,
            const struct snapshots *snapshots, bool count_refcounts)
{
  struct census *c = calloc (1, sizeof *c);

  if (c == NULL)
    goto error;
  c->file = file;
  c->h = h;
  c->snapshots = snapshots;
  c->count_refcounts = count_refcounts;
  c->clusters = div_up (hostfile_size (file), h->cluster_size);
  c->tables = malloc (MAX_TABLES * sizeof *c->tables);
  c->l2 = malloc (h->cluster_size);
  c->chunk = malloc (CHUNK * sizeof *c->chunk);
  if (c->tables == NULL || c->l2 == NULL || c->chunk == NULL)
    goto error;
  return c;

 error:
  nbdkit_error ("%s: counting references: %m", hostfile_path (file));
  census_free (c);
  return NULL;
}

void
census_free (struct census *c)
{
  if (c == NULL)
    return;
  free (c->counters);
  free (c->tables);
  free (c->l2);
  free (c->chunk);
  free (c);
}

uint64_t
census_count (const struct census *c, uint64_t cluster)
{
  /* Wraps for clusters before the window. */
  if (cluster - c->first >= c->n)
    return 0;
  return c->counters[cluster - c->first] & MAX_COUNT;
}

uint64_t
census_next (const struct census *c)
{
  return c->next;
}

uint64_t
census_end (const struct census *c)
{
  return c->end;
}

const char *
census_fault (const struct census *c)
{
  return c->fault[0] ? c->fault : NULL;
}

static int
fault (struct census *c, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

static int
fault (struct census *c, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vsnprintf (c->fault, sizeof c->fault, fmt, args);
  va_end (args);
  errno = EUCLEAN;
  return -1;
}

/* --- references --- */

static const char *
role_name (enum role role)
{
  switch (role) {
  case NOTHING: break;
  case TABLE: return "a table";
  case L2_TABLE: return "an L2 table";
  case DATA: return "data";
  case REFCOUNTS: return "a part of the refcounts";
  }
  abort ();
}

/* The cluster of a counter gets TIMES more references. */
static int
count_one (struct census *c, uint32_t *counter, enum role role, uint64_t times,
           const char *what, uint64_t offset)
{
  const enum role known = *counter >> ROLE_SHIFT;
  const uint32_t count = *counter & MAX_COUNT;

  if (known != NOTHING && (known != role || role == TABLE))
    return fault (c, "the %s at offset %" PRIu64 " overlaps %s", what, offset,
                  role_name (known));
  if (times > MAX_COUNT - count)
    return fault (c, "the %s at %" PRIu64 " has more references than can be "
                  "counted", what, offset);
  *counter = role << ROLE_SHIFT | (count + times);
  return 0;
}

/* TIMES references to each cluster of a range, which is a WHAT. */
static int
refer (struct census *c, uint64_t offset, uint64_t bytes, enum role role,
       uint64_t times, const char *what)
{
  const unsigned bits = c->h->cluster_bits;
  const uint64_t first = offset >> bits;
  uint64_t end, i;

  if (bytes == 0)
    return 0;
  if (offset & (c->h->cluster_size - 1))
    return fault (c, "the %s at %" PRIu64 " is not aligned to a cluster", what,
                  offset);
  if (!range_within (offset, bytes, QCOW2_MAX_HOST_OFFSET) ||
      (end = ((offset + bytes - 1) >> bits) + 1) > c->clusters)
    return fault (c, "the %s at %" PRIu64 " lies beyond the end of the file",
                  what, offset);

  c->end = max64 (c->end, end);
  if (end > c->first + CENSUS_WINDOW)
    c->next = min64 (c->next, round_down (max64 (first, c->first + CENSUS_WINDOW),
                                          CENSUS_WINDOW));
  for (i = max64 (first, c->first); i < min64 (end, c->first + c->n); i++)
    if (count_one (c, &c->counters[i - c->first], role, times, what,
                   i << bits) == -1)
      return -1;
  return 0;
}

/* Calls FN for all entries of a table that are not 0. */
static int
each_entry (struct census *c, uint64_t offset, uint64_t entries,
            int (*fn) (struct census *, uint64_t entry))
{
  uint64_t done, n, i;

  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, CHUNK);
    if (hostfile_read (c->file, c->chunk, n * sizeof *c->chunk,
                       offset + done * sizeof *c->chunk) == -1)
      return -1;
    for (i = 0; i < n; i++)
      if (c->chunk[i].be != 0 && fn (c, get64 (c->chunk[i])) == -1)
        return -1;
  }
  return 0;
}

/* --- L1 and L2 tables --- */

static int
refer_l2_entry (struct census *c, uint64_t entry, uint64_t times)
{
  const struct header *h = c->h;
  const bool data_file = (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  uint64_t first, n;

  if (entry & QCOW2_OFLAG_COMPRESSED) {
    if (data_file)
      return fault (c, "an L2 table has a compressed cluster, 0x%" PRIx64 ", which is "
                    "not allowed with an external data file", entry);
    if (!compress_clusters (h, entry & (QCOW2_OFLAG_COMPRESSED - 1), &first, &n))
      return fault (c, "the compressed cluster 0x%" PRIx64
                    " lies beyond the end of the file", entry);
    return refer (c, first << h->cluster_bits, n << h->cluster_bits, DATA, times,
                  "compressed cluster");
  }
  if (offset == 0 || data_file)
    return 0;
  return refer (c, offset, h->cluster_size, DATA, times, "data cluster");
}

static int
walk_l2 (struct census *c, uint64_t offset, uint64_t times)
{
  const unsigned step = c->h->l2_entry_size / sizeof *c->l2;
  const uint64_t n = c->h->cluster_size / sizeof *c->l2;
  uint64_t i;

  if (refer (c, offset, c->h->cluster_size, L2_TABLE, times, "L2 table") == -1 ||
      hostfile_read (c->file, c->l2, c->h->cluster_size, offset) == -1)
    return -1;
  for (i = 0; i < n; i += step)
    if (c->l2[i].be != 0 &&
        refer_l2_entry (c, get64 (c->l2[i]), times) == -1)
      return -1;
  return 0;
}

static int
compare_offsets (const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* Walks the tables gathered so far. */
static int
walk_tables (struct census *c)
{
  const uint32_t n = c->nr_tables;
  uint32_t i, same;

  c->nr_tables = 0;
  qsort (c->tables, n, sizeof *c->tables, compare_offsets);
  for (i = 0; i < n; i += same) {
    for (same = 1; i + same < n && c->tables[i + same] == c->tables[i]; same++)
      ;
    if (walk_l2 (c, c->tables[i], same) == -1)
      return -1;
  }
  return 0;
}

static int
gather_table (struct census *c, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L1_OFFSET_MASK;

  if (offset == 0)
    return 0;
  c->tables[c->nr_tables++] = offset;
  return c->nr_tables == MAX_TABLES ? walk_tables (c) : 0;
}

static int
walk_l1 (struct census *c, uint64_t offset, uint64_t entries, const char *what)
{
  if (refer (c, offset, entries * sizeof (struct be64), TABLE, 1, what) == -1)
    return -1;
  return each_entry (c, offset, entries, gather_table);
}

static int
walk_snapshots (struct census *c)
{
  const struct snapshots *s = c->snapshots;
  uint32_t i;

  if (refer (c, c->h->snapshots_offset, s->table_bytes, TABLE, 1,
             "snapshot table") == -1)
    return -1;
  for (i = 0; i < s->n; i++)
    if (walk_l1 (c, s->list[i].l1_offset, s->list[i].l1_entries,
                 "L1 table of a snapshot") == -1)
      return -1;
  return 0;
}

/* --- refcounts and bitmaps --- */

static int
refer_refblock (struct census *c, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_REFTABLE_OFFSET_MASK;

  if (offset == 0)
    return 0;
  if (!c->count_refcounts &&
      ((offset & (c->h->cluster_size - 1)) != 0 ||
       offset >> c->h->cluster_bits >= c->clusters))
    return 0;
  return refer (c, offset, c->h->cluster_size, REFCOUNTS, c->count_refcounts,
                "refcount block");
}

static int
walk_refcounts (struct census *c)
{
  const uint64_t bytes = c->h->reftable_clusters * c->h->cluster_size;

  if (refer (c, c->h->reftable_offset, bytes, REFCOUNTS, c->count_refcounts,
             "refcount table") == -1)
    return -1;
  return each_entry (c, c->h->reftable_offset, bytes / sizeof (struct be64),
                     refer_refblock);
}

static int
refer_bitmap_cluster (struct census *c, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;

  if (offset == 0)              /* all ones, or all zeros */
    return 0;
  return refer (c, offset, c->h->cluster_size, TABLE, 1, "bitmap");
}

static int
walk_bitmaps (struct census *c)
{
  const uint64_t dir = c->h->bitmaps.dir_offset, size = c->h->bitmaps.dir_size;
  struct qcow2_bitmap entry;
  uint64_t at = 0, len, table, entries;
  uint32_t i;

  if (refer (c, dir, size, TABLE, 1, "bitmap directory") == -1)
    return -1;
  for (i = 0; i < c->h->bitmaps.count; i++) {
    if (!range_within (at, sizeof entry, size))
      break;
    if (hostfile_read (c->file, &entry, sizeof entry, dir + at) == -1)
      return -1;
    len = sizeof entry + get16 (entry.name_size) +
      (uint64_t) get32 (entry.extra_size);
    if (!range_within (at, len, size))
      break;
    at += round_up (len, 8);

    table = get64 (entry.table_offset);
    entries = get32 (entry.table_size);
    if (refer (c, table, entries * sizeof (struct be64), TABLE, 1,
               "bitmap table") == -1 ||
        each_entry (c, table, entries, refer_bitmap_cluster) == -1)
      return -1;
  }
  if (i < c->h->bitmaps.count)
    return fault (c, "the bitmap directory at %" PRIu64 " ends within entry "
                  "%" PRIu32, dir, i);
  return 0;
}

/* --- the census --- */

int
census_take (struct census *c, uint64_t first)
{
  const struct header *h = c->h;

  if (c->counters && first == c->first)
    return 0;
  free (c->counters);
  c->first = first;
  c->n = first < c->clusters ? min64 (c->clusters - first, CENSUS_WINDOW) : 0;
  c->counters = calloc (c->n + 1, sizeof *c->counters);
  if (c->counters == NULL) {
    nbdkit_error ("%s: counting references: %m", hostfile_path (c->file));
    return -1;
  }
  c->next = UINT64_MAX;
  c->end = 0;
  c->nr_tables = 0;

  if (refer (c, 0, h->cluster_size, TABLE, 1, "header") == -1 ||
      walk_refcounts (c) == -1 ||
      (h->has_crypto &&
       refer (c, h->crypto.offset, h->crypto.length, TABLE, 1,
              "encryption header") == -1) ||
      (h->has_bitmaps && walk_bitmaps (c) == -1) ||
      walk_l1 (c, h->l1_offset, h->l1_entries, "L1 table") == -1 ||
      walk_snapshots (c) == -1 ||
      walk_tables (c) == -1) {
    /* Half a count is none. */
    free (c->counters);
    c->counters = NULL;
    c->n = 0;
    return -1;
  }
  return 0;
}
