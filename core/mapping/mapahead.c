/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a reader in order find the next slice in memory, if loading takes long?
 *
 * Part of map.c, for spaces whose slices come over a link.  When a slice is used for the
 * first time, and the reader seems to go through the disk in order, a thread begins to
 * load the next one.  Its first use makes the thread load the one after it, and so on:
 * hits cost nothing more.
 *
 *      reader   [ slice 4 ][ slice 5 ]
 *      thread    ^ loads 5  ^ loads 6
 *
 * A reader seems to be in order if the slice before was among the last ones that came
 * into use, or if it begins near the beginning of the slice.  A few random readers do so,
 * too: they get slices that they did not ask for, unless memory is short.
 *
 * The same thread loads what the layers below have for a range while a request waits for
 * the table of the writable image.
 *
 * The thread exists while there is something to load.  What it fails to load, a request
 * will try again.  No thread survives a fork: map_end_ahead comes before it.
 *
 * Locks: `lock' guards the fields below it.  It may be taken within a shard's lock, and
 * no lock is taken within it.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/unwanted.h"
#include "mapping/map-impl.h"

#define MOST_WANTED 8
#define MOST_RECENT 8
#define BEGINNING 16            /* the first of so many parts of a slice */

struct map_ahead {
  uint64_t slices;              /* constant */
  atomic_bool ending;           /* the thread is waited for */

  pthread_mutex_t lock;
  uint64_t recent[MOST_RECENT]; /* slices used first lately, plus 1 */
  unsigned next_recent;
  uint64_t wanted[MOST_WANTED]; /* slices to be loaded */
  unsigned nr_wanted;
  bool running;                 /* the thread takes what is wanted */
  bool started;                 /* there is a thread to be joined */
  pthread_t thread;
};

struct map_ahead *
map_ahead_new (uint64_t slices)
{
  struct map_ahead *a = calloc (1, sizeof *a);

  if (a) {
    a->slices = slices;
    pthread_mutex_init (&a->lock, NULL);
  }
  return a;
}

void
map_ahead_end (struct map_ahead *a)
{
  if (a == NULL)
    return;
  pthread_mutex_lock (&a->lock);
  a->nr_wanted = 0;
  pthread_mutex_unlock (&a->lock);
  a->ending = true;
  if (a->started)
    pthread_join (a->thread, NULL);
  a->started = false;
  a->ending = false;
}

void
map_ahead_free (struct map_ahead *a)
{
  if (a == NULL)
    return;
  map_ahead_end (a);
  pthread_mutex_destroy (&a->lock);
  free (a);
}

/* --- the thread --- */

/* Returns false, and ends, if there is nothing to do. */
static bool
take_wanted (struct map_ahead *a, uint64_t *index)
{
  LOCK_FOR_BLOCK (&a->lock);

  a->running = a->nr_wanted > 0;
  if (a->running)
    *index = a->wanted[--a->nr_wanted];
  return a->running;
}

static void *
load_wanted (void *opaque)
{
  struct map_space *space = opaque;
  uint64_t index;

  unwanted_if (&space->ahead->ending);
  while (take_wanted (space->ahead, &index)) {
    struct shard *shard = map_shard (space, index);
    struct map_slice *s = NULL;

    pthread_mutex_lock (&shard->lock);
    if (map_find (space, index) == NULL &&
        (s = map_insert (shard, space, index)) != NULL)
      s->ahead = true;
    pthread_mutex_unlock (&shard->lock);
    if (s) {
      struct map_group group;

      map_group_begin (&group, s);
      map_group_load (&group);
      map_group_end (&group);
      map_reclaim (space->map);
    }
  }
  return NULL;
}

/* With the lock held. */
static void
start_thread (struct map_ahead *a, struct map_space *space)
{
  /* If there was one, it has nothing left to do. */
  if (a->started)
    pthread_join (a->thread, NULL);
  a->started = a->running = pthread_create (&a->thread, NULL, load_wanted, space) == 0;
  if (!a->started)
    a->nr_wanted = 0;
}

/* --- the requests --- */

static bool
is_beginning (const struct map_space *space, unsigned unit)
{
  return unit < space->shape.units / BEGINNING;
}

/* Is the slice before this one among the last ones?  With the lock held. */
static bool
follows_recent (const struct map_ahead *a, uint64_t index)
{
  bool follows = false;

  for (unsigned i = 0; i < MOST_RECENT; i++)
    follows |= index > 0 && a->recent[i] == index;
  return follows;
}

bool
map_ahead_expects (struct map_ahead *a, const struct map_space *space, uint64_t index,
                   unsigned unit)
{
  LOCK_FOR_BLOCK (&a->lock);

  return is_beginning (space, unit) || follows_recent (a, index);
}

/* If the slice is in memory, its first use from now on counts as one of a slice that was
 * loaded ahead. */
static bool
is_here (struct map_space *space, uint64_t index)
{
  struct shard *shard = map_shard (space, index);
  struct map_slice *s;
  LOCK_FOR_BLOCK (&shard->lock);

  s = map_find (space, index);
  if (s) {
    s->ahead = true;
    s->referenced = false;
  }
  return s != NULL;
}

static void
want (struct map_space *space, uint64_t index)
{
  struct map_ahead *a = space->ahead;
  LOCK_FOR_BLOCK (&a->lock);

  for (unsigned i = 0; i < a->nr_wanted; i++)
    if (a->wanted[i] == index)
      return;
  if (a->nr_wanted == MOST_WANTED)
    return;
  a->wanted[a->nr_wanted++] = index;
  if (!a->running)
    start_thread (a, space);
}

void
map_ahead_touch (struct map_space *space, uint64_t index, unsigned unit)
{
  struct map_ahead *a = space->ahead;
  bool follows;

  {
    LOCK_FOR_BLOCK (&a->lock);
    follows = follows_recent (a, index);
    a->recent[a->next_recent++ % MOST_RECENT] = index + 1;
  }
  if (!follows && (!is_beginning (space, unit) || map_is_full (space->map)))
    return;
  if (index + 1 < a->slices && !is_here (space, index + 1))
    want (space, index + 1);
}

bool
map_has (struct map_space *space, uint64_t offset)
{
  const uint64_t index = offset >> space->slice_bits;
  struct shard *shard = map_shard (space, index);
  LOCK_FOR_BLOCK (&shard->lock);

  return map_find (space, index) != NULL;
}

void
map_load_ahead (struct map_space *space, uint64_t offset)
{
  if (space->ahead && !map_is_full (space->map) && !map_has (space, offset))
    want (space, offset >> space->slice_bits);
}
