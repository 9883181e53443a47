/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each cluster of the window have, and what is it used for?
 *
 * Part of scan.c.  A counter is
 *
 *    shared : 1 | role : 3 | stored refcount is 1 : 1 | references : 27
 *
 * Locks: none; counters are atomic.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>

#include "check/scan-impl.h"

#define SHARED (UINT32_C (1) << 31)
#define ROLE_SHIFT 28
#define ROLE_MASK UINT32_C (7)
#define STORED_ONE (UINT32_C (1) << 27)
#define MAX_COUNT (STORED_ONE - 1)

const uint32_t scan_max_count = MAX_COUNT;

static const char *
role_name (enum scan_role role)
{
  switch (role) {
  case SCAN_NOTHING: break;
  case SCAN_TABLE: return "other metadata";
  case SCAN_L2: return "an L2 table";
  case SCAN_DATA: return "data";
  case SCAN_REFCOUNTS: return "a part of the refcounts";
  }
  abort ();
}

/* The cluster of a counter gets TIMES more references. */
static bool
count_one (struct scan *s, uint64_t cluster, enum scan_role role,
           uint32_t times, const char *what)
{
  _Atomic uint32_t *counter = &s->counters[cluster - s->first];
  uint32_t old = atomic_load_explicit (counter, memory_order_relaxed), new;
  enum scan_role known;
  bool conflict;

  do {
    known = old >> ROLE_SHIFT & ROLE_MASK;
    conflict = known != SCAN_NOTHING &&
      (known != role || role == SCAN_TABLE || role == SCAN_REFCOUNTS);
    new = (old & (SHARED | STORED_ONE)) | (conflict ? SHARED : 0) |
      (uint32_t) (known != SCAN_NOTHING ? known : role) << ROLE_SHIFT |
      (uint32_t) min64 ((uint64_t) (old & MAX_COUNT) + times, MAX_COUNT);
  } while (!atomic_compare_exchange_weak_explicit (counter, &old, new,
                                                   memory_order_relaxed,
                                                   memory_order_relaxed));
  if (conflict && !(old & SHARED))
    findings_add (s->findings, FINDING_OVERLAP, 1,
                  cluster << s->h->cluster_bits,
                  "the %s at offset %" PRIu64 " overlaps %s", what,
                  cluster << s->h->cluster_bits, role_name (known));
  return !conflict;
}

bool
scan_refer (struct scan *s, uint64_t offset, uint64_t bytes,
            enum scan_role role, uint32_t times, const char *what)
{
  const unsigned bits = s->h->cluster_bits;
  const uint64_t first = offset >> bits;
  uint64_t end, i, next;
  bool alone = true;

  if (bytes == 0)
    return true;
  if (offset & (s->h->cluster_size - 1)) {
    if (scan_first (s))
      findings_add (s->findings, FINDING_ALIGNMENT, times, offset,
                    "the %s at %" PRIu64 " is not aligned to a cluster",
                    what, offset);
    return false;
  }
  if (!range_within (offset, bytes, QCOW2_MAX_HOST_OFFSET) ||
      (end = ((offset + bytes - 1) >> bits) + 1) > s->clusters) {
    if (scan_first (s))
      findings_add (s->findings, FINDING_BEYOND, times, offset,
                    "the %s at %" PRIu64 " lies beyond the end of the file",
                    what, offset);
    return false;
  }

  if (end > s->first + SCAN_WINDOW) {
    i = round_down (max64 (first, s->first + SCAN_WINDOW), SCAN_WINDOW);
    next = atomic_load (&s->next);
    while (i < next && !atomic_compare_exchange_weak (&s->next, &next, i))
      ;
  }
  end = min64 (end, s->first + s->n);
  for (i = max64 (first, s->first); i < end; i++)
    alone &= count_one (s, i, role, times, what);
  return alone;
}

int
scan_stored_one (const struct scan *s, uint64_t cluster)
{
  if (cluster - s->first >= s->n)       /* wraps before the window */
    return -1;
  return (s->counters[cluster - s->first] & STORED_ONE) != 0;
}

void
scan_set_stored_one (struct scan *s, uint64_t cluster)
{
  atomic_fetch_or (&s->counters[cluster - s->first], STORED_ONE);
}

uint32_t
scan_count (const struct scan *s, uint64_t cluster, bool *shared)
{
  const uint32_t counter = s->counters[cluster - s->first];

  *shared = (counter & SHARED) != 0;
  return counter & MAX_COUNT;
}
