/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that map.c and its parts (mapload.c, mapslice.c, mapmem.c, ...) share.  No
 * other file includes this.
 */

#ifndef QCOW2_MAP_IMPL_H
#define QCOW2_MAP_IMPL_H

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/epoch.h"
#include "util/report.h"
#include "mapping/map.h"
#include "mapping/pack.h"

#define MAP_SHARDS 64           /* a power of two; map.evictable has a bit for each */

enum slice_form {
  SLICE_EMPTY,          /* is being loaded for the first time */
  SLICE_PACK,
  SLICE_RAW,
};

/* The raw form of a slice.  Guarded by the shard lock, except where noted. */
struct raw {
  struct map_slice *next_dirty; /* guarded by the space's dirty_lock */
  unsigned pins;                /* map_pin without map_unpin */
  unsigned writing;             /* map_take_dirty without map_written */
  bool dirty;                   /* is in the space's dirty list */
  bool barrier;                 /* if dirty: the change needs a barrier */
  uint32_t hits;                /* lookups since the last change */
  _Alignas (16) uint8_t data[]; /* raw_size bytes */
};

/* A slice does not move while it is in the table.  Only three remove it: reclaim (if it
 * is evictable), its loader (if the load failed), and the end of its space. */
struct map_slice {
  /* Constant. */
  struct map_space *space;
  uint64_t index;               /* slice number */

  /* Guarded by the shard lock.  The atomics are changed under it, and read without it by
   * lookups of packed slices: see map.c. */
  _Atomic (struct map_slice *) next;    /* in the same bucket */
  union {
    _Atomic (void *) body;      /* NULL if empty */
    _Atomic (struct pack *) pack;
    _Atomic (struct raw *) raw;
  };
  uint32_t charged;             /* bytes counted for this slice */
  _Atomic uint8_t form;         /* enum slice_form */
  bool busy;                    /* a thread is about to change the form, with no lock
                                   held: only this thread may change or remove it */
  bool evictable : 1;           /* is in the shard's queue: see map_account */
  bool ahead : 1;               /* was loaded ahead of readers, and not used yet */
  atomic_bool referenced;       /* since the hand last passed */
  /* The fields above are all that a hit needs. */
  struct map_slice *queue_next, *queue_prev;
};

/* The table of a shard: lists of slices, linked by next. */
struct map_buckets {
  unsigned n;                   /* a power of two; constant */
  _Atomic (struct map_slice *) first[];
};

struct shard {
  _Alignas (64) pthread_mutex_t lock;
  /* Guarded by lock. */
  uint64_t hits;                /* that took the lock; others are counted in readers */
  unsigned nr_slices;
  /* The fields above are all that a hit needs that takes the lock: one cache line. */
  struct map_slice *queue_head; /* the evictable slices; the hand points to the head */
  struct map_slice *queue_tail;
  uint64_t misses, peeks, loads, loaded, evictions, packs;
  uint64_t claims;              /* times that a pin began to read a raw form, ever */
  pthread_cond_t changed;       /* some slice is no longer busy */
};

struct map {
  /* Hits need these, and no hit changes them. */
  struct epoch *readers;        /* lookups without a lock; constant */
  /* Of each shard, or NULL; changed under its lock when the table grows. */
  _Atomic (struct map_buckets *) tables[MAP_SHARDS];

  _Alignas (64) struct budget budget;
  struct shard shards[MAP_SHARDS];

  _Atomic uint64_t largest;    /* bytes of the largest slice so far */
  _Atomic uint64_t evictable;      /* bit I: shard I has evictable slices */
  atomic_uint_fast64_t buckets;    /* of all shards */
  atomic_uint_fast64_t dirty;      /* bytes of dirty raw slices, in all spaces */
  atomic_uint hand;             /* shard that reclaim visits next */
  atomic_uint_fast64_t looks;   /* slices that reclaim has looked at, ever */

  pthread_mutex_t lock;         /* guards the two below; taken alone */
  struct map_space *spaces;
  uint64_t nr_spaces;           /* number of spaces ever created */
};

struct map_space {
  /* Constant. */
  struct map *map;
  struct pack_shape shape;
  unsigned slice_bits;          /* log2 of the guest bytes of a slice */
  size_t raw_size;
  unsigned together;            /* slices that may be loaded together: a power of two */
  const struct map_ops *ops;
  void *opaque;
  uint64_t salt;                /* for the hash */
  unsigned number;              /* for traces: spaces are numbered in a map */
  struct map_ahead *ahead;      /* NULL: slices are not loaded ahead */

  struct map_space *next;       /* guarded by the map's lock */

  /* (Not on the cache line of what each lookup needs.) */
  _Alignas (64) atomic_uint_fast64_t dirty_bytes;  /* changed under dirty_lock */

  pthread_mutex_t dirty_lock;   /* guards the list; taken within a shard's lock */
  struct map_slice *dirty, **dirty_tail;  /* oldest first */
  unsigned nr_dirty;
};

/* Tells what becomes of N slices. */
static inline void
map_trace (const struct map_space *space, const char *what, uint64_t index, unsigned n)
{
  report_trace (TRACE_CACHE, "cache: space %u: slices from %" PRIu64 " on, %u: %s",
                space->number, index, n, what);
}

static inline uint64_t
map_hash (const struct map_space *space, uint64_t index)
{
  uint64_t h = (index + space->salt) * UINT64_C (0x9e3779b97f4a7c15);

  return h ^ h >> 32;
}

