/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each cluster of a window have, and what is it used for?
 *
 * Memory is limited, whatever the size of the file: references are counted in one window
 * of REFWINDOW_CLUSTERS clusters (64 MiB of counters; with clusters of 64K, a window
 * spans 1 TiB).  A larger file needs several windows, one after the other.  Windows
 * without references are skipped.  A counter is
 *
 *    shared : 1 | role : 3 | marked : 1 | references : 27
 *
 * Metadata other than L2 tables has only one reference.  A cluster that has two uses (R5)
 * keeps the role that was found first, and is reported once.
 *
 * Locks: none; counters are atomic.  Their memory order does not matter: joining the
 * threads that count makes everything visible.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "format/format.h"
#include "check/refwindow.h"

#define ROLE_SHIFT 28
#define ROLE_MASK UINT32_C (7)

void
refwindow_init (struct refwindow *t, struct storage *file, unsigned cluster_bits)
{
  t->cluster_bits = cluster_bits;
  t->clusters = div_up (storage_size (file), UINT64_C (1) << cluster_bits);
  t->counters = NULL;
}

void
refwindow_free (struct refwindow *t)
{
  free ((void *) t->counters);
}

int
refwindow_begin (struct refwindow *t, uint64_t first, struct refwindow_judge judge)
{
  free ((void *) t->counters);
  t->judge = judge;
  t->first = first;
  t->n = first < t->clusters ? min64 (t->clusters - first, REFWINDOW_CLUSTERS) : 0;
  t->counters = calloc (t->n + 1, sizeof *t->counters);
  t->next = UINT64_MAX;
  if (t->counters)
    return 0;
  t->n = 0;
  return -1;
}

static const char *
role_name (enum role role)
{
  switch (role) {
  case ROLE_NOTHING: break;
  case ROLE_TABLE: return "other metadata";
  case ROLE_L2: return "an L2 table";
  case ROLE_DATA: return "data";
  case ROLE_REFCOUNTS: return "a part of the refcounts";
  }
  abort ();
}

static int
count_one (struct refwindow *t, uint64_t cluster, enum role role, uint32_t times,
           const char *what)
{
  _Atomic uint32_t *counter = &t->counters[cluster - t->first];
  uint32_t old = atomic_load_explicit (counter, memory_order_relaxed), new;
  enum role known;
  bool conflict;

  do {
    known = old >> ROLE_SHIFT & ROLE_MASK;
    conflict = known != ROLE_NOTHING &&
      (known != role || role == ROLE_TABLE || (role == ROLE_REFCOUNTS && times > 0));
    new = (old & (REFWINDOW_SHARED | REFWINDOW_MARKED)) |
      (conflict ? REFWINDOW_SHARED : 0) |
      (uint32_t) (known != ROLE_NOTHING ? known : role) << ROLE_SHIFT |
      (uint32_t) min64 ((uint64_t) (old & REFWINDOW_MAX) + times, REFWINDOW_MAX);
  } while (!atomic_compare_exchange_weak_explicit (counter, &old, new,
                                                   memory_order_relaxed,
                                                   memory_order_relaxed));
  if (!conflict)
    return 1;
  if (old & REFWINDOW_SHARED)
    return 0;
  return t->judge.fault (t->judge.opaque, FINDING_OVERLAP, 1, cluster << t->cluster_bits,
                         "the %s at offset %" PRIu64 " overlaps %s", what,
                         cluster << t->cluster_bits, role_name (known));
}

/* Records that a later window has references. */
static void
reach (struct refwindow *t, uint64_t cluster)
{
  const uint64_t window = round_down (cluster, REFWINDOW_CLUSTERS);
  uint64_t next = atomic_load (&t->next);

  while (window < next && !atomic_compare_exchange_weak (&t->next, &next, window))
    ;
}

int
refwindow_add (struct refwindow *t, uint64_t offset, uint64_t bytes, enum role role,
               uint32_t times, const char *what)
{
  const unsigned bits = t->cluster_bits;
  const uint64_t first = offset >> bits;
  uint64_t end, i;
  int r, alone = 1;

  if (bytes == 0)
    return 1;
  if (offset & ((UINT64_C (1) << bits) - 1))
    return t->judge.fault (t->judge.opaque, FINDING_ALIGNMENT, times, offset,
                           "the %s at %" PRIu64 " is not aligned to a cluster", what,
                           offset);
  if (!range_within (offset, bytes, QCOW2_MAX_HOST_OFFSET) ||
      (end = ((offset + bytes - 1) >> bits) + 1) > t->clusters)
    return t->judge.fault (t->judge.opaque, FINDING_BEYOND, times, offset,
                           "the %s at %" PRIu64 " lies beyond the end of the file", what,
                           offset);

  if (end > t->first + REFWINDOW_CLUSTERS)
    reach (t, max64 (first, t->first + REFWINDOW_CLUSTERS));
  end = min64 (end, t->first + t->n);
  for (i = max64 (first, t->first); i < end; i++) {
    r = count_one (t, i, role, times, what);
    if (r == -1)
      return -1;
    alone &= r;
  }
  return alone;
}

uint64_t
refwindow_end (const struct refwindow *t)
{
  uint64_t i;

  for (i = t->n; i > 0; i--)
    if (t->counters[i - 1] & ROLE_MASK << ROLE_SHIFT)
      return t->first + i;
  return 0;
}

void
refwindow_mark (struct refwindow *t, uint64_t cluster)
{
  atomic_fetch_or (&t->counters[cluster - t->first], REFWINDOW_MARKED);
}
