/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which faults do entries of L1 and L2 tables have?
 *
 * Specification: "Cluster mapping", "Extended L2 Entries".  The walk checks that an entry
 * points to a valid place (walktables.c).
 *
 * A fault in a table that several L1 entries point to counts once for each of them, as
 * with qemu-img check.
 *
 * COPIED flags matter only in the active L1 table and in its L2 tables (R7).  They are
 * compared with the stored refcounts, not with the references; scanrefs.c compares those
 * two.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <inttypes.h>

#include "format/entry.h"
#include "check/scan-impl.h"

#define L1_RESERVED UINT64_C (0x7f000000000001ff)
#define L2_RESERVED UINT64_C (0x3f000000000001fe)

/* The allocation bits in the bitmap of an extended L2 entry. */
#define ALLOCATED UINT64_C (0x00000000ffffffff)

/* --- L2 tables --- */

/* Statistics of one table. */
struct sums { uint64_t allocated, compressed, fragmented; };

/* The current entry. */
struct entry {
  const struct walk_l2 *table;
  uint64_t index;               /* in the table */
  uint64_t word, bitmap;
  uint64_t contiguous;          /* a cluster here would not be a fragment; or 0 */
};

static uint64_t
entry_at (const struct scan *s, const struct entry *e)
{
  return e->table->offset + e->index * s->h->l2_entry_size;
}

static void
wrong (struct scan *s, const struct entry *e, enum finding_kind kind,
       const char *what)
{
  findings_add (s->findings, kind, e->table->times, entry_at (s, e),
                "L2 entry 0x%" PRIx64 " at %" PRIu64 ": %s", e->word, entry_at (s, e),
                what);
}

/* The next functions return whether the walk must follow the entry. */

static bool
check_compressed (struct scan *s, const struct entry *e, struct sums *sums)
{
  uint64_t first, n;

  if (e->word & QCOW2_OFLAG_COPIED)
    wrong (s, e, FINDING_COPIED, "a compressed cluster is flagged COPIED");
  if (s->data_file) {
    wrong (s, e, FINDING_ENTRY,
           "a compressed cluster is not allowed with an external data file");
    return false;
  }
  if (e->bitmap != 0) {
    wrong (s, e, FINDING_SUBCLUSTERS, "a compressed cluster has subclusters");
    return false;
  }
  sums->allocated++;
  sums->compressed++;
  sums->fragmented++;           /* compressed clusters always count as fragmented */
  if (compress_clusters (s->h, e->word & (QCOW2_OFLAG_COMPRESSED - 1), &first, &n))
    return true;
  wrong (s, e, FINDING_BEYOND, "it points beyond the end of the file");
  return false;
}

/* The guest offset of the entry, by the first L1 entry that points to its table. */
static uint64_t
guest_offset (const struct scan *s, const struct entry *e)
{
  return (((uint64_t) e->table->l1_index << s->h->l2_bits) + e->index)
    << s->h->cluster_bits;
}

/* Checks the remaining properties of an entry that points into an external data file. */
static void
check_external (struct scan *s, const struct entry *e, uint64_t offset)
{
  if (offset != guest_offset (s, e))
    wrong (s, e, FINDING_ENTRY, "its place in the external data file is not "
           "that of the guest's data");
  if (!(e->word & QCOW2_OFLAG_COPIED))
    wrong (s, e, FINDING_COPIED, "with an external data file it must be "
           "flagged COPIED");
}

static bool
check_entry (struct scan *s, struct entry *e, struct sums *sums)
{
  const struct header *h = s->h;
  const bool extended = entry_is_extended (h);
  const uint64_t offset = e->word & QCOW2_L2_OFFSET_MASK;

  if (e->word & QCOW2_OFLAG_COMPRESSED)
    return check_compressed (s, e, sums);
  if (e->word & (L2_RESERVED | (extended ? QCOW2_OFLAG_ZERO : 0)))
    wrong (s, e, FINDING_RESERVED, "reserved bits are set");
  if (h->version < 3 && (e->word & QCOW2_OFLAG_ZERO))
    wrong (s, e, FINDING_ENTRY, "version 2 images have no zero flag");

  /* In a data file, offset 0 is a valid place, that of the beginning of the disk, unless
   * the cluster is unallocated or reads as zeros. */
  if (offset == 0 &&
      (!s->data_file || !(e->word & QCOW2_OFLAG_COPIED) ||
       (!extended && (e->word & QCOW2_OFLAG_ZERO)))) {
    if (e->bitmap & ALLOCATED)
      wrong (s, e, FINDING_SUBCLUSTERS,
             "subclusters are allocated, but the cluster is not");
    return false;
  }
  if (e->bitmap & e->bitmap >> 32 & ALLOCATED)
    wrong (s, e, FINDING_SUBCLUSTERS,
           "subclusters are both allocated and zero");
  sums->allocated++;
  if (e->contiguous != 0 && offset != e->contiguous)
    sums->fragmented++;
  e->contiguous = offset + h->cluster_size;
  if (offset & (h->cluster_size - 1)) {
    wrong (s, e, FINDING_ALIGNMENT, "the cluster is not aligned");
    return false;
  }
  if (s->data_file)
    check_external (s, e, offset);
  return !s->data_file;
}

/* Checks the flag of an entry that points into the window.  Clusters of an external data
 * file have no refcounts. */
