/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What map.c, mapslice.c, mapmem.c, mapreclaim.c and mapedit.c share.  No other file
 * includes this.
 */

#ifndef QCOW2_MAP_IMPL_H
#define QCOW2_MAP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mapping/map.h"
#include "mapping/pack.h"

#define MAP_SHARDS 64           /* a power of two, and the bits of map.ripe */

enum slice_form {
  SLICE_EMPTY,          /* being loaded for the first time */
  SLICE_PACK,
  SLICE_RAW,
};

/* The raw form of a slice.  Guarded by the shard lock, unless it says otherwise. */
struct raw {
  struct map_slice *next_dirty; /* guarded by the space's dirty_lock */
  unsigned pins;                /* map_pin without map_unpin */
  unsigned writing;             /* map_take_dirty without map_written */
  bool dirty;                   /* is in the space's dirty list */
  bool barrier;                 /* if dirty: needs one */
  _Alignas (16) uint8_t data[]; /* raw_size bytes */
};

/* A slice stays where it is while it is in the table; it is taken out only by reclaim
 * (if it is evictable), by a failed load (by the loader) or with its space. */
struct map_slice {
  /* Constant. */
  struct map_space *space;
  uint64_t index;               /* slice number */

  /* Guarded by the shard lock. */
  struct map_slice *next;       /* in the same bucket */
  union {
    void *body;                 /* NULL if empty */
    struct pack *pack;
    struct raw *raw;
  };
  uint32_t charged;             /* bytes counted for it */
  uint8_t form;                 /* enum slice_form */
  bool busy;                    /* somebody is about to change the form, with no lock
                                   held: only they may do so, or remove it */
  bool evictable;               /* is in the shard's queue: see map_account */
  bool referenced;              /* since the hand came by */
  /* What a hit needs ends here. */
  struct map_slice *queue_next, *queue_prev;
};

struct shard {
  _Alignas (64) pthread_mutex_t lock;
  /* Guarded by lock. */
  struct map_slice **buckets;
  uint64_t hits;
  unsigned nr_buckets;          /* 0 or a power of two */
  unsigned nr_slices;
  /* What a hit needs ends here, after one cache line. */
  struct map_slice *queue_head; /* the evictable ones: the hand points to the head */
  struct map_slice *queue_tail;
  uint64_t misses, peeks, evictions, packs;
  uint64_t claims;              /* slices that somebody was about to make raw, ever */
  pthread_cond_t changed;       /* some slice is no longer busy */
};

struct map {
  struct budget budget;
  struct shard shards[MAP_SHARDS];

  _Atomic uint64_t largest;    /* bytes of the largest slice yet */
  _Atomic uint64_t ripe;           /* bit I: shard I has evictable slices */
  atomic_uint_fast64_t buckets;    /* of all shards */
  atomic_uint_fast64_t dirty;      /* bytes of raw slices, of all spaces */
  atomic_uint hand;             /* shard that reclaim looks at next */
  atomic_uint_fast64_t looks;   /* slices that reclaim has looked at, ever */

  pthread_mutex_t lock;         /* guards the two below; taken alone */
  struct map_space *spaces;
  uint64_t nr_spaces;           /* ever made */
};

struct map_space {
  /* Constant. */
  struct map *map;
  struct pack_shape shape;
  unsigned slice_bits;          /* log2 of the guest bytes of a slice */
  size_t raw_size;
  const struct map_ops *ops;
  void *opaque;
  uint64_t salt;                /* for the hash */

  struct map_space *next;       /* guarded by the map's lock */

  atomic_uint_fast64_t dirty_bytes;  /* changed under dirty_lock */

  pthread_mutex_t dirty_lock;   /* guards the list; taken within a shard's lock */
  struct map_slice *dirty, **dirty_tail;  /* oldest first */
  unsigned nr_dirty;
};

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

/* --- mapslice.c: with the shard lock held --- */

static inline struct map_slice **
map_bucket (const struct shard *shard, const struct map_space *space,
            uint64_t index)
{
  return &shard->buckets[map_hash (space, index) / MAP_SHARDS
                         & (shard->nr_buckets - 1)];
}

/* The slice, or NULL. */
static inline struct map_slice *
map_find (const struct shard *shard, const struct map_space *space,
          uint64_t index)
{
  struct map_slice *s;

  if (shard->nr_buckets == 0)
    return NULL;
  for (s = *map_bucket (shard, space, index); s; s = s->next)
    if (s->index == index && s->space == space)
      return s;
  return NULL;
}

/* Adds a slice that is empty and busy.  NULL on ENOMEM (reported). */
extern struct map_slice *map_insert (struct shard *, struct map_space *,
                                     uint64_t index);

/* For the one that made the slice busy, when done: either puts it back to use, or
 * takes it out (it and its body are then the caller's to free).  Wakes those
 * who wait. */
extern void map_not_busy (struct shard *, struct map_slice *);
extern void map_give_up (struct shard *, struct map_slice *);

/* Takes the slice out of its bucket. */
extern void map_unlink (struct shard *, struct map_slice *);

/* --- mapslice.c: with no lock held --- */

/* Frees slices that were taken out, linked by next, with their bodies. */
extern void map_free_slices (struct map_slice *);

/* The pack of a slice: from RAW, or if that is NULL, from the loader.  NULL on
 * error, with errno set and reported. */
extern struct pack *map_make_pack (const struct map_space *, uint64_t index,
                                   const void *raw);

/* --- mapmem.c --- */

/* Counts a block from malloc that is no slice (NULL is fine). */
extern void map_charge (struct map *, void *block);
extern void map_discharge (struct map *, void *block);

/* With the shard lock held, after each change of body, form, busy, pins, dirty or
 * writing: counts the slice's memory anew, and whether it could be evicted. */
extern void map_account (struct map_slice *);
/* The slice has been taken out. */
extern void map_account_gone (struct map_slice *);
/* The hand shall come to this evictable slice last. */
extern void map_requeue (struct map_slice *);

/* Might one more slice make others go? */
extern bool map_is_full (struct map *);

/* Is more held than should be, and can something go? */
extern bool map_over_limit (struct map *);

/* --- mapreclaim.c --- */

/* Brings the memory held below the limit, if that is possible.  No lock held.
 * Keeps errno. */
extern void map_reclaim (struct map *);

#endif /* QCOW2_MAP_IMPL_H */
