/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do compressed clusters share host clusters?
 *
 * Specification: "Compressed Clusters Descriptor" (a host cluster has one reference for
 * each compressed cluster that lies in it, wholly or in part).
 *
 *      pack.at                      pack.end
 *         v                            v
 *   ######.......|..........|..........|
 *   in use, its   unused: the count is 1, and no
 *   count = users pointer was ever published
 *
 * Streams of bytes are placed one after the other.  Their clusters come from the
 * allocator in small runs, so that streams lie together and do not fragment data that is
 * not compressed.  The count of 1 that a cluster has then belongs to the first stream in
 * it; each further stream increments it (R1: before the caller publishes the pointer).
 * If the count cannot go any higher (with 1-bit refcounts it never can), the rest of the
 * cluster stays unused, and the next cluster is used.
 *
 * When all streams in the cluster at pack.at have been freed, its count is 0 and it is an
 * idle cluster like any other (R4), so packing must not continue in it.  Therefore code
 * that makes clusters free calls alloc_bytes_forget.  While the cluster has one user
 * left, it cannot be allocated again, and the bytes from pack.at on have not been used
 * since it was allocated.
 *
 * Unused clusters are given back when the disk comes to rest; none of their bytes was
 * ever written.
 *
 * Locks: the allocator's lock.
 */

#include <config.h>

#include <assert.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "space/alloc-impl.h"

/* Clusters for packing are taken in runs of this many bytes. */
#define PACK_RUN (UINT64_C (256) << 10)
#define LASTING_PACK_RUN (UINT64_C (64) << 10)  /* if leaks_last */

/* Adds clusters at pack.end, or starts a new run in another place. */
static int
extend (struct alloc *a)
{
  const uint64_t bytes = a->leaks_last ? LASTING_PACK_RUN : PACK_RUN;
  struct alloc_run run;

  if (alloc_take (a, max64 (bytes >> a->bits, 1), &run) == -1)
    return -1;
  /* No stream is longer than a cluster, so the rest is part of a cluster that is in use:
   * there is nothing to give back. */
  assert (a->pack.end - a->pack.at < UINT64_C (1) << a->bits);
  if (run.host != a->pack.end)
    a->pack.at = run.host;
  a->pack.end = run.host + (run.clusters << a->bits);
  a->pack.zeroed = run.zeroed;
  a->stats.allocated += run.clusters;
  alloc_trace (a, "for compressed data", run.host >> a->bits, run.clusters);
  return 0;
}

/* The clusters that a stream touches. */
static void
touched (const struct alloc *a, uint64_t host, uint64_t bytes,
         uint64_t *first, uint64_t *n)
{
  *first = host >> a->bits;
  *n = ((host + bytes - 1) >> a->bits) - *first + 1;
}

static int
place (struct alloc *a, uint64_t bytes, uint64_t *host)
{
  uint64_t count;

  if (alloc_bytes_in_use (a)) {
    if (refcount_get (a->refcounts, a->pack.at >> a->bits, &count) == -1)
      return -1;
    if (count == refcount_max (a->refcounts))
      alloc_bytes_leave_cluster (a);
  }
  if (a->pack.end - a->pack.at < bytes && extend (a) == -1)
    return -1;
  if (alloc_bytes_in_use (a) &&
      refcount_inc (a->refcounts, a->pack.at >> a->bits, 1) == -1)
    return -1;
  *host = a->pack.at;
  a->pack.at += bytes;
  return 0;
}

/* The caller holds the lock.  If a cluster had earlier users, readers may still know it
 * from them (R4 b), so clusters that become free here wait for their grace period, too.
 * A failure has been reported; the clusters are leaked. */
static void
take_back (struct alloc *a, const struct alloc_piece *pieces, unsigned n)
{
  uint64_t first, clusters;

  while (n-- > 0) {
    touched (a, pieces[n].host, pieces[n].bytes, &first, &clusters);
    alloc_release (a, first, clusters);
  }
}

int
alloc_bytes (struct alloc *a, struct alloc_piece *pieces, unsigned n)
{
  unsigned i;
  LOCK_FOR_BLOCK (&a->lock);

  for (i = 0; i < n; i++) {
    assert (pieces[i].bytes > 0 &&
            pieces[i].bytes <= UINT64_C (1) << a->bits);
    if (place (a, pieces[i].bytes, &pieces[i].host) == -1) {
      KEEP_ERRNO_FOR_BLOCK;

      take_back (a, pieces, i);
      return -1;
    }
  }
  return 0;
}

void
alloc_abort_bytes (struct alloc *a, const struct alloc_piece *pieces, unsigned n)
{
  KEEP_ERRNO_FOR_BLOCK;
  LOCK_FOR_BLOCK (&a->lock);

  take_back (a, pieces, n);
}

void
alloc_bytes_give_back (struct alloc *a)
{
  const uint64_t cs = UINT64_C (1) << a->bits;
  const uint64_t fresh = round_up (a->pack.at, cs);

  if (fresh < a->pack.end) {
    alloc_drop_run (a, fresh >> a->bits, (a->pack.end - fresh) >> a->bits,
                    a->pack.zeroed);
    a->stats.allocated -= (a->pack.end - fresh) >> a->bits;
  }
  /* Later streams may fill the cluster that is now in use. */
  a->pack.end = fresh;
}
