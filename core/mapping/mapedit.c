/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which slices are being changed, and which changes are not in the file yet?
 *
 * Part of map.c: pins, edits, and batches of dirty slices.
 *
 * A slice that is pinned has the raw form and keeps it.  So does a slice that is
 *
 *   dirty     changed since it was last taken (then it is in the space's list), or
 *   writing   in a batch that has not ended: until then the file may be older than
 *             memory, so the slice must not be loaded again.
 *
 * Both make its runs unsettled.  A change belongs to the batch that is taken after it.  A
 * slice that is changed between the start and the end of a batch is dirty again, whether
 * or not the batch succeeds.
 *
 * Edits and taking a batch hold the shard lock, so a lookup sees all of an edit or
 * nothing.  dirty_lock is taken within it, for the list only.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "mapping/map-impl.h"

/* --- pins --- */

static bool
is_vacant (const struct map_space *space, const struct pack *p)
{
  struct run run;

  return pack_find (p, space->shape, 0, space->shape.units, &run) == space->shape.units
    && run.kind == RUN_UNALLOCATED;
}

/* Reads the raw form of a slice, which is PACK, unless that is NULL.  The caller holds no
 * lock.  NULL on error (reported). */
static struct raw *
read_raw (const struct map_space *space, uint64_t index, const struct pack *pack)
{
  struct raw *raw = memory_new (1, sizeof *raw + space->raw_size);

  if (raw == NULL)
    return NULL;
  /* Slices of new tables are vacant. */
  if (!(pack && is_vacant (space, pack)) &&
      space->ops->load_raw (space->opaque, index, 1, raw->data) == -1) {
    KEEP_ERRNO_FOR_BLOCK;
    free (raw);
    return NULL;
  }
  raw->pins = 1;
  return raw;
}

/* Finds a slice that can be pinned at once (then sets *RAW), or makes it busy so that the
 * caller can read its raw form.  The caller holds the shard lock.  NULL on ENOMEM. */
static struct map_slice *
pin_or_claim (struct shard *shard, struct map_space *space, uint64_t index,
              bool *pinned)
{
  struct map_slice *s;

  *pinned = false;
  while ((s = map_find (space, index)) != NULL && s->busy)
    pthread_cond_wait (&shard->changed, &shard->lock);

  if (s == NULL) {
    shard->claims++;
    return map_insert (shard, space, index);
  }
  if (s->form == SLICE_RAW) {
    s->raw->pins++;
    s->referenced = true;
    *pinned = true;
  }
  else {
    shard->claims++;
    s->busy = true;             /* lookups continue to use the pack */
  }
  map_account (s);
  return s;
}

struct map_slice *
map_pin (struct map_space *space, uint64_t index)
{
  struct shard *shard = map_shard (space, index);
  struct pack *old = NULL;
  struct map_slice *s;
  struct raw *raw;
  bool pinned, empty;

  assert (space->raw_size > 0);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    s = pin_or_claim (shard, space, index, &pinned);
    if (s == NULL || pinned)
      return s;
    shard->misses++;
    shard->loads++;
    shard->loaded++;
  }                             /* the lock is released here */

  /* The file contains what the pack was made from: a slice is packed only after its last
   * change was written.  While the slice is busy, the pack stays. */
  map_trace (space, "to be edited, its raw form is read", index, 1);
  raw = read_raw (space, index, s->pack);
  KEEP_ERRNO_FOR_BLOCK;

  {
    LOCK_FOR_BLOCK (&shard->lock);
    empty = s->form == SLICE_EMPTY;
    if (raw) {
      old = s->pack;
      s->form = SLICE_RAW;      /* first: see map.c */
      s->raw = raw;
      s->referenced = true;
    }
    if (raw || !empty)
      map_not_busy (shard, s);
    else
      map_give_up (shard, s);
  }
  if (old || (raw == NULL && empty))
    map_await_lookups (space->map);
  free (old);
  if (raw == NULL && empty)
    free (s);
  map_reclaim (space->map);     /* not S, which is pinned */
  return raw ? s : NULL;
}

void
map_unpin (struct map_slice *s)
{
  struct map *map = s->space->map;
  struct shard *shard = map_shard (s->space, s->index);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    assert (s->raw->pins > 0);
    s->raw->pins--;
    map_account (s);
  }
  map_reclaim (map);            /* S may be gone after this */
}

/* --- edits --- */

/* The caller holds the shard lock. */
static void
mark_dirty (struct map_slice *s, bool barrier)
{
  struct map_space *space = s->space;

  s->raw->barrier |= barrier;
  s->raw->hits = 0;
  if (s->raw->dirty)
    return;
  s->raw->dirty = true;

  LOCK_FOR_BLOCK (&space->dirty_lock);
  s->raw->next_dirty = NULL;
  *space->dirty_tail = s;
  space->dirty_tail = &s->raw->next_dirty;
  space->nr_dirty++;
  atomic_fetch_add (&space->dirty_bytes, space->raw_size);
  atomic_fetch_add (&space->map->dirty, space->raw_size);
}

