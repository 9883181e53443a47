/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are slices added to the table of the mapping cache, and removed from it?
 *
 * Part of map.c: the hash table of each shard.
 *
 * Locks: the shard's lock guards its table.
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
