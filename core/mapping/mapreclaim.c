/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which slice is evicted when too much memory is in use?
 *
 * Part of map.c.  A hand moves round the shards, and in each shard round the evictable
 * slices.  It packs raw slices, spares packed ones that were used since it last passed,
 * and evicts the others (CLOCK).  Each look evicts, packs, or clears the mark of a hit:
 * slices that cannot be evicted are not in the queue (mapmem.c).
 *
 * Locks: the lock of one shard at a time, for a few slices.  Packing and freeing happen
 * without it.
 */

#include <config.h>

#include <stdlib.h>

#include "util/cleanup.h"
#include "mapping/map-impl.h"

#define SWEEP 32                /* slices per turn */

/* Evicts what it can of the next few slices, until memory is below the limit.  If it
 * meets a raw slice it stops there, makes it busy and returns it; otherwise it returns
 * NULL.  *VAIN is the number of looks since it last evicted or packed something. */
static struct map_slice *
sweep (struct map *map, struct shard *shard, uint64_t *vain)
{
  struct map_slice *gone = NULL, *raw = NULL, *s;
  unsigned looks;

  {
    LOCK_FOR_BLOCK (&shard->lock);

    for (looks = 0; looks < SWEEP && raw == NULL && map_over_limit (map); looks++) {
      s = shard->queue_head;
      if (s == NULL)
        break;
      ++*vain;
      if (s->form == SLICE_RAW) {
        s->busy = true;
        map_account (s);
        raw = s;
        *vain = 0;
      }
      else if (s->referenced) {
        s->referenced = false;
        map_requeue (s);
      }
      else {
        map_trace (s->space, "evicted", s->index, 1);
        map_unlink (shard, s);
        shard->evictions++;
        s->next = gone;
        gone = s;
        *vain = 0;
      }
    }
  }                             /* the lock is released here */
  atomic_fetch_add_explicit (&map->looks, looks, memory_order_relaxed);
  map_free_slices (map, gone);
  return raw;
}

void
map_pack_slice (struct map_slice *s)
{
  /* No lock is needed: no thread edits a slice that is not pinned, and no thread pins it
   * while it is busy. */
  struct map *map = s->space->map;
  struct shard *shard = map_shard (s->space, s->index);
  struct raw *raw = s->raw;
  struct pack *p = map_pack_raw (s->space, raw->data);

  map_trace (s->space, p ? "packed" : "evicted: no memory to pack it", s->index, 1);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    if (p) {
      s->pack = p;
      s->form = SLICE_PACK;     /* last: see map.c */
      shard->packs++;
      map_not_busy (shard, s);
    }
    else {
      /* The slice can be loaded again when there is memory. */
      map_give_up (shard, s);
      shard->evictions++;
    }
  }
  free (raw);
  if (p == NULL) {
    map_await_lookups (map);
    free (s);
  }
}

/* The next shard that has evictable slices, or had some just now. */
static unsigned
next_evictable (struct map *map)
{
  const unsigned hand = atomic_load (&map->hand);
  const uint64_t evictable = atomic_load (&map->evictable);
  const uint64_t ahead = evictable >> hand << hand;
  const unsigned next = evictable == 0 ? hand
    : (unsigned) __builtin_ctzll (ahead ? ahead : evictable);

  atomic_store (&map->hand, (next + 1) % MAP_SHARDS);
  return next;
}

void
map_reclaim (struct map *map)
{
  KEEP_ERRNO_FOR_BLOCK;
  uint64_t vain = 0;

  /* Twice round, because the first time only clears the marks of hits; and once more,
   * because short queues get more than their share of looks.  If nothing was found by
   * then, hits are faster than the hand. */
  while (map_over_limit (map) && vain <= 3 * atomic_load (&map->buckets)) {
    const unsigned i = next_evictable (map);
    struct map_slice *raw = sweep (map, &map->shards[i], &vain);

    if (raw)
      map_pack_slice (raw);
  }
}
