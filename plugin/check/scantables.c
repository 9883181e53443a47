/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do the tables of this image name, and what is wrong with their entries?
 *
 * Specification: "Cluster mapping", "Extended L2 Entries", "Snapshots", "Bitmaps".
 *
 * Each L1 table is read, and the L2 tables that it names are gathered, sorted, and each
 * is walked once for all that name it: snapshots share most of theirs.  A fault in a
 * shared table counts as often as it is named, as with qemu-img check.
 *
 * COPIED flags count in the active L1 table and what it names only (R7), and are held
 * against the refcounts that are stored, not against the references: those are held
 * against each other elsewhere.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/scan-impl.h"

#define L1_RESERVED UINT64_C (0x7f000000000001ff)
#define L2_RESERVED UINT64_C (0x3f000000000001fe)

/* Bitmaps of an extended L2 entry. */
#define ALLOCATED UINT64_C (0x00000000ffffffff)

/* --- L2 tables --- */

/* What was counted in some tables. */
struct tally { uint64_t allocated, compressed, fragmented; };

/* The entry at hand. */
struct entry {
  const struct scan_table *table;
  uint64_t index;               /* in the table */
  uint64_t word, bitmap;
  uint64_t contiguous;          /* where it should be not to be a fragment, or 0 */
};

static void
wrong (struct scan *s, const struct entry *e, enum finding_kind kind,
       const char *what)
{
  if (scan_first (s))
    findings_add (s->findings, kind, e->table->times,
                  e->table->offset + e->index * s->h->l2_entry_size,
                  "L2 entry 0x%" PRIx64 " at %" PRIu64 ": %s", e->word,
                  e->table->offset + e->index * s->h->l2_entry_size, what);
}

static void
walk_compressed (struct scan *s, const struct entry *e, struct tally *tally)
{
  uint64_t first, n;

  if (e->word & QCOW2_OFLAG_COPIED)
    wrong (s, e, FINDING_COPIED, "a compressed cluster is flagged COPIED");
  if (s->data_file) {
    wrong (s, e, FINDING_ENTRY,
           "a compressed cluster is not allowed with an external data file");
    return;
  }
  if (e->bitmap != 0) {
    wrong (s, e, FINDING_SUBCLUSTERS, "a compressed cluster has subclusters");
    return;
  }
  tally->allocated++;
  tally->compressed++;
  tally->fragmented++;          /* by their nature */
  if (!compress_clusters (s->h, e->word & (QCOW2_OFLAG_COMPRESSED - 1),
                          &first, &n))
    wrong (s, e, FINDING_BEYOND, "it points beyond the end of the file");
  else
    scan_refer (s, first << s->h->cluster_bits, n << s->h->cluster_bits,
                SCAN_DATA, e->table->times, "compressed cluster");
}

/* Guest offset of the entry, in the first L1 table that has it. */
static uint64_t
guest_offset (const struct scan *s, const struct entry *e)
{
  return (((uint64_t) e->table->l1_index << s->h->l2_bits) + e->index)
    << s->h->cluster_bits;
}

static void
check_copied (struct scan *s, const struct entry *e, uint64_t offset)
{
  const bool flag = (e->word & QCOW2_OFLAG_COPIED) != 0;
  const int one = scan_stored_one (s, offset >> s->h->cluster_bits);

  if (!e->table->active || one == -1 || flag == one)
    return;
  findings_add (s->findings, FINDING_COPIED, e->table->active,
                e->table->offset + e->index * s->h->l2_entry_size,
                "L2 entry 0x%" PRIx64 " at %" PRIu64 " is %sflagged COPIED, but "
                "the refcount is %s1", e->word,
                e->table->offset + e->index * s->h->l2_entry_size,
                flag ? "" : "not ", one ? "" : "not ");
}

/* The rest of an entry that has a cluster in an external data file. */
static void
walk_external (struct scan *s, const struct entry *e, uint64_t offset)
{
  if (offset != guest_offset (s, e))
    wrong (s, e, FINDING_ENTRY, "its place in the external data file is not "
           "that of the guest's data");
  if (!(e->word & QCOW2_OFLAG_COPIED))
    wrong (s, e, FINDING_COPIED, "with an external data file it must be "
           "flagged COPIED");
}

