/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a lookup without a lock may use is not freed before the lookup has ended, whatever
 * takes it out of the map.  A thread that waits for that lets others run: it sleeps, in
 * case the lookup's thread lost its processor because its priority is lower.
 *
 * A lookup is stopped while it reads a pack.  Another thread does one thing that frees
 * something, and has to be found asleep (the linker's --wrap).
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "util/budget.h"
#include "mapping/map.h"
#include "mapping/pack.h"
#include "lib/stubs.h"

#define UNITS 256u
#define UNIT_BITS 16
#define SLICE_BITS 24
#define MANY 2000u              /* slices: the tables grow */
#define MANY_LOOKUPS 2000u      /* a raw slice is packed after so many */

static _Thread_local bool stops;        /* this thread's next look at a pack does */
static _Thread_local bool changes;      /* this thread is the one that has to wait */
static sem_t stopped, go, waits;
static atomic_bool no_memory;           /* there is none for packs */

extern unsigned __real_pack_find (const struct pack *, struct pack_shape, unsigned,
                                  unsigned, struct run *);
extern unsigned __wrap_pack_find (const struct pack *, struct pack_shape, unsigned,
                                  unsigned, struct run *);
extern struct pack *__real_pack_build (const struct pack_builder *);
extern struct pack *__wrap_pack_build (const struct pack_builder *);
extern int __real_nanosleep (const struct timespec *, struct timespec *);
extern int __wrap_nanosleep (const struct timespec *, struct timespec *);

unsigned
__wrap_pack_find (const struct pack *p, struct pack_shape shape, unsigned unit,
                  unsigned max, struct run *run)
{
  if (stops) {
    stops = false;
    sem_post (&stopped);
    sem_wait (&go);
  }
  return __real_pack_find (p, shape, unit, max, run);
}

struct pack *
__wrap_pack_build (const struct pack_builder *b)
{
  if (no_memory) {
    errno = ENOMEM;
    return NULL;
  }
  return __real_pack_build (b);
}

int
__wrap_nanosleep (const struct timespec *t, struct timespec *rest)
{
  if (changes) {
    changes = false;
    sem_post (&waits);
  }
  return __real_nanosleep (t, rest);
}

/* --- slices: no two units alike --- */

static atomic_bool fails;       /* loading does */

static int
load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  (void) opaque;
  for (unsigned i = 0; i < n; i++)
    ((uint32_t *) raw)[i * UNITS] = slice + i;
  errno = EIO;
  return fails ? -1 : 0;
}

static unsigned
decode (void *opaque, const void *raw, unsigned unit, unsigned max, struct run *run)
{
  (void) opaque;
  (void) max;
  *run = (struct run) {
    .kind = RUN_NORMAL, .host = (*(const uint32_t *) raw * UNITS + unit * 7) << UNIT_BITS
  };
  return 1;
}

static const struct map_ops ops = { .load_raw = load_raw, .decode = decode };

static struct map *map;
static struct map_space *space, *other;
static atomic_bool done;

static void
look (struct map_space *where, uint64_t slice)
{
  struct run run;

  CHECK (map_lookup (where, (slice << SLICE_BITS) + (9 << UNIT_BITS), 1, &run) == 0);
  CHECK (run.kind == RUN_NORMAL && run.len == 1);
  CHECK (run.host == (uint32_t) (slice * UNITS + 9 * 7) << UNIT_BITS);
}

/* --- what frees something --- */

static void
pin (void)
{
  struct map_slice *s = map_pin (space, 0);

  CHECK (s != NULL);
  map_unpin (s);
}

static void
grow_tables (void)
{
  for (unsigned i = 1; i < MANY && changes; i++)
    look (space, i);
}

/* Most of the slices are more than the limit allows by now. */
static void
evict (void)
{
  look (space, MANY);
}

static void
end_space (void)
{
  map_space_free (other);
}

static void
fail_to_load (void)
{
  struct run run;

  fails = true;
  CHECK (map_lookup (space, UINT64_C (1) << SLICE_BITS, 1, &run) == -1 && errno == EIO);
  fails = false;
}

static void
fail_to_pin (void)
{
  fails = true;
  CHECK (map_pin (space, 1) == NULL && errno == EIO);
  fails = false;
}

/* Slice 2 was pinned, and is now looked up only. */
static void
fail_to_pack (void)
{
  no_memory = true;
  for (unsigned i = 0; i < MANY_LOOKUPS && changes; i++)
    look (space, 2);
  no_memory = false;
}

static const struct {
  const char *name;
  void (*change) (void);
} cases[] = {
  { "a slice is pinned", pin },
  { "slices are evicted", evict },
  { "tables grow", grow_tables },
  { "a space ends", end_space },
  { "a load fails", fail_to_load },
  { "a pin fails", fail_to_pin },
  { "packing fails", fail_to_pack },
};

/* --- threads --- */

static void *
changer (void *opaque)
{
  void (*const *change) (void) = opaque;

  changes = true;
  (*change) ();
  done = true;
  sem_post (&waits);
  return NULL;
}

static void *
looker (void *opaque)
{
  (void) opaque;
  /* Twice, so that the third lookup takes no lock. */
  look (space, 0);
  look (space, 0);
  stops = true;
  look (space, 0);
  return NULL;
}

int
main (void)
{
  pthread_t a, b;
  struct map_slice *s;

  CHECK (sem_init (&stopped, 0, 0) == 0 && sem_init (&go, 0, 0) == 0 &&
         sem_init (&waits, 0, 0) == 0);
  quiet_errors = true;
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    printf ("%s\n", cases[i].name);
    fflush (stdout);
    map = map_new (1 << 30);
    CHECK (map != NULL);
    space = map_space_new (map, UNIT_BITS, UNITS, UNITS * 4, &ops, NULL);
    other = map_space_new (map, UNIT_BITS, UNITS, UNITS * 4, &ops, NULL);
    CHECK (space != NULL && other != NULL);
    look (other, 3);
    if (cases[i].change == evict) {
      for (unsigned k = 1; k < MANY; k++)
        look (space, k);
      map_budget (map)->limit = 0;
    }
    s = map_pin (space, 2);
    CHECK (s != NULL);
    map_unpin (s);

    CHECK (pthread_create (&a, NULL, looker, NULL) == 0);
    sem_wait (&stopped);
    done = false;
    CHECK (pthread_create (&b, NULL, changer, (void *) &cases[i].change) == 0);
    sem_wait (&waits);
    CHECK (!done);
    sem_post (&go);
    pthread_join (a, NULL);
    pthread_join (b, NULL);
    sem_wait (&waits);
    map_free (map);
  }
  return 0;
}
