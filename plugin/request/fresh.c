/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters are zeros, durably, where no data are mapped?
 *
 * Specification: "Extended L2 Entries".
 *
 * A write of a few subclusters takes a whole host cluster, and leaves the rest of it for
 * later.  If that cluster had never been used and was settled (see alloc.h), the rest
 * still reads as zeros and will after a crash, until something is written there.  Who
 * knows that needs neither to fill in the edges of the next subcluster with zeros nor
 * to make it durable before the entry that names it (R3).
 *
 * Known are clusters that were handed out since the image was opened, a few thousand of
 * them: one place for each hash of a number, and the newest keeps it.  To
 * forget one is harmless.  What makes it wrong must be told: the cluster is
 * handed out again, or a write failed half-way.  (What was data once is never without
 * data again in the same host cluster: it becomes zeros, or all of the cluster goes.)
 *
 * Locks: none.  Places are atomic; who adds, removes or asks about a cluster holds
 * a claim on the guest cluster that has it, which orders them (inflight.c).
 */

#include <config.h>

#include <stdatomic.h>
#include <stdlib.h>

#include "util/report.h"
#include "request/fresh.h"

#define PLACES 4096             /* a power of two; 32 KiB */

struct fresh {
  _Atomic uint64_t places[PLACES];      /* a cluster's number; 0: none */
};

struct fresh *
fresh_new (void)
{
  struct fresh *f = calloc (1, sizeof *f);

  if (f == NULL)
    nbdkit_error ("calloc: %m");
  return f;
}

void
fresh_free (struct fresh *f)
{
  free (f);
}

/* Clusters that follow one another don't get in each other's way. */
static inline unsigned
place_of (uint64_t cluster)
{
  return cluster % PLACES;
}

void
fresh_add (struct fresh *f, uint64_t cluster)
{
  atomic_store_explicit (&f->places[place_of (cluster)], cluster,
                         memory_order_relaxed);
}

void
fresh_remove (struct fresh *f, uint64_t first, uint64_t n)
{
  uint64_t i, mine;

  for (i = first; i < first + n; i++) {
    /* Somebody else's may be there, and may come there now. */
    mine = i;
    atomic_compare_exchange_strong_explicit (&f->places[place_of (i)], &mine, 0,
                                             memory_order_relaxed,
                                             memory_order_relaxed);
  }
}

bool
fresh_has (const struct fresh *f, uint64_t first, uint64_t n)
{
  uint64_t i;

  for (i = first; i < first + n; i++)
    if (atomic_load_explicit (&f->places[place_of (i)],
                              memory_order_relaxed) != i)
      return false;
  return true;
}
