/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When is the space of zeroed clusters in an external data file freed?
 *
 * As late as that of clusters in the image (allocdefer.c).  Until the entry that has lost
 * its data is durable, a crash restores the old entry; and until the last request that
 * began before has ended, a request may read through the old entry.  Both would find a
 * hole, which with encryption is not even zeros, but noise.
 *
 *   pending      added: the data has gone from memory
 *      |         discards_take
 *   taken        by the checkpoint that makes that durable
 *      |         discards_done
 *   durable      later checkpoints add to it while other clusters are waiting
 *      |         begin_waiting
 *   waiting      for all requests that began before (epoch.c)
 *      |         discards_reap
 *   (a hole)
 *
 * But such a cluster is not a deferred free: its place never changes, and the guest may
 * write there again at any moment.  A cluster that gets data again is removed from all
 * sets.  So the mapping need not be looked at: all clusters that are left are
 * without data, and were when the checkpoint ran.  Both changes, and the punch, happen
 * under the claim on the guest cluster, which orders them:
 *
 *   write, then punch    the punch finds the cluster in no set
 *   punch, then write    the data is written over the hole, and is durable before the
 *                        entry that points to it (R3); until then the entry says "zeros"
 *
 * Writes in place make no claim.  Such a writer has found data, so it began either before
 * the cluster was discarded, and the cluster waits for it, or after it was removed.
 *
 * This module may forget discarded clusters; then their space stays allocated.  MAX_RUNS
 * bounds the memory, and a crash forgets all of it.
 *
 * Locks: `lock', taken after the claims; nothing is called while it is held.
 */

#include <config.h>

#include <pthread.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "space/freeset.h"
#include "request/discards.h"

/* In all sets together; each run takes about 64 bytes. */
#define MAX_RUNS 16384

/* More than this in the pending set is worth a checkpoint. */
#define CROWDED_RUNS 1024
#define CROWDED_BYTES (UINT64_C (128) << 20)

/* Writers may have to wait for one punch, of at most this size. */
#define PIECE_BYTES (UINT64_C (64) << 20)

enum stage { PENDING, TAKEN, DURABLE, WAITING, STAGES };

struct discards {
  struct storage *data;
  struct rangelock *rangelock;
  struct epoch *epoch;
  unsigned bits;
  uint64_t disk_size;           /* bytes */

  pthread_mutex_t lock;         /* guards all fields below */
  struct freeset sets[STAGES];  /* of guest clusters; no cluster is in two of them */
  uint64_t durable_stamp, waiting_stamp;        /* of the newest clusters in these sets */
  uint64_t punching;            /* clusters being punched, which are in no set */
};

struct discards *
discards_new (struct storage *data, struct rangelock *rangelock,
              struct epoch *epoch, unsigned cluster_bits, uint64_t disk_size)
{
  struct discards *v = memory_new (1, sizeof *v);

  if (v == NULL)
    return NULL;
  v->data = data;
  v->rangelock = rangelock;
  v->epoch = epoch;
  v->bits = cluster_bits;
  v->disk_size = disk_size;
  pthread_mutex_init (&v->lock, NULL);
  return v;
}

void
discards_free (struct discards *v)
{
  if (v == NULL)
    return;
  for (enum stage i = 0; i < STAGES; i++)
    freeset_clear (&v->sets[i]);
  pthread_mutex_destroy (&v->lock);
  free (v);
}

/* --- the sets; with the lock held --- */

static size_t
total_runs (const struct discards *v)
{
  size_t n = 0;

  for (enum stage i = 0; i < STAGES; i++)
    n += v->sets[i].runs;
  return n;
}

/* Removes clusters [first, first+n) from S.  If a run cannot be split, the rest of it
 * goes too. */
static void
take_out (struct discards *v, struct freeset *s, uint64_t first, uint64_t n)
{
  uint64_t start, len;

  if (total_runs (v) < MAX_RUNS && freeset_remove (s, first, n) == 0)
    return;
  while (freeset_next (s, first, first + n, &start, &len)) {
    freeset_next (s, start, UINT64_MAX, &start, &len);
    freeset_remove (s, start, len);
  }
}

/* Moves all of FROM to TO.  Runs for which there is no memory are forgotten. */
static void
move_all (struct freeset *from, struct freeset *to)
{
  uint64_t first, n, at = 0;

  if (to->runs == 0) {
    const struct freeset empty = *to;

    *to = *from;
    *from = empty;
    return;
  }
  for (; freeset_next (from, at, UINT64_MAX, &first, &n); at = first + n)
    freeset_add (to, first, n);
  freeset_clear (from);
}

/* --- for requests --- */

void
discards_add (struct discards *v, uint64_t first, uint64_t n)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);

  freeset_add (&v->sets[PENDING], first, n);
  if (total_runs (v) > MAX_RUNS)
    take_out (v, &v->sets[PENDING], first, n);
}

void
discards_remove (struct discards *v, uint64_t first, uint64_t n)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);

  for (enum stage i = 0; i < STAGES; i++)
    take_out (v, &v->sets[i], first, n);
}

uint64_t
discards_clusters (struct discards *v)
{
  uint64_t n;

  if (v == NULL)
    return 0;
  LOCK_FOR_BLOCK (&v->lock);
  n = v->punching;
  for (enum stage i = 0; i < STAGES; i++)
    n += v->sets[i].clusters;
  return n;
}

bool
discards_crowded (struct discards *v)
{
  if (v == NULL)
    return false;
  LOCK_FOR_BLOCK (&v->lock);
  return v->sets[PENDING].runs > CROWDED_RUNS ||
    v->sets[PENDING].clusters > CROWDED_BYTES >> v->bits;
}

/* --- for the checkpoint --- */

void
discards_take (struct discards *v)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);
  move_all (&v->sets[PENDING], &v->sets[TAKEN]);
}

void
discards_done (struct discards *v, bool ok)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);
  if (!ok) {
    move_all (&v->sets[TAKEN], &v->sets[PENDING]);
    return;
  }
  move_all (&v->sets[TAKEN], &v->sets[DURABLE]);
  v->durable_stamp = epoch_stamp (v->epoch);
}

/* Clusters that have become durable begin to wait only when the set of waiting ones is
 * empty: so the stamp of a waiting cluster never becomes younger, and none waits for
 * ever. */
static bool
begin_waiting (struct discards *v)
{
  LOCK_FOR_BLOCK (&v->lock);

  if (v->sets[WAITING].runs > 0 || v->sets[DURABLE].runs == 0)
    return false;
  move_all (&v->sets[DURABLE], &v->sets[WAITING]);
  v->waiting_stamp = v->durable_stamp;
  return true;
}

/* Finds the first piece from AT on that has waited long enough. */
static bool
next_piece (struct discards *v, uint64_t at, uint64_t *first, uint64_t *n)
{
  LOCK_FOR_BLOCK (&v->lock);

  if (!freeset_next (&v->sets[WAITING], at, UINT64_MAX, first, n) ||
      !epoch_passed (v->epoch, v->waiting_stamp))
    return false;
  *n = min64 (*n, max64 (PIECE_BYTES >> v->bits, 1));
  return true;
}

/* Punches those clusters of [first, end) that are still waiting.  Under the claim on
 * them. */
static void
punch (struct discards *v, uint64_t first, uint64_t end)
{
  uint64_t n, from, to;

  for (;; first += n) {
    {
      LOCK_FOR_BLOCK (&v->lock);
      if (!freeset_next (&v->sets[WAITING], first, end, &first, &n))
        return;
      take_out (v, &v->sets[WAITING], first, n);
      v->punching += n;
    }
    from = first << v->bits;
    to = min64 (min64 ((first + n) << v->bits, v->disk_size),
                storage_size (v->data));
    if (from < to)
      storage_discard (v->data, from, to - from);
    {
      LOCK_FOR_BLOCK (&v->lock);
      v->punching -= n;
    }
  }
}

void
discards_reap (struct discards *v)
{
  struct rangelock_claim claim;
  uint64_t at, first, n;

  if (v == NULL)
    return;
  do
    for (at = 0; next_piece (v, at, &first, &n); at = first + n)
      /* (A thread that has a claim there may be about to write.) */
      if (rangelock_try (v->rangelock, &claim, first, first + n - 1)) {
        punch (v, first, first + n);
        rangelock_release (v->rangelock, &claim);
      }
  while (begin_waiting (v));
}
