/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When is the space of erased clusters in an external data file given back?
 *
 * As late as that of clusters in the image (quarantine.c): until the entry that has lost
 * its data is durable, a crash brings the old one back, and until the last request
 * has ended that began before, somebody may read through it.  Both would find a hole.
 * With encryption that is not even zeros, but noise.
 *
 *   pending      added: the data have gone from memory
 *      |         vacant_take
 *   taken        by the checkpoint that makes that durable
 *      |         vacant_done
 *   durable      joined by what later checkpoints bring, while others are
 *      |         waiting
 *   waiting      for all requests that began before (grace.c)
 *      |         vacant_reap
 *   (a hole)
 *
 * But such a cluster is not quarantined: it has its place for good, and the guest may
 * write there again at any moment.  What has data again is taken out of all sets, so it
 * needs no look at the mapping to know that what is left is vacant, and was when the
 * checkpoint ran.  Both changes, and the punch, are made under the claim on the guest
 * cluster, which orders them:
 *
 *   write, then punch    the punch finds the cluster in no set
 *   punch, then write    the data lie over the hole, and are durable before the entry
 *                        that names them (R3); until then it says "zeros"
 *
 * Writers in place make no claim.  They have found data, so they either began before
 * the cluster was vacant, and it waits for them, or after it was taken out.
 *
 * All that may be lost is memory of what is vacant: then space stays taken.  It is
 * bounded by MAX_RUNS, and a crash forgets all of it.
 *
 * Locks: `lock', after the claims; nothing is called while it is held.
 */

#include <config.h>

#include <pthread.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "space/freeset.h"
#include "request/vacant.h"

/* In all sets; about 64 bytes each. */
#define MAX_RUNS 16384

/* Pending: so much makes a checkpoint worth its while. */
#define CROWDED_RUNS 1024
#define CROWDED_BYTES (UINT64_C (128) << 20)

/* Writers wait for the punch of at most so much. */
#define PIECE_BYTES (UINT64_C (64) << 20)

enum stage { PENDING, TAKEN, DURABLE, WAITING, STAGES };

struct vacant {
  struct storage *data;
  struct inflight *inflight;
  struct grace *grace;
  unsigned bits;
  uint64_t disk_size;           /* bytes */

  pthread_mutex_t lock;         /* guards all that follows */
  struct freeset sets[STAGES];  /* of guest clusters; none is in two of them */
  uint64_t durable_stamp, waiting_stamp;        /* of the newest in these */
  uint64_t punching;            /* clusters that are in no set any more */
};

struct vacant *
vacant_new (struct storage *data, struct inflight *inflight,
            struct grace *grace, unsigned cluster_bits, uint64_t disk_size)
{
  struct vacant *v = calloc (1, sizeof *v);

  if (v == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  v->data = data;
  v->inflight = inflight;
  v->grace = grace;
  v->bits = cluster_bits;
  v->disk_size = disk_size;
  pthread_mutex_init (&v->lock, NULL);
  return v;
}

void
vacant_free (struct vacant *v)
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
total_runs (const struct vacant *v)
{
  size_t n = 0;

  for (enum stage i = 0; i < STAGES; i++)
    n += v->sets[i].runs;
  return n;
}

/* Where a run can't be split, what follows in it goes as well. */
static void
take_out (struct vacant *v, struct freeset *s, uint64_t first, uint64_t n)
{
  uint64_t start, len;

  if (total_runs (v) < MAX_RUNS && freeset_remove (s, first, n) == 0)
    return;
  while (freeset_next (s, first, first + n, &start, &len)) {
    freeset_next (s, start, UINT64_MAX, &start, &len);
    freeset_remove (s, start, len);
  }
}

/* All of FROM goes to TO; what there is no memory for is forgotten. */
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

/* --- what requests do --- */

void
vacant_add (struct vacant *v, uint64_t first, uint64_t n)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);

  freeset_add (&v->sets[PENDING], first, n);
  if (total_runs (v) > MAX_RUNS)
    take_out (v, &v->sets[PENDING], first, n);
}

void
vacant_remove (struct vacant *v, uint64_t first, uint64_t n)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);

  for (enum stage i = 0; i < STAGES; i++)
    take_out (v, &v->sets[i], first, n);
}

uint64_t
vacant_clusters (struct vacant *v)
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
vacant_crowded (struct vacant *v)
{
  if (v == NULL)
    return false;
  LOCK_FOR_BLOCK (&v->lock);
  return v->sets[PENDING].runs > CROWDED_RUNS ||
    v->sets[PENDING].clusters > CROWDED_BYTES >> v->bits;
}

/* --- what the checkpoint does --- */

void
vacant_take (struct vacant *v)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);
  move_all (&v->sets[PENDING], &v->sets[TAKEN]);
}

void
vacant_done (struct vacant *v, bool ok)
{
  if (v == NULL)
    return;
  LOCK_FOR_BLOCK (&v->lock);
  if (!ok) {
    move_all (&v->sets[TAKEN], &v->sets[PENDING]);
    return;
  }
  move_all (&v->sets[TAKEN], &v->sets[DURABLE]);
  v->durable_stamp = grace_stamp (v->grace);
}

/* What has become durable begins to wait, once the others have gone: then no stamp is
 * ever made younger, and nothing waits for ever. */
static bool
begin_waiting (struct vacant *v)
{
  LOCK_FOR_BLOCK (&v->lock);

  if (v->sets[WAITING].runs > 0 || v->sets[DURABLE].runs == 0)
    return false;
  move_all (&v->sets[DURABLE], &v->sets[WAITING]);
  v->waiting_stamp = v->durable_stamp;
  return true;
}

/* The first piece from AT on that has waited long enough. */
static bool
next_piece (struct vacant *v, uint64_t at, uint64_t *first, uint64_t *n)
{
  LOCK_FOR_BLOCK (&v->lock);

  if (!freeset_next (&v->sets[WAITING], at, UINT64_MAX, first, n) ||
      !grace_passed (v->grace, v->waiting_stamp))
    return false;
  *n = min64 (*n, max64 (PIECE_BYTES >> v->bits, 1));
  return true;
}

/* Punches what is still waiting of [first, end).  Under the claim on it. */
static void
punch (struct vacant *v, uint64_t first, uint64_t end)
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
      storage_punch (v->data, from, to - from);
    {
      LOCK_FOR_BLOCK (&v->lock);
      v->punching -= n;
    }
  }
}

void
vacant_reap (struct vacant *v)
{
  struct inflight_claim claim;
  uint64_t at, first, n;

  if (v == NULL)
    return;
  do
    for (at = 0; next_piece (v, at, &first, &n); at = first + n)
      /* (Who is changing the mapping there now may be about to write.) */
      if (inflight_try (v->inflight, &claim, first, first + n - 1)) {
        punch (v, first, first + n);
        inflight_release (v->inflight, &claim);
      }
  while (begin_waiting (v));
}