static void
walk_entry (struct scan *s, struct entry *e, struct tally *tally)
{
  const struct header *h = s->h;
  const bool extended = h->l2_entry_size == 16;
  const uint64_t offset = e->word & QCOW2_L2_OFFSET_MASK;

  if (e->word & QCOW2_OFLAG_COMPRESSED) {
    walk_compressed (s, e, tally);
    return;
  }
  if (e->word & (L2_RESERVED | (extended ? QCOW2_OFLAG_ZERO : 0)))
    wrong (s, e, FINDING_RESERVED, "reserved bits are set");
  if (h->version < 3 && (e->word & QCOW2_OFLAG_ZERO))
    wrong (s, e, FINDING_ENTRY, "version 2 images have no zero flag");

  /* Offset 0 of a data file is the beginning of the disk, unless that is zeros. */
  if (offset == 0 &&
      (!s->data_file || !(e->word & QCOW2_OFLAG_COPIED) ||
       (!extended && (e->word & QCOW2_OFLAG_ZERO)))) {
    if (e->bitmap & ALLOCATED)
      wrong (s, e, FINDING_SUBCLUSTERS,
             "subclusters are allocated, but the cluster is not");
    return;
  }
  if (e->bitmap & e->bitmap >> 32 & ALLOCATED)
    wrong (s, e, FINDING_SUBCLUSTERS,
           "subclusters are both allocated and zero");
  tally->allocated++;
  if (e->contiguous != 0 && offset != e->contiguous)
    tally->fragmented++;
  e->contiguous = offset + h->cluster_size;
  if (offset & (h->cluster_size - 1)) {
    wrong (s, e, FINDING_ALIGNMENT, "the cluster is not aligned");
    check_copied (s, e, offset);
    return;
  }
  if (s->data_file) {
    walk_external (s, e, offset);
    return;
  }
  scan_refer (s, offset, h->cluster_size, SCAN_DATA, e->table->times,
              "data cluster");
  check_copied (s, e, offset);
}

static void
walk_table (struct scan *s, struct scan_table *table, const struct be64 *raw)
{
  const unsigned step = s->h->l2_entry_size / sizeof *raw;
  const uint64_t n = UINT64_C (1) << s->h->l2_bits;
  struct entry e = { .table = table };
  struct tally tally = { 0 };
  uint64_t i;

  for (i = 0; i < n; i++, raw += step) {
    if (raw[0].be == 0 && (step == 1 || raw[1].be == 0))
      continue;
    e.index = i;
    e.word = get64 (raw[0]);
    e.bitmap = step == 1 ? 0 : get64 (raw[1]);
    table->compressed |= (e.word & QCOW2_OFLAG_COMPRESSED) != 0;
    walk_entry (s, &e, &tally);
  }
  if (!scan_first (s) || !table->active)
    return;
  atomic_fetch_add (&s->allocated, tally.allocated * table->active);
  atomic_fetch_add (&s->compressed, tally.compressed * table->active);
  atomic_fetch_add (&s->fragmented, tally.fragmented * table->active);
}

/* How many of the N tables from T on, which are sorted, lie in one hole, so that there is
 * nothing in them?  -1: an error (reported). */
static int64_t
in_hole (struct scan *s, const struct scan_table *t, uint64_t n)
{
  const uint64_t cs = s->h->cluster_size;
  uint64_t len = t[n - 1].offset + cs - t->offset, i;
  bool hole;

  if (!s->sparse)
    return 0;
  if (hostfile_hole (s->file, t->offset, &len, &hole) == -1)
    return -1;
  if (!hole)
    return 0;
  for (i = 0; i < n && t[i].offset - t->offset + cs <= len; i++)
    ;
  return i;
}

static int
walk_tables (struct scan *s, void *buffer, uint64_t from, uint64_t to)
{
  const uint64_t cs = s->h->cluster_size;
  const uint64_t most = max64 (1, SCAN_BUFFER / cs);
  struct scan_table *t = s->tables;
  uint64_t i, k, n;

  for (i = from; i < to; i += n) {
    const int64_t empty = in_hole (s, &t[i], to - i);

    if (empty == -1)
      return -1;
    if (empty > 0) {
      n = empty;
      continue;
    }
    /* Those that follow one another are read at once, and the next one is on its way. */
    for (n = 1; n < most && i + n < to && t[i + n].offset == t[i].offset + n * cs;
         n++)
      ;
    if (!s->sparse && i + n < to)
      hostfile_prefetch (s->file, t[i + n].offset, cs);
    if (hostfile_read (s->file, buffer, n * cs, t[i].offset) == -1)
      return -1;
    for (k = 0; k < n; k++)
      walk_table (s, &t[i + k], (struct be64 *) ((char *) buffer + k * cs));
  }
  return 0;
}

