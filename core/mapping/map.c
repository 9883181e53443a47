/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where is this guest offset, with a bounded amount of memory?
 *
 * A hash table contains the slices.  It consists of shards, each with its own lock.  A
 * slice has one of three forms:
 *
 *   EMPTY  a thread is loading it; other threads that want it wait
 *   PACK   the runs in as few bytes as possible (pack.c)
 *   RAW    the bytes of the file, which can be edited (mapedit.c); lookups decode them
 *
 *   absent -> EMPTY    a lookup or a pin misses
 *   EMPTY  -> PACK     the lookup has loaded it
 *   EMPTY  -> RAW      the pin has loaded it
 *   EMPTY  -> absent   the load failed
 *   PACK   -> RAW      a pin has loaded the raw form
 *   RAW    -> PACK     the slice is clean and not pinned, and reclaim needs memory, or
 *                      there were many lookups since its last change
 *   PACK   -> absent   reclaim needs memory
 *   RAW    -> absent   there is no memory for the pack
 *
 * A thread that changes the form of a slice marks it busy, drops the lock, does the work
 * (I/O by the loader, decoding, packing), takes the lock again, installs the new body,
 * and wakes the threads that wait (R10).  PACK and RAW slices answer lookups while they
 * are busy, so threads wait only for a first load, and only for that slice.  No thread
 * keeps a pointer to a slice while it waits: it looks up the slice again, because the
 * slice may have been removed.  A failed load leaves nothing behind, and each thread that
 * waited for it tries again itself.
 *
 * Most hits take no lock, and write only to a cache line of their thread: lookups of
 * packed slices that were used since the hand last passed (mapreclaim.c).  They run in a
 * section of `readers' (epoch.c), and what a shard lock guards is freed only when all
 * those have left that may have seen it (map_await_lookups).  So:
 *
 *   - The table, a slice and a pack that such a lookup has found stay valid.
 *   - A slice that it sees as PACK, then reads the body of, then sees as PACK again, has
 *     had that body as its pack.  For a raw body is stored after the form RAW.  Had the
 *     lookup read it, it would find RAW after that, or a later PACK; but the thread that
 *     pinned the slice waits for the lookup's section before the slice can become PACK
 *     again.
 *   - Its answer is what the map said at some time since it entered the section.  A
 *     request whose lookup found a mapping had its own section before the mapping was
 *     removed, because the accesses are sequentially consistent (epoch.c, 4).
 *
 * (tests/models/map.pml has this protocol, and is checked in all orders of steps.)
 *
 * All else (RAW, EMPTY, absent; a slice that another thread is moving to a larger table)
 * takes the lock.
 *
 * A slice that a request has just loaded may be evicted at once (mapmem.c): the request
 * was answered from its own copy.
 *
 * When the memory is used up, most misses do not load a slice.  They only read the few
 * entries that they need (peek).  Each slice that is loaded evicts others, and reading
 * and packing it is worthwhile only if it is used many times while it stays.  One miss in
 * several loads its slice, fewer of them when slices are larger, so that slices in
 * frequent use are loaded first, and stay.  A peek counts only if no thread has begun to
 * pin a slice of the shard in the meantime, so that no thread has changed those entries,
 * in memory or in the file.  (Spaces that are not edited may read a file that another
 * space edits: what they find was true when their request began, and the request's read
 * section keeps it valid.)
 *
 * Lock order: shard, then dirty_lock of a space.  Never two shards at once.  A section
 * of `readers' lasts for a lookup in memory only, and nothing is waited for in it.  The
 * ops are called without locks, except decode, which is called under the shard lock on a
 * hit of a raw slice: it must not call the map.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "mapping/map-impl.h"

#define MANY_HITS 1024          /* that packing a slice, and perhaps loading its raw form
                                   again, costs nothing compared with so many lookups */
#define MAX_DECODE 4096         /* limit for the units in one answer from a raw slice */
#define MIN_PEEKS 16            /* one miss in MIN_PEEKS to MAX_PEEKS loads its slice
                                   ... */
#define MAX_PEEKS 256
#define PEEK_SHARE 32           /* ... and between them, one in units / PEEK_SHARE */

