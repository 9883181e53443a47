/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory do all slices use, and which of them can be evicted?
 *
 * Part of map.c: the budget.
 *
 * map.budget.bytes counts the memory that is really used, including malloc's overhead:
 * every block is counted when it gets its place in the map.  A thread that exceeds the
 * limit calls reclaim (mapreclaim.c).
 *
 * However low the limit is, as much memory as the two largest slices so far needed is
 * kept (but no more than MOST_LEAST: the size of slices depends on the image).  Without
 * it each lookup would read the file.
 *
 * Slices that are pinned, dirty, being written or busy are not evictable.  The others are
 * in their shard's queue, in the order in which the hand will reach them, and
 * map.evictable shows which shards have any.  So reclaim never looks at slices that it
 * cannot evict, however many there are: each look evicts, packs, or clears the mark of a
 * hit.
 *
 * Locks: the shard's lock guards its queue and its bit of evictable.  The counters are
 * atomic, and exact whenever no thread is working on the map.  A decision based on a
 * value that has just changed evicts one slice more or less, which is harmless.
 */

#include <config.h>

#include <malloc.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "mapping/map-impl.h"

#define MOST_LEAST (1u << 20)   /* bytes that are kept, however low the limit is */

/* --- counting --- */

/* The approximate memory that a block from malloc really takes. */
static uint64_t
block_cost (void *p)
{
  return p ? malloc_usable_size (p) + 16 : 0;
}

static void
raise_to (_Atomic uint64_t *n, uint64_t least)
{
  uint64_t before = atomic_load (n);

  while (before < least && !atomic_compare_exchange_weak (n, &before, least))
    ;
}

static void
charge (struct map *map, uint64_t more)
{
  raise_to (&map->budget.peak, atomic_fetch_add (&map->budget.bytes, more) + more);
}

static void
discharge (struct map *map, uint64_t less)
{
  atomic_fetch_sub (&map->budget.bytes, less);
}

void
map_charge (struct map *map, void *block)
{
  const uint64_t cost = block_cost (block);

  atomic_fetch_add (&map->budget.fixed, cost);
  charge (map, cost);
}

void
map_discharge (struct map *map, void *block)
{
  const uint64_t cost = block_cost (block);

  discharge (map, cost);
  atomic_fetch_sub (&map->budget.fixed, cost);
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

/* Adds S where the hand comes last. */
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
    atomic_fetch_or (&map->evictable, UINT64_C (1) << (shard - map->shards));
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
    atomic_fetch_and (&map->evictable, ~(UINT64_C (1) << (shard - map->shards)));
}

void
map_requeue (struct map_slice *s)
{
  dequeue (s);
  enqueue (s);
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

/* --- the limit --- */

static uint64_t
most_bytes (struct map *map)
{
  const uint64_t least = min64 (2 * atomic_load (&map->largest), MOST_LEAST);

  return max64 (map->budget.limit, atomic_load (&map->budget.fixed) + least);
}

bool
map_over_limit (struct map *map)
{
  return atomic_load (&map->budget.bytes) > most_bytes (map) &&
         atomic_load (&map->evictable) != 0;
}

bool
map_is_full (struct map *map)
{
  return atomic_load (&map->budget.bytes) + atomic_load (&map->largest) >
    most_bytes (map);
}

/* The other half is for slices that requests ask for one by one: if they are far apart,
 * their neighbours must not keep them from fitting into memory. */
bool
map_has_plenty (struct map *map, unsigned n)
{
  return atomic_load (&map->budget.bytes) + n * atomic_load (&map->largest) <=
    map->budget.limit / 2;
}
