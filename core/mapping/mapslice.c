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
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "mapping/map-impl.h"

#define MIN_BUCKETS 4           /* in a shard that has slices */
#define MOST_YIELDS 8           /* while waiting for a lookup */
#define PAUSE 50000             /* ns: after that */

/* --- the table --- */

static void
link_slice (struct map_buckets *table, struct map_slice *s)
{
  _Atomic (struct map_slice *) *b = map_bucket (table, s->space, s->index);

  s->next = *b;
  *b = s;
}

/* Makes space for one more slice.  If there is no memory for a larger table, the old one
 * is used; -1 if there is none. */
static int
grow (struct map *map, struct shard *shard)
{
  _Atomic (struct map_buckets *) *const table = &map->tables[shard - map->shards];
  struct map_buckets *const old = *table;
  const unsigned nr_old = old ? old->n : 0;
  const unsigned n = nr_old ? nr_old * 2 : MIN_BUCKETS;
  struct map_buckets *new;
  struct map_slice *s;

  if (shard->nr_slices < nr_old)
    return 0;

  new = calloc (1, sizeof *new + n * sizeof new->first[0]);
  if (new == NULL)
    return old ? 0 : -1;
  new->n = n;
  map_charge (map, new);
  atomic_fetch_add (&map->buckets, n - nr_old);

  /* Lookups without the lock may meet a slice on its way from list to list, and end up in
   * another one.  Then they do not find what they look for, and take the lock. */
  for (unsigned i = 0; i < nr_old; i++)
    while ((s = old->first[i]) != NULL) {
      old->first[i] = s->next;
      link_slice (new, s);
    }
  *table = new;
  if (old) {
    map_discharge (map, old);
    map_await_lookups (map);
    free (old);
  }
  return 0;
}

struct map_slice *
map_insert (struct shard *shard, struct map_space *space, uint64_t index)
{
  struct map_slice *s = calloc (1, sizeof *s);

  if (s == NULL || grow (space->map, shard) == -1) {
    report_error ("mapping cache: slice %" PRIu64 ": calloc: %m", index);
    free (s);
    errno = ENOMEM;
    return NULL;
  }
  s->space = space;
  s->index = index;
  s->form = SLICE_EMPTY;
  s->busy = true;
  link_slice (space->map->tables[shard - space->map->shards], s);
  shard->nr_slices++;
  map_account (s);
  return s;
}

void
map_unlink (struct shard *shard, struct map_slice *s)
{
  struct map *map = s->space->map;
  _Atomic (struct map_slice *) *link =
    map_bucket (map->tables[shard - map->shards], s->space, s->index);
  struct map_slice *other;

  while ((other = *link) != s)
    link = &other->next;
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
map_await_lookups (struct map *map)
{
  KEEP_ERRNO_FOR_BLOCK;
  const uint64_t stamp = epoch_stamp (map->readers);

  /* A lookup that lasts has lost its processor.  This thread may be the reason, if its
   * priority is higher: it has to sleep then. */
  for (unsigned n = 0; !epoch_passed (map->readers, stamp); n++)
    if (n < MOST_YIELDS)
      sched_yield ();
    else
      nanosleep (&(struct timespec) { .tv_nsec = PAUSE }, NULL);
}

void
map_free_slices (struct map *map, struct map_slice *s)
{
  struct map_slice *next;

  if (s)
    map_await_lookups (map);
  for (; s; s = next) {
    next = s->next;
    free (s->body);
    free (s);
  }
}
