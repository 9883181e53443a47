/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters durably contain zeros where no data is mapped?
 *
 * Specification: "Extended L2 Entries".
 *
 * A write of a few subclusters allocates a whole host cluster, and leaves the rest of it
 * for later.  If that cluster had never been used and was settled (see alloc.h), the rest
 * still reads as zeros, also after a crash, until something is written there.  A writer
 * that knows this need not fill the edges of the next subcluster with zeros, and need not
 * make it durable before the entry that points to it (R3).
 *
 * It records clusters that were allocated since the image was opened, a few thousand
 * of them: there is one place for each hash of a cluster number, and the newest cluster
 * takes it.  It is harmless to forget a cluster.  Callers must report what makes a
 * cluster no longer known: it is allocated again, or a write failed halfway.  (A part of
 * a host cluster that contained data is never without data again in the same host
 * cluster: it becomes zeros, or the whole cluster is freed.)
 *
 * Locks: none.  Places are atomic.  A thread that adds, removes or asks about a cluster
 * holds a claim on the guest cluster that uses it, which orders these calls
 * (rangelock.c).
 */

#include <config.h>

#include <stdatomic.h>
#include <stdlib.h>

#include "util/memory.h"
#include "request/knownzero.h"

#define PLACES 4096             /* a power of two; 32 KiB */

struct knownzero {
  _Atomic uint64_t places[PLACES];      /* number of a cluster; 0: none */
};

struct knownzero *
knownzero_new (void)
{
  return memory_new (1, sizeof (struct knownzero));
}

void
knownzero_free (struct knownzero *f)
{
  free (f);
}

/* Adjacent clusters have different places. */
static inline unsigned
place_of (uint64_t cluster)
{
  return cluster % PLACES;
}

void
knownzero_add (struct knownzero *f, uint64_t cluster)
{
  atomic_store_explicit (&f->places[place_of (cluster)], cluster,
                         memory_order_relaxed);
}

void
knownzero_remove (struct knownzero *f, uint64_t first, uint64_t n)
{
  uint64_t i, mine;

  for (i = first; i < first + n; i++) {
    /* The place may have another cluster, or get another one now. */
    mine = i;
    atomic_compare_exchange_strong_explicit (&f->places[place_of (i)], &mine, 0,
                                             memory_order_relaxed,
                                             memory_order_relaxed);
  }
}

bool
knownzero_has (const struct knownzero *f, uint64_t first, uint64_t n)
{
  uint64_t i;

  for (i = first; i < first + n; i++)
    if (atomic_load_explicit (&f->places[place_of (i)],
                              memory_order_relaxed) != i)
      return false;
  return true;
}
