/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How large is a refcount structure that also counts itself?
 *
 * Specification: "Host cluster management".
 *
 * New refcount blocks, and the table that names them, take clusters that need counts,
 * too.  Those may need more blocks, and more blocks a longer table.  So the size is
 * computed repeatedly, until it does not change any more.  All values only grow, so the
 * result is the smallest size that is enough.  Each round adds what was missing in the
 * last one, at most a fifth of what the last one added (a count of 64 bits for 512 bytes,
 * and the table's entries), so it ends soon.
 *
 * Four modules lay out with this, and write what they have laid out in ways of their own.
 * refgrow has its blocks in memory, and refwrite writes them as they change, in rounds,
 * while requests go on.  newimage computes any part of the file, and keeps no block.
 * shadowwidth and repair write all of it anew, once from counts of another width, once
 * from the recount.  (shadowend needs no layout: it moves the blocks that have changed,
 * and the table.  leaks only lowers counts where they are.)
 *
 * Pure: no files, no state.
 */

#include <config.h>

#include <errno.h>

#include "util/bytes.h"
#include "format/format.h"
#include "space/reflayout.h"

int
reflayout_find (const struct reflayout *l, struct reflayout_size *size)
{
  const uint64_t per_cluster = (UINT64_C (1) << l->cluster_bits) / sizeof (struct be64);
  const uint64_t max_entries = l->unlimited ? UINT64_MAX
    : QCOW2_MAX_REFTABLE_BYTES / sizeof (struct be64);
  const uint64_t max_end = l->unlimited ? UINT64_MAX
    : QCOW2_MAX_HOST_OFFSET >> l->cluster_bits;
  uint64_t next = l->first >> l->block_bits;    /* blocks before this one have been
                                                   counted */
  uint64_t before, end;

  *size = (struct reflayout_size) { .blocks = l->blocks };
  do {
    before = size->table + size->blocks;
    if (!add_fits (l->n, l->apart ? 0 : before, &end) ||
        !add_fits (end, l->first, &end))
      end = UINT64_MAX;
    size->last = (end - 1) >> l->block_bits;
    if (size->last >= max_entries || end > max_end) {
      errno = size->last >= max_entries ? ERANGE : EFBIG;
      return -1;
    }
    if (size->last >= l->entries)
      size->table = min64 (max_entries / per_cluster,
                           max64 (l->min_table, div_up (size->last + 1, per_cluster)));
    for (; next <= size->last; next++)
      size->blocks += l->has_block == NULL || !l->has_block (l->opaque, next);
  } while (size->table + size->blocks != before);
  return 0;
}
