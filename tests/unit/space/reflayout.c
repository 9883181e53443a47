/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The size of refcount structures that count themselves is compared with the result of a
 * search that tries all sizes, from the smallest on, and counts each cluster.
 */

#include <config.h>

#include <errno.h>

#include "util/bytes.h"
#include "space/reflayout.h"
#include "lib/stubs.h"

#define CLUSTER_BITS 9
#define PER_CLUSTER 64          /* table entries */
#define BLOCKS 2000

static bool there[BLOCKS];

static bool
has_block (const void *opaque, uint64_t index)
{
  CHECK (opaque == there && index < BLOCKS);
  return there[index];
}

/* Is a structure of TABLE and BLOCKS clusters enough? */
static bool
is_enough (const struct reflayout *l, uint64_t table, uint64_t blocks)
{
  const uint64_t n = l->n + (l->apart ? 0 : table + blocks);
  bool counted[BLOCKS] = { false };
  uint64_t needed = l->blocks, entries = table > 0 ? table * PER_CLUSTER : l->entries;

  if (table > 0 && table < l->min_table)
    return false;
  for (uint64_t c = l->first; c < l->first + n; c++) {
    const uint64_t i = c >> l->block_bits;

    CHECK (i < BLOCKS);
    if (i >= entries)
      return false;
    needed += !counted[i] && !(l->has_block && there[i]);
    counted[i] = true;
  }
  return needed <= blocks;
}

/* No table is longer than this in what is tried. */
#define MAX_TABLE (BLOCKS / PER_CLUSTER)

static void
search (const struct reflayout *l, uint64_t *table, uint64_t *blocks)
{
  for (uint64_t all = 0;; all++)
    for (*table = 0; *table <= min64 (all, MAX_TABLE); ++*table) {
      *blocks = all - *table;
      if (is_enough (l, *table, *blocks))
        return;
    }
}

static void
test_random (struct rng *rng)
{
  const unsigned order = rng_below (rng, 7);
  const uint64_t dense = rng_below (rng, 101);
  struct reflayout l = {
    .cluster_bits = CLUSTER_BITS, .block_bits = CLUSTER_BITS + 3 - order,
    .apart = rng_below (rng, 4) == 0, .n = 1 + rng_below (rng, 3000),
    .entries = rng_below (rng, 6) * PER_CLUSTER, .min_table = rng_below (rng, 8),
  };
  struct reflayout_size size;
  uint64_t table, blocks, last;

  l.first = rng_below (rng, UINT64_C (400) << l.block_bits);
  if (rng_below (rng, 4) > 0) {
    for (int i = 0; i < BLOCKS; i++)
      there[i] = rng_below (rng, 100) < dense;
    l.has_block = has_block;
    l.opaque = there;
    l.blocks = rng_below (rng, 20);
  }
  if (l.blocks > 0 && !l.apart && rng_below (rng, 3) == 0)
    l.n = 0;

  CHECK (reflayout_find (&l, &size) == 0);
  search (&l, &table, &blocks);
  CHECK (size.table == table && size.blocks == blocks);
  last = l.first + l.n + (l.apart ? 0 : table + blocks) - 1;
  CHECK (size.last == last >> l.block_bits);
}

/* The clusters before a refcount table's, or all host offsets', end. */
static void
test_limits (unsigned cluster_bits, unsigned block_bits, uint64_t end, int error)
{
  struct reflayout l = {
    .cluster_bits = cluster_bits, .block_bits = block_bits,
    .first = end - 10, .n = 10, .apart = true,
  };
  struct reflayout_size size;

  CHECK (reflayout_find (&l, &size) == 0);
  CHECK (size.blocks == 1 && size.last == (end - 1) >> block_bits);
  CHECK (size.table == div_up ((size.last + 1) * 8, UINT64_C (1) << cluster_bits));
  l.n = 11;
  CHECK (reflayout_find (&l, &size) == -1 && errno == error);
  l.n = 10;
  l.apart = false;
  CHECK (reflayout_find (&l, &size) == -1 && errno == error);
  l.n = UINT64_MAX;
  CHECK (reflayout_find (&l, &size) == -1);
  l.n = UINT64_MAX - l.first + 1;
  CHECK (reflayout_find (&l, &size) == -1);
}

int
main (void)
{
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  for (int i = 0; i < 2000; i++)
    test_random (&rng);
  /* A table of 8 MiB names 2^20 blocks. */
  test_limits (16, 15, UINT64_C (1) << 35, ERANGE);
  test_limits (9, 6, UINT64_C (1) << 26, ERANGE);
  /* Offsets stay below 2^56. */
  test_limits (21, 24, UINT64_C (1) << 35, EFBIG);
  return 0;
}