static int
compare_tables (const void *a, const void *b)
{
  const struct scan_table *x = a, *y = b;

  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  /* The one that speaks for all is of the active table, if there is one. */
  if (x->active != y->active)
    return x->active ? -1 : 1;
  return x->l1_index < y->l1_index ? -1 : x->l1_index > y->l1_index;
}

/* Makes one of those that are the same.  With an external data file it matters which
 * guest offset it is for. */
static void
merge_tables (struct scan *s)
{
  uint32_t i, n = 0;

  qsort (s->tables, s->nr_tables, sizeof *s->tables, compare_tables);
  for (i = 0; i < s->nr_tables; i++)
    if (n > 0 && !s->data_file &&
        s->tables[n - 1].offset == s->tables[i].offset) {
      s->tables[n - 1].times += s->tables[i].times;
      s->tables[n - 1].active += s->tables[i].active;
    }
    else
      s->tables[n++] = s->tables[i];
  s->nr_tables = n;
}

int
scan_l2_tables (struct scan *s)
{
  const uint64_t cs = s->h->cluster_size;
  uint32_t i, n = 0;

  merge_tables (s);
  for (i = 0; i < s->nr_tables; i++)
    if (scan_refer (s, s->tables[i].offset, cs, SCAN_L2, s->tables[i].times,
                    "L2 table"))
      s->tables[n++] = s->tables[i];
  s->nr_tables = n;
  if (scan_parallel (s, n, min64 (16, max64 (1, SCAN_BUFFER / cs)),
                     max64 (SCAN_BUFFER, cs), walk_tables) == -1)
    return -1;
  if (s->full && scan_first (s) && scan_inflate_all (s) == -1)
    return -1;
  s->nr_tables = 0;
  return 0;
}

/* --- L1 tables --- */

struct l1 { bool active; uint64_t offset; };

static int
gather_table (struct scan *s, uint64_t index, uint64_t entry, void *opaque)
{
  const struct l1 *l1 = opaque;
  const uint64_t offset = entry & QCOW2_L1_OFFSET_MASK;
  const uint64_t at = l1->offset + index * sizeof (struct be64);
  const bool copied = (entry & QCOW2_OFLAG_COPIED) != 0;
  int one;

  if (scan_first (s) && (entry & L1_RESERVED))
    findings_add (s->findings, FINDING_RESERVED, 1, at, "L1 entry 0x%" PRIx64
                  " at %" PRIu64 " has reserved bits set", entry, at);
  if (offset == 0) {
    if (scan_first (s) && copied)
      findings_add (s->findings, FINDING_ENTRY, 1, at, "L1 entry 0x%" PRIx64
                    " at %" PRIu64 " is flagged COPIED, but names no table",
                    entry, at);
    return 0;
  }
  one = scan_stored_one (s, offset >> s->h->cluster_bits);
  if (l1->active && one != -1 && copied != one)
    findings_add (s->findings, FINDING_COPIED, 1, at, "L1 entry 0x%" PRIx64
                  " at %" PRIu64 " is %sflagged COPIED, but the refcount is %s1",
                  entry, at, copied ? "" : "not ", one ? "" : "not ");
  s->tables[s->nr_tables++] = (struct scan_table) {
    .offset = offset, .l1_index = index, .times = 1, .active = l1->active,
  };
  return s->nr_tables == SCAN_TABLES ? scan_l2_tables (s) : 0;
}

int
scan_active (struct scan *s)
{
  const uint64_t bytes = s->h->l1_entries * sizeof (struct be64);
  struct l1 l1 = { true, s->h->l1_offset };

  scan_refer (s, s->h->l1_offset, bytes, SCAN_TABLE, 1, "L1 table");
  return scan_entries (s, s->h->l1_offset, s->h->l1_entries, gather_table, &l1);
}

/* --- snapshots --- */

static void
bad_snapshot (struct scan *s, uint32_t i, uint64_t at, const char *what)
{
  if (scan_first (s))
    findings_add (s->findings, FINDING_SNAPSHOT, 1, at, "entry %" PRIu32
                  " of the snapshot table, at %" PRIu64 ": %s", i, at, what);
}

/* What the L1 table of a snapshot names. */
static int
walk_snapshot (struct scan *s, uint32_t i, uint64_t at,
               const struct qcow2_snapshot *entry)
{
  const uint64_t bytes = get32 (entry->l1_size) * sizeof (struct be64);
  struct l1 l1 = { false, get64 (entry->l1_table_offset) };

  if (bytes > QCOW2_MAX_L1_BYTES) {
    bad_snapshot (s, i, at, "its L1 table is too large");
    return 0;
  }
  if (!scan_refer (s, l1.offset, bytes, SCAN_TABLE, 1, "L1 table of a snapshot") ||
      s->skip[i])
    return 0;
  return scan_entries (s, l1.offset, get32 (entry->l1_size), gather_table, &l1);
}

