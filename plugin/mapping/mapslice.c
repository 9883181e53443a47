/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are slices added to the table of the mapping cache, and removed from it?
 *
 * Part of map.c: the hash table of each shard, and loading and packing one slice.
 *
 * Locks: the shard's lock guards its table; loading and packing happen without it.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "mapping/map-impl.h"

#define MIN_BUCKETS 4           /* in a shard that has slices */

struct map_fill {
  struct pack_builder builder;
};

/* --- the table --- */

/* Makes space for one more slice.  If there is no memory for a larger table, the old one
 * is used; -1 if there is none. */
static int
grow (struct map *map, struct shard *shard)
{
  struct map_slice **old = shard->buckets, *s, **b;
  const unsigned nr_old = shard->nr_buckets;

  if (shard->nr_slices < nr_old)
    return 0;

  shard->nr_buckets = nr_old ? nr_old * 2 : MIN_BUCKETS;
  shard->buckets = calloc (shard->nr_buckets, sizeof *shard->buckets);
  if (shard->buckets == NULL) {
    shard->buckets = old;
    shard->nr_buckets = nr_old;
    return nr_old ? 0 : -1;
  }
  map_charge (map, shard->buckets);
  atomic_fetch_add (&map->buckets, shard->nr_buckets - nr_old);

  for (unsigned i = 0; i < nr_old; i++)
    while ((s = old[i]) != NULL) {
      old[i] = s->next;
      b = map_bucket (shard, s->space, s->index);
      s->next = *b;
      *b = s;
    }
  map_discharge (map, old);
  free (old);
  return 0;
}

struct map_slice *
map_insert (struct shard *shard, struct map_space *space, uint64_t index)
{
  struct map_slice *s = calloc (1, sizeof *s), **b;

  if (s == NULL || grow (space->map, shard) == -1) {
    nbdkit_error ("mapping cache: slice %" PRIu64 ": calloc: %m", index);
    free (s);
    errno = ENOMEM;
    return NULL;
  }
  s->space = space;
  s->index = index;
  s->form = SLICE_EMPTY;
  s->busy = true;
  b = map_bucket (shard, space, index);
  s->next = *b;
  *b = s;
  shard->nr_slices++;
  map_account (s);
  return s;
}

void
map_unlink (struct shard *shard, struct map_slice *s)
{
  struct map_slice **link = map_bucket (shard, s->space, s->index);

  while (*link != s)
    link = &(*link)->next;
  *link = s->next;
  shard->nr_slices--;
  map_account_gone (s);
}

void
map_not_busy (struct shard *shard, struct map_slice *s)
{
  s->busy = false;
  map_account (s);
  pthread_cond_broadcast (&shard->changed);
}

void
map_give_up (struct shard *shard, struct map_slice *s)
{
  map_unlink (shard, s);
  pthread_cond_broadcast (&shard->changed);
}

void
map_free_slices (struct map_slice *s)
{
  struct map_slice *next;

  for (; s; s = next) {
    next = s->next;
    free (s->body);
    free (s);
  }
}

void
map_loaded (struct shard *shard, struct map_slice *s, struct pack *p)
{
  KEEP_ERRNO_FOR_BLOCK;

  pthread_mutex_lock (&shard->lock);
  if (p) {
    s->pack = p;
    s->form = SLICE_PACK;
    map_not_busy (shard, s);
  }
  else
    map_give_up (shard, s);
  pthread_mutex_unlock (&shard->lock);
  if (p == NULL)
    free (s);
}

/* --- loading and packing: no lock is held --- */

int
map_fill_add (struct map_fill *fill, unsigned units, enum run_kind kind,
              bool copied, uint16_t layer, uint64_t host)
{
  if (pack_add (&fill->builder, units, kind, copied, layer, host) == -1) {
    nbdkit_error ("mapping cache: realloc: %m");
    return -1;
  }
  return 0;
}

static int
fill_from_raw (const struct map_space *space, const void *raw,
               struct map_fill *fill)
{
  const unsigned units = space->shape.units;
  struct run run;
  unsigned unit, n;

  for (unit = 0; unit < units; unit += n) {
    n = space->ops->decode (space->opaque, raw, unit, units - unit, &run);
    assert (n >= 1 && n <= units - unit);
    if (map_fill_add (fill, n, run.kind, run.copied, run.layer, run.host) == -1)
      return -1;
  }
  return 0;
}

static int
load_and_fill (const struct map_space *space, uint64_t index,
               struct map_fill *fill)
{
  CLEANUP_FREE void *raw = NULL;

  if (space->ops->load)
    return space->ops->load (space->opaque, index, fill);

  raw = malloc (space->raw_size);
  if (raw == NULL) {
    nbdkit_error ("mapping cache: malloc: %m");
    return -1;
  }
  if (space->ops->load_raw (space->opaque, index, raw) == -1)
    return -1;
  return fill_from_raw (space, raw, fill);
}

struct pack *
map_make_pack (const struct map_space *space, uint64_t index, const void *raw)
{
  struct map_fill fill;
  struct pack *p = NULL;
  int r;

  pack_begin (&fill.builder, space->shape);
  r = raw ? fill_from_raw (space, raw, &fill)
          : load_and_fill (space, index, &fill);
  if (r == 0) {
    p = pack_build (&fill.builder);
    if (p == NULL)
      nbdkit_error ("mapping cache: malloc: %m");
  }
  KEEP_ERRNO_FOR_BLOCK;
  pack_end (&fill.builder);
  return p;
}
