/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is wrong with what an image has besides the disk: persistent bitmaps and the
 * encryption header?
 *
 * Specification: "Bitmaps", "Full disk encryption header pointer".
 *
 * A bitmap that is in use was not closed properly: it is void, as its flag says, and
 * that is no damage.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/report.h"
#include "format/luks.h"
#include "check/scan-impl.h"

/* Of the tables of all bitmaps: 16 of the largest size with the smallest clusters. */
#define MAX_ALL_ENTRIES (UINT64_C (1) << 24)

/* The bitmap at hand. */
struct bitmap_entry {
  struct qcow2_bitmap raw;
  uint32_t i;
  uint64_t at;                  /* of its directory entry */
};

static void
bad_bitmap (struct scan *s, const struct bitmap_entry *b, const char *what)
{
  if (scan_first (s))
    findings_add (s->findings, FINDING_BITMAP, 1, b->at, "bitmap %" PRIu32
                  ", directory entry at %" PRIu64 ": %s", b->i, b->at, what);
}

static int
refer_cluster (struct scan *s, uint64_t index, uint64_t entry, void *opaque)
{
  const struct bitmap_entry *b = opaque;
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;

  (void) index;
  if ((entry & ~QCOW2_BITMAP_OFFSET_MASK &
       ~(offset == 0 ? QCOW2_BITMAP_ALL_ONES : 0)) != 0)
    bad_bitmap (s, b, "reserved bits are set in its table");
  if (offset != 0)              /* else all are ones, or zeros */
    scan_refer (s, offset, s->h->cluster_size, SCAN_TABLE, 1, "bitmap");
  return 0;
}

/* Does the table have as many entries as the disk needs? */
static bool
size_fits (const struct scan *s, const struct bitmap_entry *b)
{
  const uint64_t bits =
    div_up (s->h->size, UINT64_C (1) << b->raw.granularity_bits);

  return get32 (b->raw.table_size) ==
    div_up (div_up (bits, 8), s->h->cluster_size);
}

static int
walk_bitmap (struct scan *s, struct bitmap_entry *b)
{
  const struct qcow2_bitmap *raw = &b->raw;
  const uint64_t table = get64 (raw->table_offset);
  const uint64_t entries = get32 (raw->table_size);
  const bool in_use = (get32 (raw->flags) & QCOW2_BITMAP_IN_USE) != 0;

  s->bitmaps_in_use += in_use;
  if (raw->type != QCOW2_BITMAP_DIRTY_TRACKING)
    bad_bitmap (s, b, "its type is unknown");
  if (get32 (raw->flags) & ~(QCOW2_BITMAP_FLAGS | UINT32_C (4)))
    bad_bitmap (s, b, "reserved flags are set");
  if (raw->granularity_bits < QCOW2_MIN_BITMAP_GRANULARITY ||
      raw->granularity_bits > QCOW2_MAX_BITMAP_GRANULARITY)
    bad_bitmap (s, b, "its granularity is invalid");
  else if (!in_use && !size_fits (s, b))
    bad_bitmap (s, b, "its table does not fit the size of the disk");
  if (get16 (raw->name_size) == 0 ||
      get16 (raw->name_size) > QCOW2_MAX_BITMAP_NAME)
    bad_bitmap (s, b, "its name is empty or too long");

  if (entries == 0 || table == 0 ||
      entries > QCOW2_MAX_BITMAP_BYTES >> s->h->cluster_bits) {
    bad_bitmap (s, b, "it has no table, or one that is too large");
    return 0;
  }
  s->bitmap_entries += entries;
  if (s->bitmap_entries > MAX_ALL_ENTRIES) {
    bad_bitmap (s, b, "all tables together are too large");
    return 0;
  }
  if (!scan_refer (s, table, entries * sizeof (struct be64), SCAN_TABLE, 1,
                   "bitmap table"))
    return 0;
  return scan_entries (s, table, entries, refer_cluster, b);
}

int
scan_bitmaps (struct scan *s)
{
  const uint64_t dir = s->h->bitmaps.dir_offset;
  const uint64_t end = dir + s->h->bitmaps.dir_size;
  struct bitmap_entry b = { .at = dir };
  uint64_t len;

  if (!s->h->has_bitmaps ||
      !scan_refer (s, dir, end - dir, SCAN_TABLE, 1, "bitmap directory"))
    return 0;
  for (b.i = 0; b.i < s->h->bitmaps.count; b.i++) {
    if (!range_within (b.at, sizeof b.raw, end))
      break;
    if (hostfile_read (s->file, &b.raw, sizeof b.raw, b.at) == -1)
      return -1;
    len = round_up (sizeof b.raw + (uint64_t) get32 (b.raw.extra_size) +
                    get16 (b.raw.name_size), 8);
    if (!range_within (b.at, len, end))
      break;
    if (walk_bitmap (s, &b) == -1)
      return -1;
    b.at += len;
  }
  if (b.i < s->h->bitmaps.count || b.at != end)
    bad_bitmap (s, &b, "the directory does not contain the number of entries that the "
                "header states");
  return 0;
}

int
scan_encryption (struct scan *s)
{
  const uint64_t offset = s->h->crypto.offset, length = s->h->crypto.length;
  struct luks_header raw;
  struct luks *luks = NULL;

  if (!s->h->has_crypto ||
      !scan_refer (s, offset, length, SCAN_TABLE, 1, "encryption header") ||
      !scan_first (s))
    return 0;
  if (hostfile_read (s->file, &raw, sizeof raw, offset) == -1)
    return -1;
  if (luks_parse (hostfile_path (s->file), &raw, sizeof raw, length,
                  &luks) == 0)
    luks_free (luks);
  else if (errno == ENOMEM)
    return -1;
  else if (errno == EINVAL)     /* not: a cipher that we don't have */
    findings_add (s->findings, FINDING_ENCRYPTION, 1, offset,
                  "the LUKS header at offset %" PRIu64 " is damaged (see the message "
                  "before)",
                  offset);
  return 0;
}