static inline struct shard *
map_shard (const struct map_space *space, uint64_t index)
{
  return &space->map->shards[map_hash (space, index) % MAP_SHARDS];
}

/* --- mapslice.c: the caller holds the shard lock --- */

/* The list of its table that the slice belongs to. */
static inline _Atomic (struct map_slice *) *
map_bucket (struct map_buckets *table, const struct map_space *space, uint64_t index)
{
  return &table->first[map_hash (space, index) / MAP_SHARDS & (table->n - 1)];
}

/* Returns the slice, or NULL if it is not in the table.  (Without the lock: or NULL if it
 * has just been moved.  The caller is in a section of map.readers.) */
static inline struct map_slice *
map_find (const struct map_space *space, uint64_t index)
{
  struct map_buckets *table = space->map->tables[map_hash (space, index) % MAP_SHARDS];
  struct map_slice *s;

  if (table == NULL)
    return NULL;
  for (s = *map_bucket (table, space, index); s; s = s->next)
    if (s->index == index && s->space == space)
      return s;
  return NULL;
}

/* Adds a slice that is empty and busy, to be loaded.  NULL on ENOMEM (reported). */
extern struct map_slice *map_insert (struct shard *, struct map_space *,
                                     uint64_t index);

/* For the thread that made the slice busy, when it has finished.  map_not_busy makes the
 * slice available again; map_give_up removes it, and the caller then frees it and its
 * body.  Both wake threads that wait for the slice. */
extern void map_not_busy (struct shard *, struct map_slice *);
extern void map_give_up (struct shard *, struct map_slice *);

/* Removes the slice from its bucket. */
extern void map_unlink (struct shard *, struct map_slice *);

/* --- mapslice.c: no lock is held --- */

/* Waits until no lookup uses what has been removed from the table, or from a slice,
 * before this call: then it can be freed.  That takes no longer than a lookup in memory
 * does.  The caller may hold the lock of a shard. */
extern void map_await_lookups (struct map *);
/* Frees slices that were removed from the table, linked by next, and their bodies.  May
 * be NULL.  (Their spaces may be gone.) */
extern void map_free_slices (struct map *, struct map_slice *);

/* --- mapload.c: no lock is held --- */

/* Makes the pack of a slice from its raw form.  Returns NULL on error, with errno set and
 * reported. */
extern struct pack *map_pack_raw (const struct map_space *, const void *raw);

/* Slices that are loaded together. */
struct map_group {
  struct map_slice *wanted;
  uint64_t first;               /* number of the first slice */
  unsigned n;
  /* NULL: another thread has the slice, or it is in memory. */
  struct map_slice *slices[MAP_TOGETHER];
  struct pack *packs[MAP_TOGETHER];
};

/* WANTED was just inserted.  Adds those of its neighbours that are not in memory, if
 * there is memory for them. */
extern void map_group_begin (struct map_group *, struct map_slice *wanted);
/* Loads them.  Returns the pack of the wanted slice, which is the caller's to look at
 * until map_group_end, or NULL on error, with errno set and reported. */
extern const struct pack *map_group_load (struct map_group *);
/* Gives their packs to the slices.  Those that have none go.  Keeps errno. */
extern void map_group_end (struct map_group *);

/* --- mapahead.c: no lock is held, except where noted --- */

/* For a space of SLICES slices.  NULL on ENOMEM. */
extern struct map_ahead *map_ahead_new (uint64_t slices);
/* No request may be using the space.  Gives up what is to be loaded, and waits for the
 * thread to end, which then waits no longer than it must for a server that is away.  The
 * next request may start another. */
extern void map_ahead_end (struct map_ahead *);   /* may be NULL */
/* The same, and frees it. */
extern void map_ahead_free (struct map_ahead *);  /* may be NULL */
/* A request has used slice INDEX, from UNIT on, for the first time since it was loaded:
 * if it may be one of a reader in order, the next slice is loaded. */
extern void map_ahead_touch (struct map_space *, uint64_t index, unsigned unit);

/* Would that be one of a reader in order?  The caller may hold a shard's lock. */
extern bool map_ahead_expects (struct map_ahead *, const struct map_space *,
                               uint64_t index, unsigned unit);

/* --- mapmem.c --- */

/* Add and subtract the memory of a block from malloc that is no slice (may be NULL). */
extern void map_charge (struct map *, void *block);
extern void map_discharge (struct map *, void *block);

/* To be called with the shard lock held after each change of body, form, busy, pins,
 * dirty or writing: updates the counted memory of the slice, and whether it is
 * evictable. */
extern void map_account (struct map_slice *);
/* To be called when the slice has been removed from the table. */
extern void map_account_gone (struct map_slice *);
/* Moves this evictable slice to where the hand comes last. */
extern void map_requeue (struct map_slice *);

/* Would one more slice make reclaim evict others? */
extern bool map_is_full (struct map *);

/* Is there plenty of memory, even after N more slices? */
extern bool map_has_plenty (struct map *, unsigned n);

/* Is more memory in use than allowed, and is there an evictable slice? */
extern bool map_over_limit (struct map *);

/* --- mapreclaim.c --- */

/* Brings the memory in use below the limit, if possible.  The caller holds no lock.
 * Keeps errno. */
extern void map_reclaim (struct map *);

/* Packs a clean raw slice that the caller has made busy.  Without memory, the slice goes
 * (reported).  The caller holds no lock. */
extern void map_pack_slice (struct map_slice *);

#endif /* QCOW2_MAP_IMPL_H */
