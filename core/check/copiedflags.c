/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which entries say that their cluster has one reference?
 *
 * The COPIED flag of an entry of the active L1 table, and of its L2 tables, has to agree
 * with the refcount (R7).  Here it is made to agree with the references of a recount, in
 * place: each entry by itself is as valid as before.
 *
 * Specification: "Cluster mapping".
 *
 * Locks: none; nothing else writes.
 */

#include <config.h>

#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/entry.h"
#include "check/copiedflags.h"

/* L1 entries that are read at a time. */
#define CHUNK 8192

struct flags {
  struct storage *file;
  const struct header *h;
  const struct recount *recount;
  unsigned char *cluster;       /* a buffer */
};

/* Returns ENTRY, of an active L1 or L2 table, with the correct COPIED flag. */
static uint64_t
correct (const struct flags *f, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  const uint64_t cluster = offset >> f->h->cluster_bits;
  uint64_t count;

  if (offset == 0 || (entry & QCOW2_OFLAG_COMPRESSED))
    return entry & ~QCOW2_OFLAG_COPIED;
  count = recount_get (f->recount, cluster);
  if (count == 0)               /* in another window */
    return entry;
  return count == 1 ? entry | QCOW2_OFLAG_COPIED : entry & ~QCOW2_OFLAG_COPIED;
}

/* The same for L2 entries that point into an external data file, whose clusters are never
 * shared and have no refcounts. */
static uint64_t
correct_external (const struct flags *f, uint64_t entry)
{
  (void) f;
  return (entry & QCOW2_L2_OFFSET_MASK) && !(entry & QCOW2_OFLAG_COMPRESSED)
    ? entry | QCOW2_OFLAG_COPIED : entry;
}

/* Corrects every STEPth of N entries, and writes back the changed ones. */
static int
correct_entries (const struct flags *f, struct be64 *entries, uint64_t n,
                 unsigned step, uint64_t offset,
                 uint64_t (*fn) (const struct flags *, uint64_t entry))
{
  uint64_t i, low = n, high = 0;

  for (i = 0; i < n; i += step) {
    const struct be64 entry = put64 (fn (f, get64 (entries[i])));

    if (entry.be == entries[i].be)
      continue;
    entries[i] = entry;
    low = min64 (low, i);
    high = i + 1;
  }
  if (low >= high)
    return 0;
  return storage_write (f->file, entries + low,
                        (high - low) * sizeof *entries,
                        offset + low * sizeof *entries);
}

static int
correct_l2 (const struct flags *f, uint64_t offset)
{
  struct be64 *l2 = (struct be64 *) f->cluster;
  const uint64_t cs = f->h->cluster_size;

  if (offset == 0)
    return 0;
  if (storage_read (f->file, l2, cs, offset) == -1)
    return -1;
  return correct_entries (f, l2, cs / sizeof *l2, entry_words (f->h), offset,
                          entry_is_external (f->h) ? correct_external : correct);
}

int
copiedflags_correct (struct storage *file, const struct header *h,
                     const struct recount *recount, unsigned char *cluster)
{
  const struct flags flags = { file, h, recount, cluster }, *const f = &flags;
  CLEANUP_FREE struct be64 *l1 = memory_get (CHUNK * sizeof *l1);
  uint64_t done, n, i, at;

  if (l1 == NULL)
    return -1;
  for (done = 0; done < f->h->l1_entries; done += n) {
    n = min64 (f->h->l1_entries - done, CHUNK);
    at = f->h->l1_offset + done * sizeof *l1;
    if (storage_read (f->file, l1, n * sizeof *l1, at) == -1)
      return -1;
    for (i = 0; i < n; i++)
      if (correct_l2 (f, get64 (l1[i]) & QCOW2_L1_OFFSET_MASK) == -1)
        return -1;
    if (correct_entries (f, l1, n, 1, at, correct) == -1)
      return -1;
  }
  return 0;
}
