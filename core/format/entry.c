/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an L2 entry mean, and how is it written?
 *
 * Specification: "Cluster mapping", "Standard Cluster Descriptor", "Compressed
 * Clusters Descriptor", "Extended L2 Entries".  Pure functions; no state, no
 * locks.
 *
 * The states of a subcluster, by its two bits and whether the entry has a host
 * cluster:
 *
 *   allocated  zeros    with host cluster    without
 *       0        0      RUN_RESERVED         RUN_UNALLOCATED
 *       0        1      RUN_ZERO_ALLOC       RUN_ZERO
 *       1        0      RUN_NORMAL           RUN_CORRUPT, the whole cluster
 *       1        1      RUN_CORRUPT, the whole cluster, in both cases
 *
 * A bad entry is not an error of the slice that holds it: it is a run of kind
 * RUN_CORRUPT, so that its neighbours can still be served and only requests
 * that touch it fail.  Reserved bits are ignored, as QEMU does; so are the zero flag
 * of an extended entry and the bitmap of a compressed cluster.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "format/compress.h"
#include "format/entry.h"

static enum run_kind
decode_one (const struct header *h, const struct overlap *overlap,
            uint64_t entry, uint64_t *host, bool *copied)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  const bool zero = (entry & QCOW2_OFLAG_ZERO) != 0;
  const bool external = entry_is_external (h);

  *copied = false;

  if (entry & QCOW2_OFLAG_COMPRESSED) {
    const uint64_t descriptor = entry & (QCOW2_OFLAG_COMPRESSED - 1);
    uint64_t first, n;

    if (external || !compress_clusters (h, descriptor, &first, &n) ||
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
      (offset != 0 && overlap && !external &&
       overlap_find (overlap, offset, h->cluster_size) != OVERLAP_NONE)) {
    *host = entry;
    return RUN_CORRUPT;
  }

  /* In an external data file 0 is a valid host offset, and COPIED shows that it is one;
   * but not with ZERO, as QEMU reads it: that can stand anywhere. */
  if (offset == 0 && (zero || !(external && (entry & QCOW2_OFLAG_COPIED)))) {
    *host = 0;
    return zero ? RUN_ZERO : RUN_UNALLOCATED;
  }

  /* Clusters in an external data file are never shared. */
  *host = offset;
  *copied = external || (entry & QCOW2_OFLAG_COPIED) != 0;
  return zero ? RUN_ZERO_ALLOC : RUN_NORMAL;
}

#define SUBCLUSTERS (1u << QCOW2_SUBCLUSTER_BITS)

/* Sets kind, copied and host of *RUN from subcluster SUB of one entry.  Returns the
 * number of subclusters from SUB on, to the end of the entry at most, that have the same
 * state. */
static unsigned
decode_subclusters (const struct header *h, const struct overlap *overlap,
                    const struct qcow2_extended_entry *e, unsigned sub,
                    struct run *run)
{
  const uint64_t entry = get64 (e->entry), bitmap = get64 (e->bitmap);
  const uint32_t alloc = bitmap, zero = bitmap >> 32;
  const uint32_t is_alloc = alloc >> sub & 1, is_zero = zero >> sub & 1;
  uint32_t differ;
  unsigned n;

  run->kind = decode_one (h, overlap,
                          entry & QCOW2_OFLAG_COMPRESSED
                          ? entry : entry & ~QCOW2_OFLAG_ZERO,
                          &run->host, &run->copied);
  if (run->kind == RUN_NORMAL ? (alloc & zero) != 0
      : run->kind == RUN_UNALLOCATED && alloc != 0) {
    run->kind = RUN_CORRUPT;
    run->host = entry;
    run->copied = false;
  }

  if (run->kind == RUN_NORMAL) {
    run->kind = is_zero ? RUN_ZERO_ALLOC : is_alloc ? RUN_NORMAL : RUN_RESERVED;
    run->host += (uint64_t) sub << entry_unit_bits (h);
  }
  else if (run->kind == RUN_UNALLOCATED)
    run->kind = is_zero ? RUN_ZERO : RUN_UNALLOCATED;
  else
    return SUBCLUSTERS - sub;

  differ = (alloc >> sub ^ -is_alloc) | (zero >> sub ^ -is_zero);
  n = differ ? (unsigned) __builtin_ctz (differ) : SUBCLUSTERS;
  return min64 (n, SUBCLUSTERS - sub);
}

static unsigned
decode_extended (const struct header *h, const struct overlap *overlap,
                 const struct qcow2_extended_entry *entries, unsigned unit,
                 unsigned max, struct run *run)
{
  struct run next;
  unsigned n, more;

  n = decode_subclusters (h, overlap, &entries[unit / SUBCLUSTERS],
                          unit % SUBCLUSTERS, run);
  run->layer = 0;
  while (n < max && (unit + n) % SUBCLUSTERS == 0 &&
         !run_host_constant (run->kind)) {
    more = decode_subclusters (h, overlap, &entries[(unit + n) / SUBCLUSTERS], 0,
                               &next);
    if (next.kind != run->kind || next.copied != run->copied ||
        (run_host_advances (run->kind) &&
         next.host != run->host + ((uint64_t) n << entry_unit_bits (h))))
      break;
    n += more;
  }
  return min64 (n, max);
}

/* Of MAX entries, how many from the first one on differ only in their host offsets, which
 * grow by STEP? */