static void
check_copied (struct scan *s, const struct entry *e)
{
  const uint64_t offset = e->word & QCOW2_L2_OFFSET_MASK;
  const bool flag = (e->word & QCOW2_OFLAG_COPIED) != 0;
  int one;

  if (!e->table->active || (e->word & QCOW2_OFLAG_COMPRESSED) || offset == 0 ||
      (s->data_file && (offset & (s->h->cluster_size - 1)) == 0))
    return;
  one = refwindow_marked (s->window, offset >> s->h->cluster_bits);
  if (one == -1 || flag == one)
    return;
  findings_add (s->findings, FINDING_COPIED, e->table->active, entry_at (s, e),
                "L2 entry 0x%" PRIx64 " at %" PRIu64 " is %sflagged COPIED, but "
                "the refcount is %s1", e->word, entry_at (s, e), flag ? "" : "not ",
                one ? "" : "not ");
}

/* Makes the entry at RAW the current one.  False: the entry is empty. */
static inline bool
take_entry (struct entry *e, const struct be64 *raw, unsigned words)
{
  if (raw[0].be == 0 && (words == 1 || raw[1].be == 0))
    return false;
  e->word = get64 (raw[0]);
  e->bitmap = words == 1 ? 0 : get64 (raw[1]);
  return true;
}

int
scan_l2 (void *opaque, struct walk_l2 *table, const struct be64 *raw)
{
  struct scan *s = opaque;
  const unsigned words = entry_words (s->h);
  const uint64_t n = UINT64_C (1) << s->h->l2_bits;
  struct entry e = { .table = table };
  struct sums sums = { 0 };

  if (scan_work (s, s->h->cluster_size) == -1)
    return -1;
  for (; e.index < n; e.index++, raw += words) {
    if (!take_entry (&e, raw, words))
      continue;
    table->compressed |= (e.word & QCOW2_OFLAG_COMPRESSED) != 0;
    if (check_entry (s, &e, &sums))
      walk_l2_entry (s->walk, table, e.word);   /* (this does not end the walk) */
    check_copied (s, &e);
  }
  if (!table->active)
    return 0;
  atomic_fetch_add (&s->allocated, sums.allocated * table->active);
  atomic_fetch_add (&s->compressed, sums.compressed * table->active);
  atomic_fetch_add (&s->fragmented, sums.fragmented * table->active);
  return 0;
}

int
scan_l2_copied (void *opaque, struct walk_l2 *table, const struct be64 *raw)
{
  struct scan *s = opaque;
  const unsigned words = entry_words (s->h);
  const uint64_t n = UINT64_C (1) << s->h->l2_bits;
  struct entry e = { .table = table };

  if (scan_work (s, s->h->cluster_size) == -1)
    return -1;
  for (; e.index < n; e.index++, raw += words) {
    if (!take_entry (&e, raw, words))
      continue;
    if (!((e.word & QCOW2_OFLAG_COMPRESSED) && e.bitmap != 0))
      walk_l2_entry (s->walk, table, e.word);
    check_copied (s, &e);
  }
  return 0;
}

/* Of a table for two parts of the active disk, the copy in memory of one part would not
 * know what is written to the other one.  (Not all are found if there are so many tables
 * that the walk gathers them in several rounds.) */
static void
check_shared (struct scan *s, const struct walk_l2 *table)
{
  if (table->active > 1)
    findings_add (s->findings, FINDING_OVERLAP, table->active - 1, table->offset,
                  "the L2 table at offset %" PRIu64 " is used for %" PRIu32
                  " parts of the disk", (uint64_t) table->offset,
                  (uint32_t) table->active);
}

int
scan_l2_tables (void *opaque, const struct walk_l2 *tables, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    check_shared (opaque, &tables[i]);
  return scan_inflate_all (opaque, tables, n);
}

/* --- L1 tables --- */

void
scan_l1_copied (void *opaque, const struct walk_l1 *l1, uint64_t index, uint64_t entry)
{
  struct scan *s = opaque;
  const uint64_t offset = entry & QCOW2_L1_OFFSET_MASK;
  const uint64_t at = l1->offset + index * sizeof (struct be64);
  const bool copied = (entry & QCOW2_OFLAG_COPIED) != 0;
  int one;

  if (!l1->active || offset == 0)
    return;
  one = refwindow_marked (s->window, offset >> s->h->cluster_bits);
  if (one != -1 && copied != one)
    findings_add (s->findings, FINDING_COPIED, 1, at, "L1 entry 0x%" PRIx64
                  " at %" PRIu64 " is %sflagged COPIED, but the refcount is %s1",
                  entry, at, copied ? "" : "not ", one ? "" : "not ");
}

void
scan_l1_entry (void *opaque, const struct walk_l1 *l1, uint64_t index, uint64_t entry)
{
  struct scan *s = opaque;
  const uint64_t at = l1->offset + index * sizeof (struct be64);

  if (entry & L1_RESERVED)
    findings_add (s->findings, FINDING_RESERVED, 1, at, "L1 entry 0x%" PRIx64
                  " at %" PRIu64 " has reserved bits set", entry, at);
  if ((entry & QCOW2_L1_OFFSET_MASK) == 0 && (entry & QCOW2_OFLAG_COPIED))
    findings_add (s->findings, FINDING_ENTRY, 1, at, "L1 entry 0x%" PRIx64
                  " at %" PRIu64 " is flagged COPIED, but names no table",
                  entry, at);
  scan_l1_copied (opaque, l1, index, entry);
}
