/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which request may change these clusters (or sectors) now?
 *
 * The main use is the mapping of guest clusters.  A request that changes the mapping of
 * a guest cluster (an allocating write, zero, trim) first claims the guest cluster here,
 * and then looks up the mapping again.  The mapping that it finds under its claim does
 * not change until it releases the claim.  Writes to clusters that are allocated and not
 * shared change no mapping and make no claim.
 *
 * Claims are kept in the order in which they were made.  A request waits only for
 * earlier claims on the same clusters, so no request starves, and, with one claim for
 * each thread, there is no deadlock.  The list is as long as the number of requests in
 * flight, so it is cheap to walk.
 *
 * guestdata.c uses a second table, for the sectors of encrypted images.
 *
 * Locks: `lock' guards the list.  It comes first in the order of locks, and nothing is
 * called while it is held.
 */

#include <config.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/rangelock.h"
#include "util/memory.h"

struct rangelock {
  pthread_mutex_t lock;
  pthread_cond_t released;
  unsigned waiting;                     /* guarded by lock */
  struct rangelock_claim *head, **tail;  /* guarded by lock */
};

struct rangelock *
rangelock_new (void)
{
  struct rangelock *t = memory_new (1, sizeof *t);

  if (t == NULL)
    return NULL;
  pthread_mutex_init (&t->lock, NULL);
  pthread_cond_init (&t->released, NULL);
  t->tail = &t->head;
  return t;
}

void
rangelock_free (struct rangelock *t)
{
  if (t == NULL)
    return;
  pthread_cond_destroy (&t->released);
  pthread_mutex_destroy (&t->lock);
  free (t);
}

static bool
must_wait (const struct rangelock *t, const struct rangelock_claim *claim)
{
  const struct rangelock_claim *c;

  for (c = t->head; c != claim; c = c->next)
    if (c->first <= claim->last && claim->first <= c->last &&
        !(c->shared && claim->shared))
      return true;
  return false;
}

/* Called with the lock held. */
static void
append (struct rangelock *t, struct rangelock_claim *claim, uint64_t first,
        uint64_t last, bool shared)
{
  claim->shared = shared;
  claim->first = first;
  claim->last = last;
  claim->next = NULL;
  *t->tail = claim;
  t->tail = &claim->next;
}

/* Called with the lock held. */
static void
take_out (struct rangelock *t, struct rangelock_claim *claim)
{
  struct rangelock_claim **p;

  for (p = &t->head; *p != claim; p = &(*p)->next)
    ;
  *p = claim->next;
  if (t->tail == &claim->next)
    t->tail = p;
}

static void
make_claim (struct rangelock *t, struct rangelock_claim *claim,
            uint64_t first, uint64_t last, bool shared)
{
  LOCK_FOR_BLOCK (&t->lock);

  append (t, claim, first, last, shared);
  while (must_wait (t, claim)) {
    t->waiting++;
    pthread_cond_wait (&t->released, &t->lock);
    t->waiting--;
  }
}

void
rangelock_claim (struct rangelock *t, struct rangelock_claim *claim,
                 uint64_t first, uint64_t last)
{
  make_claim (t, claim, first, last, false);
}

void
rangelock_claim_shared (struct rangelock *t, struct rangelock_claim *claim,
                        uint64_t first, uint64_t last)
{
  make_claim (t, claim, first, last, true);
}

bool
rangelock_try (struct rangelock *t, struct rangelock_claim *claim, uint64_t first,
               uint64_t last)
{
  LOCK_FOR_BLOCK (&t->lock);

  append (t, claim, first, last, false);
  if (!must_wait (t, claim))
    return true;
  take_out (t, claim);
  return false;
}

void
rangelock_release (struct rangelock *t, struct rangelock_claim *claim)
{
  LOCK_FOR_BLOCK (&t->lock);

  take_out (t, claim);
  if (t->waiting)
    pthread_cond_broadcast (&t->released);
}