/* --- lookups --- */

/* Loads the slice and answers for units [unit, unit+max), or the first of them.  Called
 * with the shard lock held; drops it.  Returns the number of units, or -1. */
static int64_t
miss (struct shard *shard, struct map_space *space, uint64_t index,
      unsigned unit, unsigned max, struct run *run)
{
  struct map_slice *s = map_insert (shard, space, index);
  const struct pack *p;
  struct map_group group;
  int64_t n = -1;

  shard->misses++;
  pthread_mutex_unlock (&shard->lock);
  if (s == NULL)
    return -1;

  map_group_begin (&group, s);
  map_trace (space, "missed", index, 1);
  if (space->ahead)
    map_ahead_touch (space, index, unit);
  p = map_group_load (&group);
  if (p)
    n = pack_find (p, space->shape, unit, max, run);
  map_group_end (&group);
  map_reclaim (space->map);     /* the table may have grown even so */
  return n;
}

/* Should this miss read only a few entries?  The caller holds the shard lock. */
static bool
wants_peek (struct shard *shard, const struct map_space *space, uint64_t index,
            unsigned unit, unsigned max)
{
  const unsigned peeks = min64 (max64 (space->shape.units / PEEK_SHARE, MIN_PEEKS),
                                MAX_PEEKS);

  return space->ops->peek && max <= MAP_PEEK_UNITS &&
         space->shape.units > MAP_PEEK_UNITS &&
         map_is_full (space->map) &&
         /* Not at regular intervals: clients have patterns, too. */
         (shard->misses * UINT64_C (0x9e3779b97f4a7c15) >> 32) % peeks != 0 &&
         !(space->ahead && map_ahead_expects (space->ahead, space, index, unit));
}

/* Called with the shard lock held; drops it and takes it again.  Returns the number of
 * units, -1, or 0 if the entries may have changed while they were read. */
static int64_t
peek (struct shard *shard, struct map_space *space, uint64_t index,
      unsigned unit, unsigned max, struct run *run)
{
  const uint64_t claims = shard->claims;
  int64_t n;

  pthread_mutex_unlock (&shard->lock);
  map_trace (space, "missed, a few entries are read", index, 1);
  n = space->ops->peek (space->opaque, index, unit, max, run);
  pthread_mutex_lock (&shard->lock);
  if (shard->claims != claims)
    return 0;
  shard->misses++;
  shard->peeks++;
  return n;
}

/* Answers from a packed slice, without a lock.  Returns the number of units, or 0 if that
 * is not possible. */
static inline int64_t
find_packed (struct map_space *space, uint64_t index, unsigned unit, unsigned max,
             struct run *run)
{
  struct epoch *readers = space->map->readers;
  const struct epoch_section section = epoch_enter (readers);
  const struct map_slice *s = map_find (space, index);
  const struct pack *p;
  int64_t n;

  if (s && s->form == SLICE_PACK && (p = s->pack, s->form == SLICE_PACK) &&
      s->referenced) {
    n = pack_find (p, space->shape, unit, max, run);
    epoch_leave_counting (readers, section);
    return n;
  }
  epoch_leave (readers, section);
  return 0;
}

/* Counts a hit of a raw slice.  Should the caller pack it, because it is only looked up
 * by now?  Then the slice is busy.  The caller holds the shard lock. */
static bool
wants_pack (struct map_slice *s)
{
  if (++s->raw->hits < MANY_HITS || !s->evictable)
    return false;
  s->busy = true;
  map_account (s);
  return true;
}

/* Packs it.  The request need not know whether there is memory for that. */
static void
pack_now (struct map_slice *s)
{
  KEEP_ERRNO_FOR_BLOCK;
  const bool silent = report_silence (true);

  map_pack_slice (s);
  report_silence (silent);
}

int
map_lookup (struct map_space *space, uint64_t offset, uint64_t len,
            struct run *run)
{
  const struct pack_shape shape = space->shape;
  const uint64_t index = offset >> space->slice_bits;
  const uint64_t slice_bytes = UINT64_C (1) << space->slice_bits;
  const uint64_t unit_bytes = UINT64_C (1) << shape.unit_bits;
  const uint64_t in_slice = offset & (slice_bytes - 1);
  const uint64_t in_unit = offset & (unit_bytes - 1);
  const unsigned unit = in_slice >> shape.unit_bits;
  struct shard *shard = map_shard (space, index);
  struct map_slice *s;
  bool first = false, packs = false;
  unsigned max;
  int64_t n;