/* Version 3 says how large the disk was. */
static int
check_extra (struct scan *s, uint32_t i, uint64_t at,
             const struct qcow2_snapshot *entry)
{
  const unsigned covered = s->h->cluster_bits + s->h->l2_bits;
  struct be64 extra[2];

  if (get32 (entry->extra_size) < sizeof extra) {
    if (s->h->version >= 3)
      bad_snapshot (s, i, at, "it does not state the size of the disk");
    return 0;
  }
  if (hostfile_read (s->file, extra, sizeof extra, at + sizeof *entry) == -1)
    return -1;
  if (div_up (get64 (extra[1]), UINT64_C (1) << covered) >
      get32 (entry->l1_size))
    bad_snapshot (s, i, at, "its L1 table is too small for its disk");
  return 0;
}

/* Where an L1 table is.  Number 0 is the active one, i + 1 that of snapshot i. */
struct place { uint64_t offset, end; uint32_t number; };

static int
compare_places (const void *a, const void *b)
{
  const struct place *x = a, *y = b;

  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  return x->number < y->number ? -1 : x->number > y->number;
}

/* Of the L1 tables that share bytes, all but one are skipped: else 64 Ki snapshots with
 * one table of 32 MiB would be as many walks. */
static int
find_shared (struct scan *s)
{
  const uint32_t n = s->h->nb_snapshots;
  CLEANUP_FREE struct place *places = calloc (n + 1, sizeof *places);
  uint64_t at = s->h->snapshots_offset, end = 0;
  struct qcow2_snapshot entry;
  uint32_t i, k;

  s->skip = calloc (n + 1, sizeof *s->skip);
  if (places == NULL || s->skip == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  places[0] = (struct place) {
    s->h->l1_offset, s->h->l1_offset + s->h->l1_entries * sizeof (struct be64), 0
  };
  for (i = 1; i <= n && range_within (at, sizeof entry,
                                      hostfile_size (s->file)); i++) {
    if (hostfile_read (s->file, &entry, sizeof entry, at) == -1)
      return -1;
    places[i].offset = get64 (entry.l1_table_offset) & QCOW2_L1_OFFSET_MASK;
    places[i].end = places[i].offset +
      get32 (entry.l1_size) * (uint64_t) sizeof (struct be64);
    places[i].number = i;
    at += round_up (sizeof entry + (uint64_t) get32 (entry.extra_size) +
                    get16 (entry.id_size) + get16 (entry.name_size), 8);
  }
  qsort (places, i, sizeof *places, compare_places);
  for (k = 0; k < i; k++) {
    if (places[k].offset < end && places[k].number > 0)
      s->skip[places[k].number - 1] = true;
    end = max64 (end, places[k].end);
  }
  return 0;
}

int
scan_snapshots (struct scan *s)
{
  uint64_t at = s->h->snapshots_offset, len;
  struct qcow2_snapshot entry;
  uint32_t i;

  if (s->skip == NULL && find_shared (s) == -1)
    return -1;
  if (s->data_file && s->h->nb_snapshots > 0)
    bad_snapshot (s, 0, at, "snapshots are not allowed with an external data file");
  for (i = 0; i < s->h->nb_snapshots; i++) {
    if (at - s->h->snapshots_offset > QCOW2_MAX_SNAPSHOT_TABLE ||
        !range_within (at, sizeof entry, hostfile_size (s->file))) {
      bad_snapshot (s, i, at, "the table is too large, or the file ends before it");
      break;
    }
    if (hostfile_read (s->file, &entry, sizeof entry, at) == -1)
      return -1;
    len = sizeof entry + (uint64_t) get32 (entry.extra_size) +
      get16 (entry.id_size) + get16 (entry.name_size);
    if (get32 (entry.extra_size) > QCOW2_MAX_SNAPSHOT_EXTRA)
      bad_snapshot (s, i, at, "its extra data is too long");
    if (!range_within (at, len, hostfile_size (s->file))) {
      bad_snapshot (s, i, at, "the file ends within it");
      break;
    }
    if (check_extra (s, i, at, &entry) == -1 ||
        walk_snapshot (s, i, at, &entry) == -1)
      return -1;
    at += round_up (len, 8);
  }
  scan_refer (s, s->h->snapshots_offset,
              min64 (at, hostfile_size (s->file)) - s->h->snapshots_offset,
              SCAN_TABLE, 1, "snapshot table");
  return 0;
}