void *
map_edit_begin (struct map_slice *s)
{
  pthread_mutex_lock (&map_shard (s->space, s->index)->lock);
  assert (s->raw->pins > 0);
  return s->raw->data;
}

void
map_edit_end (struct map_slice *s, enum map_change change)
{
  if (change != MAP_UNCHANGED) {
    mark_dirty (s, change == MAP_CHANGED_BARRIER);
    map_account (s);
  }
  pthread_mutex_unlock (&map_shard (s->space, s->index)->lock);
}

uint64_t
map_dirty_bytes (struct map_space *space)
{
  return atomic_load_explicit (&space->dirty_bytes, memory_order_relaxed);
}

bool
map_dirty_beyond (struct map_space *space, uint64_t limit)
{
  struct map *map = space->map;
  const uint64_t own = map_dirty_bytes (space);
  uint64_t share;

  if (own == 0 || atomic_load_explicit (&map->dirty,
                                        memory_order_relaxed) <= limit)
    return false;
  share = limit / max64 (atomic_load_explicit (&map->budget.users,
                                               memory_order_relaxed), 1);
  return own > share;
}

/* --- batches of dirty slices --- */

/* Takes the oldest dirty slice as ITEM. */
static void
take_one (struct map_space *space, struct map_dirty *item)
{
  struct map_slice *s;
  struct shard *shard;

  {
    LOCK_FOR_BLOCK (&space->dirty_lock);
    s = space->dirty;
  }
  /* It stays first in the list, and in memory: only this thread, the only taker, removes
   * it. */
  shard = map_shard (space, s->index);

  LOCK_FOR_BLOCK (&shard->lock);
  memcpy (item->raw, s->raw->data, space->raw_size);
  item->slice = s;
  item->index = s->index;
  item->barrier = s->raw->barrier;
  s->raw->writing++;
  s->raw->dirty = false;
  s->raw->barrier = false;

  LOCK_FOR_BLOCK (&space->dirty_lock);
  space->dirty = s->raw->next_dirty;
  if (space->dirty == NULL)
    space->dirty_tail = &space->dirty;
  space->nr_dirty--;
  atomic_fetch_sub (&space->dirty_bytes, space->raw_size);
  atomic_fetch_sub (&space->map->dirty, space->raw_size);
}

static void
free_items (struct map_dirty *items, int n)
{
  for (int i = 0; i < n; i++)
    free (items[i].raw);
  free (items);
}

/* The memory for a batch of N slices, including malloc's overhead, in bytes. */
static uint64_t
snapshot_bytes (const struct map_space *space, int n)
{
  return n * (space->raw_size + 16 + sizeof (struct map_dirty));
}

int
map_take_dirty (struct map_space *space, struct map_dirty **ret, bool *barrier)
{
  struct map_dirty *items;
  int i, n;

  *ret = NULL;
  *barrier = false;
  {
    LOCK_FOR_BLOCK (&space->dirty_lock);
    n = space->nr_dirty;
  }
  if (n == 0)
    return 0;

  /* All memory first (R6): other slices are evicted to make space for the copies.  Slices
   * that become dirty in the meantime are left for the next batch. */
  budget_hold (&space->map->budget, snapshot_bytes (space, n));
  map_reclaim (space->map);
  items = calloc (n, sizeof *items);
  for (i = 0; items && i < n; i++) {
    items[i].raw = malloc (space->raw_size);
    if (items[i].raw == NULL) {
      free_items (items, i);
      items = NULL;
    }
  }
  if (items == NULL) {
    budget_hold (&space->map->budget, -snapshot_bytes (space, n));
    errno = ENOMEM;
    report_error ("mapping cache: snapshot of %d dirty slices: %m", n);
    return -1;
  }

  for (i = 0; i < n; i++) {
    take_one (space, &items[i]);
    *barrier |= items[i].barrier;
  }
  *ret = items;
  return n;
}

void
map_written (struct map_space *space, struct map_dirty *items, int n, bool ok)
{
  for (int i = 0; i < n; i++) {
    struct map_slice *s = items[i].slice;
    struct shard *shard = map_shard (space, s->index);
    LOCK_FOR_BLOCK (&shard->lock);

    s->raw->writing--;
    if (!ok)
      mark_dirty (s, items[i].barrier);
    map_account (s);
  }
  free_items (items, n);
  budget_hold (&space->map->budget, -snapshot_bytes (space, n));
  map_reclaim (space->map);
}