  assert (len > 0);
  len = min64 (len, slice_bytes - in_slice);
  max = (in_unit + len + unit_bytes - 1) >> shape.unit_bits;
  run->unsettled = false;

  n = find_packed (space, index, unit, max, run);
  if (__builtin_expect (n > 0, 1))
    goto found;

  pthread_mutex_lock (&shard->lock);
  s = map_find (space, index);
  if (__builtin_expect (s == NULL, 0) && wants_peek (shard, space, index, unit, max)) {
    n = peek (shard, space, index, unit, max, run);
    if (n != 0) {
      pthread_mutex_unlock (&shard->lock);
      goto found;
    }
    s = map_find (space, index);
  }
  while (s && __builtin_expect (s->form == SLICE_EMPTY, 0)) {
    pthread_cond_wait (&shard->changed, &shard->lock);
    s = map_find (space, index);
  }

  if (__builtin_expect (s == NULL, 0))
    n = miss (shard, space, index, unit, max, run);
  else {
    if (s->form == SLICE_PACK)
      n = pack_find (s->pack, shape, unit, max, run);
    else {
      n = space->ops->decode (space->opaque, s->raw->data, unit,
                              min64 (max, MAX_DECODE), run);
      run->unsettled = s->raw->dirty || s->raw->writing > 0;
      packs = wants_pack (s);
    }
    if (!s->referenced) {       /* the next hit need not write to its cache line */
      s->referenced = true;
      first = s->ahead;
      s->ahead = false;
    }
    shard->hits++;
    pthread_mutex_unlock (&shard->lock);
    if (__builtin_expect (packs, 0))
      pack_now (s);
    if (__builtin_expect (first, 0))
      map_ahead_touch (space, index, unit);
  }

 found:
  if (__builtin_expect (n == -1, 0))
    return -1;
  run->start = offset;
  run->len = min64 (len, ((uint64_t) n << shape.unit_bits) - in_unit);
  if (run_host_advances (run->kind))
    run->host += in_unit;
  return 0;
}

/* --- maps and spaces --- */