static unsigned
count_alike (const struct be64 *entries, unsigned max, uint64_t step)
{
  const uint64_t known = QCOW2_L2_OFFSET_MASK | QCOW2_OFLAG_COPIED |
    QCOW2_OFLAG_COMPRESSED | QCOW2_OFLAG_ZERO;
  uint64_t expected = get64 (entries[0]) & known;
  unsigned n;

  for (n = 1; n < max; n++) {
    expected += step;
    if ((get64 (entries[n]) & known) != expected)
      break;
  }
  return n;
}

unsigned
entry_decode (const struct header *h, const struct overlap *overlap,
              const void *raw, unsigned unit, unsigned max, struct run *run)
{
  const struct be64 *entries = (const struct be64 *) raw + unit;
  uint64_t clear;
  unsigned n;

  if (entry_is_extended (h))
    return decode_extended (h, overlap, raw, unit, max, run);

  run->layer = 0;
  run->kind = decode_one (h, NULL, get64 (entries[0]), &run->host, &run->copied);
  if (run_host_constant (run->kind)) {
    run->kind = decode_one (h, overlap, get64 (entries[0]), &run->host, &run->copied);
    return 1;
  }
  n = count_alike (entries, max, run_host_advances (run->kind) ? h->cluster_size : 0);

  /* A cluster that contains metadata ends the run, or is one. */
  if (overlap && run_host_advances (run->kind) && !entry_is_external (h)) {
    clear = overlap_clear (overlap, run->host, (uint64_t) n << h->cluster_bits);
    if (clear == 0) {
      run->kind = decode_one (h, overlap, get64 (entries[0]), &run->host, &run->copied);
      return 1;
    }
    n = clear >> h->cluster_bits;
  }
  return n;
}

/* --- writing --- */

static uint64_t
encode_one (uint64_t entry, enum run_kind kind, uint64_t host)
{
  switch (kind) {
  case RUN_UNALLOCATED: return 0;
  case RUN_ZERO:        return QCOW2_OFLAG_ZERO;
  case RUN_ZERO_ALLOC:  return entry | QCOW2_OFLAG_ZERO;
  case RUN_NORMAL:      return host | QCOW2_OFLAG_COPIED;
  case RUN_COMPRESSED:  return host | QCOW2_OFLAG_COMPRESSED;
  case RUN_RESERVED:
  case RUN_CORRUPT:     break;
  }
  abort ();
}

/* Encodes the N subclusters from SUB on. */
static void
encode_subclusters (const struct header *h, struct qcow2_extended_entry *e,
                    unsigned sub, unsigned n, enum run_kind kind, uint64_t host)
{
  const uint64_t named = (UINT64_C (0xffffffff) >> (SUBCLUSTERS - n)) << sub;
  const bool was_compressed = get64 (e->entry) & QCOW2_OFLAG_COMPRESSED;
  uint64_t bitmap = was_compressed ? 0 : get64 (e->bitmap);

  switch (kind) {
  case RUN_NORMAL:
    assert (!was_compressed || n == SUBCLUSTERS);
    bitmap = (bitmap & ~(named << 32)) | named;
    host -= (uint64_t) sub << entry_unit_bits (h);
    break;
  case RUN_ZERO_ALLOC:
    assert (!was_compressed);
    e->bitmap = put64 ((bitmap & ~named) | named << 32);
    return;
  case RUN_ZERO:
    e->entry = put64 (0);
    e->bitmap = put64 (QCOW2_ALL_ZEROS_BITMAP);
    return;
  default:
    bitmap = 0;
  }
  e->entry = put64 (encode_one (0, kind, host));
  e->bitmap = put64 (bitmap);
}

void
entry_encode (const struct header *h, void *raw, unsigned unit, unsigned n,
              enum run_kind kind, uint64_t host)
{
  struct qcow2_extended_entry *extended = raw;
  struct be64 *standard = raw;
  unsigned i, sub;

  if (!entry_is_extended (h)) {
    for (; n > 0; n--, unit++) {
      standard[unit] = put64 (encode_one (get64 (standard[unit]), kind, host));
      if (run_host_advances (kind))
        host += h->cluster_size;
    }
    return;
  }
  for (; n > 0; n -= i, unit += i) {
    sub = unit % SUBCLUSTERS;
    i = min64 (n, SUBCLUSTERS - sub);
    encode_subclusters (h, &extended[unit / SUBCLUSTERS], sub, i, kind, host);
    if (run_host_advances (kind))
      host += (uint64_t) i << entry_unit_bits (h);
  }
}

/* --- faults --- */

const char *
entry_fault (const struct header *h, const struct overlap *overlap,
             uint64_t entry)
{
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  enum overlap_kind kind = OVERLAP_NONE;

  if ((entry & QCOW2_OFLAG_COMPRESSED) && entry_is_external (h))
    return "compressed data, which is not allowed with an external data file";
  if (entry & QCOW2_OFLAG_COMPRESSED)
    return "compressed data at an invalid offset, or where metadata is";
  if ((entry & QCOW2_OFLAG_ZERO) && h->version < 3)
    return "zero flag in a version 2 image";
  if (offset & (h->cluster_size - 1))
    return "host offset is not aligned to a cluster";
  if (entry_is_external (h))
    return "the host offset is not the guest offset in the external data file, or the "
           "subclusters are invalid";
  if (overlap && offset != 0)
    kind = overlap_find (overlap, offset, h->cluster_size);
  if (kind != OVERLAP_NONE)
    return overlap_name (kind);
  if (entry_is_extended (h))
    return offset == 0 ? "subclusters are allocated, but there is no host cluster"
                       : "subclusters are both allocated and zeros";
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
