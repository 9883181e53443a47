/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Before a fork, map_end_ahead tells the thread that loads slices ahead that nobody wants
 * them, and waits for it.  Afterwards, in the child too, readers in order start another
 * one, and the map can be freed.
 */

#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/unwanted.h"
#include "mapping/map.h"
#include "lib/stubs.h"

#define SLICES 16
#define UNITS 64u
#define UNIT_BITS 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool ahead;              /* the thread's load has begun; guarded by lock */
static atomic_bool held;        /* it lasts until it is unwanted */
static atomic_bool loading;     /* the thread is at it */
static pthread_t reader;        /* constant */

static int
load (void *opaque, uint64_t slice, unsigned n, struct map_fill *fill)
{
  (void) opaque;
  for (unsigned i = 0; i < n; i++)
    if (map_fill_add (fill, UNITS, RUN_NORMAL, true, 0,
                      (slice + i) * UNITS << UNIT_BITS) == -1)
      return -1;
  if (pthread_equal (pthread_self (), reader))
    return 0;
  loading = true;
  pthread_mutex_lock (&lock);
  ahead = true;
  pthread_cond_broadcast (&changed);
  pthread_mutex_unlock (&lock);
  while (held && !unwanted ())
    sched_yield ();
  loading = false;
  return 0;
}

static uint64_t
slow_slices (void *opaque)
{
  (void) opaque;
  return SLICES;
}

static const struct map_ops ops = { .load = load, .slow_slices = slow_slices };

/* Reads the beginning of a slice, which makes a thread load the next one. */
static void
read_slice (struct map_space *space, unsigned index)
{
  const uint64_t offset = (uint64_t) index * UNITS << UNIT_BITS;
  struct run run;

  CHECK (map_lookup (space, offset, 512, &run) == 0 && run.kind == RUN_NORMAL &&
         run.host == offset);
}

static void
await_ahead (void)
{
  pthread_mutex_lock (&lock);
  while (!ahead)
    pthread_cond_wait (&changed, &lock);
  ahead = false;
  pthread_mutex_unlock (&lock);
}

static void
child (struct map *map, struct map_space *space)
{
  reader = pthread_self ();
  for (unsigned i = 1; i < 6; i++) {
    read_slice (space, i);
    await_ahead ();
  }
  map_free (map);
  _exit (0);
}

int
main (void)
{
  struct map *map = map_new (1 << 20);
  struct map_space *space = map_space_new (map, UNIT_BITS, UNITS, 0, &ops, NULL);
  int status;
  pid_t pid;

  reader = pthread_self ();
  held = true;
  read_slice (space, 0);
  await_ahead ();
  CHECK (loading);
  map_end_ahead (map);
  CHECK (!loading);
  held = false;

  pid = fork ();
  if (pid == 0)
    child (map, space);
  CHECK (waitpid (pid, &status, 0) == pid && status == 0);
  map_free (map);
  CHECK (error_count () == 0);
  return 0;
}