struct map *
map_new (uint64_t limit)
{
  struct map *map = aligned_alloc (_Alignof (struct map), sizeof *map);
  pthread_mutexattr_t attr;

  if (map == NULL)
    return NULL;
  memset (map, 0, sizeof *map);
  map->readers = epoch_new ();
  if (map->readers == NULL) {
    free (map);
    return NULL;
  }
  map->budget.limit = limit;
  pthread_mutex_init (&map->lock, NULL);

  pthread_mutexattr_init (&attr);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
  /* The lock is held for a shorter time than going to sleep takes. */
  pthread_mutexattr_settype (&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
  for (unsigned i = 0; i < MAP_SHARDS; i++) {
    pthread_mutex_init (&map->shards[i].lock, &attr);
    pthread_cond_init (&map->shards[i].changed, NULL);
  }
  pthread_mutexattr_destroy (&attr);
  map_charge (map, map);
  map_charge (map, map->readers);
  return map;
}

void
map_free (struct map *map)
{
  if (map == NULL)
    return;
  while (map->spaces)
    map_space_free (map->spaces);
  for (unsigned i = 0; i < MAP_SHARDS; i++) {
    free (map->tables[i]);
    pthread_mutex_destroy (&map->shards[i].lock);
    pthread_cond_destroy (&map->shards[i].changed);
  }
  pthread_mutex_destroy (&map->lock);
  epoch_free (map->readers);
  free (map);
}

void
map_end_ahead (struct map *map)
{
  for (struct map_space *space = map->spaces; space; space = space->next)
    map_ahead_end (space->ahead);
}

struct budget *
map_budget (struct map *map)
{
  return &map->budget;
}

void
map_get_stats (struct map *map, struct map_stats *stats)
{
  memset (stats, 0, sizeof *stats);
  stats->hits = epoch_counted (map->readers);
  for (unsigned i = 0; i < MAP_SHARDS; i++) {
    struct shard *shard = &map->shards[i];
    LOCK_FOR_BLOCK (&shard->lock);

    stats->hits += shard->hits;
    stats->misses += shard->misses;
    stats->peeks += shard->peeks;
    stats->loads += shard->loads;
    stats->loaded += shard->loaded;
    stats->evictions += shard->evictions;
    stats->packs += shard->packs;
  }
  stats->looks = atomic_load (&map->looks);
  stats->bytes = atomic_load (&map->budget.bytes);
  stats->peak_bytes = atomic_load (&map->budget.peak);
}

struct map_space *
map_space_new (struct map *map, unsigned unit_bits, unsigned units,
               size_t raw_size, const struct map_ops *ops, void *opaque)
{
  struct map_space *space = aligned_alloc (_Alignof (struct map_space), sizeof *space);

  if (space == NULL)
    return NULL;
  memset (space, 0, sizeof *space);
  if (ops->slow_slices && ops->slow_slices (opaque) > 0 &&
      (space->ahead = map_ahead_new (ops->slow_slices (opaque))) == NULL) {
    free (space);
    return NULL;
  }
  assert (is_power_of_2 (units) && units <= 1u << 24);
  assert (ops->load || (ops->load_raw && ops->decode && raw_size > 0));
  assert (raw_size <= 1u << 30);
  space->together = ops->together ? ops->together (opaque) : 1;
  assert (is_power_of_2 (space->together) && space->together <= MAP_TOGETHER);

  space->map = map;
  space->shape = (struct pack_shape) { .unit_bits = unit_bits, .units = units };
  space->slice_bits = unit_bits + __builtin_ctz (units);
  space->raw_size = raw_size;
  space->ops = ops;
  space->opaque = opaque;
  atomic_init (&space->dirty_bytes, 0);
  pthread_mutex_init (&space->dirty_lock, NULL);
  space->dirty_tail = &space->dirty;
  map_charge (map, space);

  LOCK_FOR_BLOCK (&map->lock);
  space->number = map->nr_spaces;
  space->salt = map->nr_spaces++ * UINT64_C (0xd1b54a32d192ed03);
  space->next = map->spaces;
  map->spaces = space;
  if (raw_size > 0)
    atomic_fetch_add (&map->budget.users, 1);
  return space;
}

/* Takes all slices of a space out of a shard.  A slice may be busy: a request for another
 * space may be packing it. */
static struct map_slice *
take_out (struct shard *shard, const struct map_space *space)
{
  _Atomic (struct map_slice *) *b;
  struct map_slice *gone = NULL, *s;
  struct map_buckets *table;
  LOCK_FOR_BLOCK (&shard->lock);

 again:
  table = space->map->tables[shard - space->map->shards];
  for (unsigned i = 0; table && i < table->n; i++)
    for (b = &table->first[i]; (s = *b) != NULL; ) {
      if (s->space != space) {
        b = &s->next;
        continue;
      }
      if (s->busy) {
        pthread_cond_wait (&shard->changed, &shard->lock);
        goto again;
      }
      assert (s->form != SLICE_RAW || s->raw->pins == 0);
      map_unlink (shard, s);
      s->next = gone;
      gone = s;
    }
  return gone;
}

void
map_space_free (struct map_space *space)
{
  struct map *map;

  if (space == NULL)
    return;
  map = space->map;
  map_ahead_free (space->ahead);
  for (unsigned i = 0; i < MAP_SHARDS; i++)
    map_free_slices (map, take_out (&map->shards[i], space));

  {
    LOCK_FOR_BLOCK (&map->lock);
    struct map_space **p = &map->spaces;

    while (*p != space)
      p = &(*p)->next;
    *p = space->next;
  }
  if (space->raw_size > 0)
    atomic_fetch_sub (&map->budget.users, 1);
  /* This is 0 unless writing has failed. */
  atomic_fetch_sub (&map->dirty, atomic_load (&space->dirty_bytes));
  map_discharge (map, space);
  pthread_mutex_destroy (&space->dirty_lock);
  free (space);
}
