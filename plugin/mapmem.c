/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory do all slices hold, and which of them goes when it is too much?
 *
 * Part of map.c: the budget.
 *
 * map.bytes counts what is really held, with what malloc adds: every block is counted
 * when it gets its place in the map.  Whoever goes beyond the limit reclaims: a hand
 * goes round the shards, and in each shard round the slices that are evictable.  It packs
 * raw slices, forgives packed ones that were used since it came by last, and evicts the
 * others (CLOCK).  It takes the lock of one shard at a time, for a few slices; packing
 * and freeing is done without it.
 *
 * However low the limit is, what the two largest slices so far needed stays (but no
 * more than MOST_LEAST: what slices need is up to the image).  Without that each
 * look-up would read.
 *
 * Slices that are pinned, dirty, being written or busy are not evictable.  The others
 * of a shard are in its queue, in the order in which the hand will come to them, and
 * map.ripe says which shards have any.  So however many slices can't go, nobody
 * looks at them: a look evicts, packs, or takes back the mark of a hit.
 *
 * Locks: queues are guarded by the shard's lock, and so is the shard's bit of ripe.  The
 * counters are atomic, and exact whenever nobody is at work.  Deciding by a value that
 * has just changed evicts one slice more or less, which is harmless.
 */

#include <config.h>

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "bytes.h"
#include "cleanup.h"
#include "map-impl.h"

#define SWEEP 32                /* slices in one go */
#define MOST_LEAST (1u << 20)   /* bytes that are kept, however low the limit */

/* --- counting --- */

/* What a block from malloc really takes, about. */
static uint64_t
block_cost (void *p)
{
  return p ? malloc_usable_size (p) + 16 : 0;
}

static void
raise_to (atomic_uint_fast64_t *n, uint64_t least)
{
  uint_fast64_t before = atomic_load (n);

  while (before < least && !atomic_compare_exchange_weak (n, &before, least))
    ;
}

static void
charge (struct map *map, uint64_t more)
{
  raise_to (&map->peak, atomic_fetch_add (&map->bytes, more) + more);
}

static void
discharge (struct map *map, uint64_t less)
{
  atomic_fetch_sub (&map->bytes, less);
}

void
map_charge (struct map *map, void *block)
{
  const uint64_t cost = block_cost (block);

  atomic_fetch_add (&map->fixed, cost);
  charge (map, cost);
}

void
map_discharge (struct map *map, void *block)
{
  const uint64_t cost = block_cost (block);

  discharge (map, cost);
  atomic_fetch_sub (&map->fixed, cost);
}

void
map_hold (struct map *map, uint64_t bytes)
{
  /* The peak is for the next slice that comes to see: these may make room first. */
  atomic_fetch_add (&map->fixed, bytes);
  atomic_fetch_add (&map->bytes, bytes);
}

uint64_t
map_share (const struct map *map)
{
  return map->limit / max64 (atomic_load_explicit (&map->editable,
                                                   memory_order_relaxed), 1);
}

static bool
is_evictable (const struct map_slice *s)
{
  if (s->busy)
    return false;
  switch ((enum slice_form) s->form) {
  case SLICE_EMPTY: return false;
  case SLICE_PACK:  return true;
  case SLICE_RAW:   return s->raw->pins == 0 && !s->raw->dirty &&
                           s->raw->writing == 0;
  }
  abort ();
}

/* To where the hand comes last. */
static void
enqueue (struct map_slice *s)
{
  struct map *map = s->space->map;
  struct shard *shard = map_shard (s->space, s->index);

  s->queue_next = NULL;
  s->queue_prev = shard->queue_tail;
  if (shard->queue_tail)
    shard->queue_tail->queue_next = s;
  else {
    shard->queue_head = s;
    atomic_fetch_or (&map->ripe, UINT64_C (1) << (shard - map->shards));
  }
  shard->queue_tail = s;
}

static void
dequeue (struct map_slice *s)
{
  struct map *map = s->space->map;
  struct shard *shard = map_shard (s->space, s->index);

  if (s->queue_prev)
    s->queue_prev->queue_next = s->queue_next;
  else
    shard->queue_head = s->queue_next;
  if (s->queue_next)
    s->queue_next->queue_prev = s->queue_prev;
  else
    shard->queue_tail = s->queue_prev;
  if (shard->queue_head == NULL)
    atomic_fetch_and (&map->ripe, ~(UINT64_C (1) << (shard - map->shards)));
}

