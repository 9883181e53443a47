/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an L2 entry mean, and how is it written?
 *
 * Specification: "Cluster mapping", "Standard Cluster Descriptor", "Compressed
 * Clusters Descriptor".  Pure functions; no state, no locks.
 *
 * A bad entry is not an error of the slice that holds it: it is a run of kind
 * RUN_CORRUPT, so that its neighbours can still be served and only requests
 * that touch it fail.  Reserved bits are ignored, as QEMU does.
 */

#include <config.h>

#include "compress.h"
#include "entry.h"

static enum run_kind
decode_one (const struct header *h, const struct overlap *overlap,
            uint64_t entry, uint64_t *host, bool *copied)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  const bool zero = (entry & QCOW2_OFLAG_ZERO) != 0;

  *copied = false;

  if (entry & QCOW2_OFLAG_COMPRESSED) {
    const uint64_t descriptor = entry & (QCOW2_OFLAG_COMPRESSED - 1);
    uint64_t first, n;

    if (!compress_clusters (h, descriptor, &first, &n) ||
        (overlap && overlap_find (overlap, first << h->cluster_bits,
                                  n << h->cluster_bits) != OVERLAP_NONE)) {
      *host = entry;
      return RUN_CORRUPT;
    }
    *host = descriptor;
    return RUN_COMPRESSED;
  }

  if ((zero && h->version < 3) ||
      (offset & (h->cluster_size - 1)) != 0 ||
      (offset != 0 && overlap &&
       overlap_find (overlap, offset, h->cluster_size) != OVERLAP_NONE)) {
    *host = entry;
    return RUN_CORRUPT;
  }

  if (offset == 0) {
    *host = 0;
    return zero ? RUN_ZERO : RUN_UNALLOCATED;
  }

  *host = offset;
  *copied = (entry & QCOW2_OFLAG_COPIED) != 0;
  return zero ? RUN_ZERO_ALLOC : RUN_NORMAL;
}

unsigned
entry_decode (const struct header *h, const struct overlap *overlap,
              const void *raw, unsigned unit, unsigned max, struct run *run)
{
  const struct be64 *entries = raw;
  uint64_t host;
  bool copied;
  unsigned n;

  run->layer = 0;
  run->kind = decode_one (h, overlap, get64 (entries[unit]),
                          &run->host, &run->copied);

  for (n = 1; n < max; n++) {
    uint64_t expect = run->host;

    /* Identical entries are the common case for what has no host offset. */
    if (entries[unit + n].be == entries[unit].be &&
        !run_host_advances (run->kind) && !run_host_constant (run->kind))
      continue;
    if (run_host_constant (run->kind))
      break;
    if (run_host_advances (run->kind))
      expect += (uint64_t) n << h->cluster_bits;
    if (decode_one (h, overlap, get64 (entries[unit + n]), &host, &copied)
        != (enum run_kind) run->kind ||
        host != expect || copied != run->copied)
      break;
  }
  return n;
}

const char *
entry_fault (const struct header *h, const struct overlap *overlap,
             uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;

  if (entry & QCOW2_OFLAG_COMPRESSED)
    return "compressed data at an impossible place, or in the place of metadata";
  if ((entry & QCOW2_OFLAG_ZERO) && h->version < 3)
    return "zero flag in a version 2 image";
  if (offset & (h->cluster_size - 1))
    return "host offset is not aligned to a cluster";
  if (overlap)
    return overlap_name (overlap_find (overlap, offset, h->cluster_size));
  return "unknown fault";
}

const char *
entry_l1_fault (const struct header *h, uint64_t file_size, uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L1_OFFSET_MASK;

  if (offset == 0)
    return NULL;
  if (offset & (h->cluster_size - 1))
    return "L2 table offset is not aligned to a cluster";
  if (offset >= file_size)
    return "L2 table lies beyond the end of the file";
  return NULL;
}
