/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which free clusters are known, and how are the others found?
 *
 * Part of alloc.c.  A cluster is idle if its count is 0 in memory and it waits for
 * nothing.  Two sets contain the known ones: zeroed (punched, or never written) and
 * stale.  A file can have any number of free runs, so the sets keep only the longest
 * ones.  When there are too many, the shortest one is forgotten.  Its count of 0 stays,
 * so a scan of the refcounts finds it again.
 *
 * The scan goes over [scan, scan_end) and adds free clusters to stale.  An allocation
 * scans one refcount block at most, and only if the idle clusters are not enough and the
 * sets are not full.  The first scan goes over the counts that the file had when it was
 * opened.  After that, as long as there is such a range, the scan goes over [again,
 * again_end), which contains the clusters that were forgotten where it had already been.
 * It skips clusters that wait or are idle already, because their counts are 0, too.
 *
 * `forgotten' is the approximate number of clusters that are free and in no set.  It does
 * not include those that the first scan has not reached.
 *
 * Locks: the allocator's lock.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "space/alloc-impl.h"

/* The budget does not need more exact figures (bytes). */
#define CHARGE_STEP 4096u

int
alloc_check_no_metadata (struct alloc *a, uint64_t first, uint64_t n,
                         const char *what)
{
  const enum overlap_kind kind =
    first == 0 ? OVERLAP_HEADER
               : overlap_find (a->overlap, first << a->bits, n << a->bits);

  if (kind == OVERLAP_NONE)
    return 0;
  return report_refusal (EUCLEAN, "%s: corrupt refcounts: %" PRIu64 " clusters at offset "
                         "%" PRIu64 " would be %s, but the %s is there",
                         storage_path (a->file), n, first << a->bits, what,
                         overlap_name (kind));
}

static bool
is_full (const struct alloc *a)
{
  const size_t runs = a->zeroed.runs + a->stale.runs;

  if (a->budget && runs * FREESET_RUN_BYTES >=
      max64 (budget_share (a->budget) / 8, ALLOC_LEAST_IDLE))
    return true;
  return runs >= a->max_idle;
}

void
alloc_forget (struct alloc *a, uint64_t first, uint64_t end, uint64_t clusters)
{
  a->forgotten += clusters;
  if (first >= a->scan && end <= a->scan_end)
    return;
  if (a->again == a->again_end) {
    a->again = first;
    a->again_end = end;
  }
  a->again = min64 (a->again, first);
  a->again_end = max64 (a->again_end, end);
}

static void
forget (struct alloc *a, uint64_t first, uint64_t n)
{
  alloc_forget (a, first, first + n, n);
}

/* Would the run become part of one that is in SET? */
static bool
touches (const struct freeset *set, uint64_t first, uint64_t n)
{
  uint64_t f, len;

  return freeset_next (set, first - 1, first + n + 1, &f, &len);
}

/* Makes space in the sets for a run of N clusters.  False: all runs in them are at least
 * that long. */
static bool
make_room (struct alloc *a, uint64_t n)
{
  uint64_t first, len, other, other_len;
  struct freeset *set = &a->stale;

  if (!freeset_shortest (&a->stale, &first, &len))
    len = UINT64_MAX;
  if (freeset_shortest (&a->zeroed, &other, &other_len) && other_len < len) {
    set = &a->zeroed;
    first = other;
    len = other_len;
  }
  if (len >= n)
    return false;
  freeset_remove (set, first, len);     /* a whole run: cannot fail */
  forget (a, first, len);
  return true;
}

void
alloc_add_idle (struct alloc *a, uint64_t first, uint64_t n, bool zeroed)
{
  struct freeset *set = zeroed ? &a->zeroed : &a->stale;

  if (is_full (a) && !touches (set, first, n) && !make_room (a, n))
    forget (a, first, n);
  else if (freeset_add (set, first, n) == -1) {
    forget (a, first, n);
    a->starved = true;
  }
  alloc_charge (a);
}

void
alloc_set_max_idle (struct alloc *a, size_t runs)
{
  a->max_idle = runs;
}

void
alloc_charge (struct alloc *a)
{
  const uint64_t now =
    (a->zeroed.runs + a->stale.runs + a->held.runs) * FREESET_RUN_BYTES +
    a->freed_items * ALLOC_ITEM_BYTES;

  if (a->budget && (now > a->charged + CHARGE_STEP || now + CHARGE_STEP < a->charged)) {
    budget_hold (a->budget, now - a->charged);
    a->charged = now;
  }
}

static uint64_t
known_clusters (const struct alloc *a)
{
  return a->zeroed.clusters + a->stale.clusters;
}

uint64_t
alloc_idle_clusters (const struct alloc *a)
{
  return known_clusters (a) + a->forgotten;
}

void
alloc_idle_close (struct alloc *a)
{
  freeset_clear (&a->zeroed);
  freeset_clear (&a->stale);
  freeset_clear (&a->held);
  if (a->budget)
    budget_hold (a->budget, -a->charged);
}

void
alloc_doubt_zeros (struct alloc *a)
{
  uint64_t first, n;
  LOCK_FOR_BLOCK (&a->lock);

  while (freeset_find (&a->zeroed, 1, &first, &n)) {
    freeset_remove (&a->zeroed, first, n);      /* a whole run: cannot fail */
    alloc_add_idle (a, first, n, false);
  }
  /* The reserve, which would have to be looked at, too, is empty. */
  a->fresh = a->regular ? max64 (a->fresh, div_up (storage_size (a->file),
                                                   UINT64_C (1) << a->bits)) : UINT64_MAX;
  a->zeros = a->zeros_end = 0;
}

/* --- taking --- */

/* Takes up to N clusters from the run that begins at FIRST. */
static int
take_from (struct alloc *a, struct freeset *set, uint64_t first, uint64_t n,
           struct alloc_run *run)
{
  if (alloc_check_no_metadata (a, first, n, "allocated") == -1 ||
      refcount_claim (a->refcounts, first, n) == -1)
    return -1;
  freeset_remove (set, first, n);       /* from its start: cannot fail */
  alloc_trace (a, "taken from free ones", first, n);
  *run = (struct alloc_run) {
    .host = first << a->bits, .clusters = n, .zeroed = set == &a->zeroed,
  };
  return 1;
}

int
alloc_take_idle (struct alloc *a, uint64_t least, uint64_t n,
                 struct alloc_run *run)
{
  uint64_t first, len;

  if (freeset_find (&a->zeroed, least, &first, &len))
    return take_from (a, &a->zeroed, first, min64 (n, len), run);
  if (freeset_find (&a->stale, least, &first, &len))
    return take_from (a, &a->stale, first, min64 (n, len), run);
  return 0;
}

int
alloc_take_longest (struct alloc *a, uint64_t least, uint64_t n,
                    struct alloc_run *run)
{
  const uint64_t longest = max64 (freeset_longest (&a->zeroed),
                                  freeset_longest (&a->stale));

  if (longest == 0 || longest < least)
    return 0;
  return alloc_take_idle (a, min64 (longest, n), n, run);
}

/* --- the scan --- */

void
alloc_next_known (struct alloc *a, uint64_t from, uint64_t to, uint64_t *first,
                  uint64_t *len)
{
  const struct freeset *sets[] = { &a->zeroed, &a->stale, &a->held };
  uint64_t f, l;

  *first = to;
  *len = 0;
  for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
    if (freeset_next (sets[i], from, to, &f, &l) && f < *first) {
      *first = f;
      *len = l;
    }
}

/* Something in [first, first+n) is free: adds the parts that are not known to stale. */
static void
found (struct alloc *a, uint64_t first, uint64_t n)
{
  const uint64_t end = first + n;
  uint64_t known, len;

  for (; first < end; first = known + len) {
    alloc_next_known (a, first, end, &known, &len);
    if (known > first) {
      a->forgotten -= min64 (a->forgotten, known - first);
      alloc_add_idle (a, first, known - first, false);
    }
  }
}

/* Starts again where clusters were forgotten.  False: there is no such range. */
static bool
scan_again (struct alloc *a)
{
  if (a->again == a->again_end) {
    a->forgotten = 0;
    return false;
  }
  a->scan = a->again;
  a->scan_end = a->again_end;
  a->again = a->again_end = 0;
  return true;
}

int
alloc_scan_step (struct alloc *a)
{
  const uint64_t per_block = refcount_block_clusters (a->refcounts);
  const uint64_t known = known_clusters (a);
  uint64_t first, n, limit;
  int r;

  a->starved = false;
  if (a->crowd.clusters > 0 || is_full (a) ||
      (a->scan >= a->scan_end && !scan_again (a)))
    return 0;
  limit = min64 (a->scan_end, round_down (a->scan, per_block) + per_block);
  while (a->scan < limit && !is_full (a)) {
    r = refcount_find_free (a->refcounts, a->scan, limit, UINT64_MAX,
                            &first, &n, &a->scan);
    if (r == -1)
      return -1;
    if (r == 1)
      found (a, first, n);
  }
  a->starved = a->starved && known_clusters (a) <= known;
  return a->starved ? 0 : 1;
}

void
alloc_idle_cut (struct alloc *a, uint64_t end)
{
  a->scan_end = min64 (a->scan_end, end);
  a->again_end = min64 (a->again_end, end);
  a->again = min64 (a->again, a->again_end);
}