static void
set_account (struct map_slice *s, uint64_t cost, bool evictable)
{
  struct map *map = s->space->map;

  if (cost > s->charged)
    charge (map, cost - s->charged);
  else if (cost < s->charged)
    discharge (map, s->charged - cost);
  if (cost > atomic_load_explicit (&map->largest, memory_order_relaxed))
    raise_to (&map->largest, cost);
  s->charged = cost;
  if (evictable && !s->evictable)
    enqueue (s);
  else if (!evictable && s->evictable)
    dequeue (s);
  s->evictable = evictable;
}

void
map_account (struct map_slice *s)
{
  set_account (s, block_cost (s) + block_cost (s->body), is_evictable (s));
}

void
map_account_gone (struct map_slice *s)
{
  set_account (s, 0, false);
}

/* --- reclaiming --- */

static uint64_t
most_bytes (struct map *map)
{
  const uint64_t least = min64 (2 * atomic_load (&map->largest), MOST_LEAST);

  return max64 (map->limit, atomic_load (&map->fixed) + least);
}

static bool
over_limit (struct map *map)
{
  return atomic_load (&map->bytes) > most_bytes (map) &&
         atomic_load (&map->ripe) != 0;
}

bool
map_is_full (struct map *map)
{
  return atomic_load (&map->bytes) + atomic_load (&map->largest) >
    most_bytes (map);
}

/* Evicts what it can of the next few slices, or until memory is below the limit.  If it
 * meets a raw slice it stops there, makes it busy and returns it; else NULL.  *VAIN
 * counts the looks since something was found. */
static struct map_slice *
sweep (struct map *map, struct shard *shard, uint64_t *vain)
{
  struct map_slice *gone = NULL, *raw = NULL, *s;
  unsigned looks;

  {
    LOCK_FOR_BLOCK (&shard->lock);

    for (looks = 0; looks < SWEEP && raw == NULL && over_limit (map); looks++) {
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
        dequeue (s);
        enqueue (s);
      }
      else {
        map_unlink (shard, s);
        shard->evictions++;
        s->next = gone;
        gone = s;
        *vain = 0;
      }
    }
  }                             /* the lock is released here */
  atomic_fetch_add_explicit (&map->looks, looks, memory_order_relaxed);
  map_free_slices (gone);
  return raw;
}

/* Packs a clean raw slice that sweep made busy. */
static void
pack_raw (struct shard *shard, struct map_slice *s)
{
  /* No lock needed: nobody edits a slice that is not pinned, and nobody pins it
   * while it is busy. */
  struct raw *raw = s->raw;
  struct pack *p = map_make_pack (s->space, s->index, raw->data);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    if (p) {
      s->pack = p;
      s->form = SLICE_PACK;
      shard->packs++;
      map_not_busy (shard, s);
    }
    else {
      /* It can be loaded again when there is memory. */
      map_give_up (shard, s);
      shard->evictions++;
    }
  }
  free (raw);
  if (p == NULL)
    free (s);
}

/* The next shard in turn that has evictable slices, or had just now. */
static unsigned
next_ripe (struct map *map)
{
  const unsigned hand = atomic_load (&map->hand);
  const uint64_t ripe = atomic_load (&map->ripe);
  const uint64_t ahead = ripe >> hand << hand;
  const unsigned next = ripe == 0 ? hand
    : (unsigned) __builtin_ctzll (ahead ? ahead : ripe);

  atomic_store (&map->hand, (next + 1) % MAP_SHARDS);
  return next;
}

void
map_reclaim (struct map *map)
{
  const int err = errno;
  uint64_t vain = 0;

  /* Twice round, for the first time forgives; and once more, for short queues get more
   * than their share of looks.  Then hits are faster than the hand. */
  while (over_limit (map) && vain <= 3 * atomic_load (&map->buckets)) {
    const unsigned i = next_ripe (map);
    struct map_slice *raw = sweep (map, &map->shards[i], &vain);

    if (raw)
      pack_raw (&map->shards[i], raw);
  }
  errno = err;
}
