/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which faults do persistent bitmaps have?
 *
 * Specification: "Bitmaps".  The walk reports sizes that are too large to be followed
 * (walkbitmaps.c).
 *
 * A bitmap that is marked as in use was not closed properly.  Its contents are invalid,
 * as the flag says; this is not a fault.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <inttypes.h>

#include "check/scan-impl.h"

static void
bad_bitmap (struct scan *s, const struct walk_bitmap *b, const char *what)
{
  findings_add (s->findings, FINDING_BITMAP, 1, b->at, WALK_BITMAP, b->i, b->at, what);
}

void
scan_bitmap_entry (void *opaque, const struct walk_bitmap *b, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;

  if ((entry & ~QCOW2_BITMAP_OFFSET_MASK &
       ~(offset == 0 ? QCOW2_BITMAP_ALL_ONES : 0)) != 0)
    bad_bitmap (opaque, b, "reserved bits are set in its table");
}

/* Does the table have as many entries as the disk needs? */
static bool
size_fits (const struct scan *s, const struct qcow2_bitmap *raw)
{
  const uint64_t bits = div_up (s->h->size, UINT64_C (1) << raw->granularity_bits);

  return get32 (raw->table_size) == div_up (div_up (bits, 8), s->h->cluster_size);
}

void
scan_bitmap (void *opaque, const struct walk_bitmap *b)
{
  struct scan *s = opaque;
  const struct qcow2_bitmap *raw = &b->raw;
  const bool in_use = (get32 (raw->flags) & QCOW2_BITMAP_IN_USE) != 0;

  s->bitmaps_in_use += in_use;
  if (raw->type != QCOW2_BITMAP_DIRTY_TRACKING)
    bad_bitmap (s, b, "its type is unknown");
  if (get32 (raw->flags) & ~(QCOW2_BITMAP_FLAGS | UINT32_C (4)))
    bad_bitmap (s, b, "reserved flags are set");
  if (raw->granularity_bits < QCOW2_MIN_BITMAP_GRANULARITY ||
      raw->granularity_bits > QCOW2_MAX_BITMAP_GRANULARITY)
    bad_bitmap (s, b, "its granularity is invalid");
  else if (!in_use && !size_fits (s, raw))
    bad_bitmap (s, b, "its table does not fit the size of the disk");
  if (get16 (raw->name_size) == 0 ||
      get16 (raw->name_size) > QCOW2_MAX_BITMAP_NAME)
    bad_bitmap (s, b, "its name is empty or too long");
}
