/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A stamp passes when, and only when, all threads that entered before it have left.
 *
 * The stress test acts like the allocator: a cell is published; readers enter, fetch the
 * published cell and use it; a remover takes it out, takes a stamp, and uses the cell for
 * something else once the stamp has passed.  If a reader finds that its cell is reused
 * while it reads, R4 (b) is violated.
 *
 * epoch.c is compiled into the test, so that a thread can be made to lose the CPU between
 * any two of its steps.  Mistakes would show up there, and by itself this happens too
 * rarely.
 */

#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "lib/stubs.h"

static _Thread_local struct rng *disturb_rng;   /* NULL: leave it alone */

static void
disturb (void)
{
  if (disturb_rng && rng_below (disturb_rng, 8) == 0) {
    if (rng_below (disturb_rng, 4))
      sched_yield ();
    else
      nanosleep (&(struct timespec) { .tv_nsec = 1000 }, NULL);
  }
}

#undef atomic_load
#define atomic_load(p)                                          \
  (disturb (), atomic_load_explicit ((p), memory_order_seq_cst))
#undef atomic_store
#define atomic_store(p, x)                                      \
  (disturb (), atomic_store_explicit ((p), (x), memory_order_seq_cst))
#undef atomic_fetch_add
#define atomic_fetch_add(p, x)                                  \
  (disturb (), atomic_fetch_add_explicit ((p), (x), memory_order_seq_cst))
#undef atomic_compare_exchange_strong
#define atomic_compare_exchange_strong(p, e, x)                 \
  (disturb (), atomic_compare_exchange_strong_explicit          \
   ((p), (e), (x), memory_order_seq_cst, memory_order_seq_cst))

#include "util/epoch.c"

#define READERS 2
#define REMOVERS 2
#define CELLS 64                /* per remover */

/* --- one thread --- */

static void
test_order (void)
{
  struct epoch *ep = epoch_new ();
  struct epoch_section a, b, c;
  uint64_t s, s2;

  CHECK (ep != NULL);

  /* Nobody is there. */
  s = epoch_stamp (ep);
  CHECK (epoch_passed (ep, s));
  CHECK (epoch_passed (ep, s));

  /* One who entered before holds it up, for as long as he stays. */
  a = epoch_enter (ep);
  s = epoch_stamp (ep);
  for (int i = 0; i < 10; i++)
    CHECK (!epoch_passed (ep, s));
  epoch_leave (ep, a);
  CHECK (epoch_passed (ep, s));

  /* Those who enter later don't, even if there is always one of them. */
  a = epoch_enter (ep);
  s = epoch_stamp (ep);
  b = epoch_enter (ep);
  CHECK (!epoch_passed (ep, s));
  epoch_leave (ep, a);
  for (int i = 0; i < 10 && !epoch_passed (ep, s); i++) {
    c = epoch_enter (ep);
    epoch_leave (ep, b);
    b = c;
    CHECK (i < 5);
  }
  CHECK (epoch_passed (ep, s));

  /* He holds up the later stamps. */
  s2 = epoch_stamp (ep);
  for (int i = 0; i < 10; i++)
    CHECK (!epoch_passed (ep, s2));
  CHECK (epoch_passed (ep, s));
  epoch_leave (ep, b);
  CHECK (epoch_passed (ep, s2));

  /* Pins nest and may end in any order. */
  a = epoch_enter (ep);
  b = epoch_enter (ep);
  s = epoch_stamp (ep);
  epoch_leave (ep, a);
  CHECK (!epoch_passed (ep, s));
  a = epoch_enter (ep);
  epoch_leave (ep, b);
  epoch_leave (ep, a);
  CHECK (epoch_passed (ep, s));
  epoch_free (ep);
}

/* What is counted does not look like sections, and is not lost. */
static void
test_counting (void)
{
  struct epoch *ep = epoch_new ();
  struct epoch_section a;
  uint64_t s;

  CHECK (ep != NULL && epoch_counted (ep) == 0);
  for (uint64_t n = 1; n < 100000; n++) {
    a = epoch_enter (ep);
    epoch_leave_counting (ep, a);
    if (n % 10000)
      continue;
    CHECK (epoch_counted (ep) == n);
    a = epoch_enter (ep);
    s = epoch_stamp (ep);
    CHECK (!epoch_passed (ep, s));
    epoch_leave (ep, a);
    CHECK (epoch_passed (ep, s) && epoch_counted (ep) == n);
  }
  epoch_free (ep);
}

/* --- threads that come and go --- */

#define MANY (2 * OWNED)

struct visit {
  struct epoch *ep;
  pthread_barrier_t *inside, *over;
  unsigned slot;
};

static void *
visit (void *arg)
{
  struct visit *v = arg;
  const struct epoch_section section = epoch_enter (v->ep);

  v->slot = section.slot % SLOTS;
  pthread_barrier_wait (v->inside);
  pthread_barrier_wait (v->over);
  epoch_leave_counting (v->ep, section);
  return NULL;
}

/* N threads are inside at the same time. */
static void
visit_together (struct epoch *ep, unsigned n)
{
  struct visit v[MANY];
  pthread_t t[MANY];
  pthread_barrier_t inside, over;
  unsigned users[SLOTS] = { 0 }, i;
  uint64_t s;

  pthread_barrier_init (&inside, NULL, n + 1);
  pthread_barrier_init (&over, NULL, n + 1);
  for (i = 0; i < n; i++) {
    v[i] = (struct visit) { .ep = ep, .inside = &inside, .over = &over };
    CHECK (pthread_create (&t[i], NULL, visit, &v[i]) == 0);
  }
  pthread_barrier_wait (&inside);
  s = epoch_stamp (ep);
  CHECK (!epoch_passed (ep, s));
  pthread_barrier_wait (&over);
  for (i = 0; i < n; i++)
    pthread_join (t[i], NULL);
  CHECK (epoch_passed (ep, s));

  for (i = 0; i < n; i++)
    users[v[i].slot]++;
  for (i = 0; i < OWNED; i++)
    CHECK (users[i] <= 1);
  if (n < OWNED / 2)            /* threads that have ended own nothing */
    for (i = OWNED; i < SLOTS; i++)
      CHECK (users[i] == 0);
  pthread_barrier_destroy (&inside);
  pthread_barrier_destroy (&over);
}

static void
test_threads (void)
{
  struct epoch *ep = epoch_new ();

  CHECK (ep != NULL);
  for (unsigned i = 0; i < 3; i++) {
    visit_together (ep, MANY);
    visit_together (ep, 2);
  }
  CHECK (epoch_counted (ep) == 3 * (MANY + 2));
  epoch_free (ep);
}

/* --- stress --- */

struct cell {
  atomic_uint life;             /* changes whenever the cell is reused */
};

struct place {                  /* where readers find a cell */
  _Atomic (struct cell *) cell;
};

struct stress {
  struct epoch *ep;
  struct place places[REMOVERS];
  struct cell cells[REMOVERS][CELLS];
  atomic_bool stop;
  atomic_ulong uses, reuses, busy;
};

struct worker { struct stress *s; struct rng rng; unsigned n; };

static void *
reader (void *arg)
{
  struct worker *w = arg;
  struct stress *s = w->s;
  unsigned long uses = 0;

  disturb_rng = &w->rng;
  while (!atomic_load (&s->stop)) {
    const struct epoch_section section = epoch_enter (s->ep);
    struct cell *cell =
      atomic_load (&s->places[rng_below (&w->rng, REMOVERS)].cell);
    const unsigned life = atomic_load (&cell->life);

    for (unsigned i = rng_below (&w->rng, 20); i > 0; i--)
      CHECK (atomic_load (&cell->life) == life);
    epoch_leave (s->ep, section);
    uses++;
  }
  atomic_fetch_add (&s->uses, uses);
  return NULL;
}

static void *
remover (void *arg)
{
  struct worker *w = arg;
  struct stress *s = w->s;
  struct place *place = &s->places[w->n];
  struct { struct cell *cell; uint64_t stamp; } waiting[CELLS];
  unsigned nr_waiting = 0, nr_free = 0, i;
  struct cell *free_cells[CELLS], *old;

  disturb_rng = &w->rng;
  for (i = 1; i < CELLS; i++)           /* cell 0 is published */
    free_cells[nr_free++] = &s->cells[w->n][i];

  while (!atomic_load (&s->stop)) {
    if (nr_free > 0) {
      old = atomic_exchange (&place->cell, free_cells[--nr_free]);
      waiting[nr_waiting].cell = old;
      waiting[nr_waiting++].stamp = epoch_stamp (s->ep);
    }
    else
      sched_yield ();
    for (i = 0; i < nr_waiting;) {
      if (!epoch_passed (s->ep, waiting[i].stamp)) {
        atomic_fetch_add (&s->busy, 1);
        i++;
        continue;
      }
      atomic_fetch_add (&waiting[i].cell->life, 1);     /* reused */
      atomic_fetch_add (&s->reuses, 1);
      free_cells[nr_free++] = waiting[i].cell;
      waiting[i] = waiting[--nr_waiting];
    }
  }
  return NULL;
}

/* It makes progress with readers always there, and is not just always true. */
static bool
seen_enough (struct stress *s)
{
  return atomic_load (&s->reuses) > 100 && atomic_load (&s->busy) > 0;
}

static void
test_stress (uint64_t seed)
{
  struct stress *s = calloc (1, sizeof *s);
  struct worker w[READERS + REMOVERS];
  pthread_t t[READERS + REMOVERS];
  unsigned i;

  CHECK (s != NULL);
  s->ep = epoch_new ();
  CHECK (s->ep != NULL);
  for (i = 0; i < REMOVERS; i++)
    atomic_init (&s->places[i].cell, &s->cells[i][0]);

  for (i = 0; i < READERS + REMOVERS; i++) {
    w[i].s = s;
    w[i].n = i - READERS;
    rng_init (&w[i].rng, seed, i);
    CHECK (pthread_create (&t[i], NULL, i < READERS ? reader : remover, &w[i])
           == 0);
  }
  /* On a loaded machine, until something has happened. */
  do
    nanosleep (&(struct timespec) { .tv_sec = 1 }, NULL);
  while (!seen_enough (s));
  atomic_store (&s->stop, true);
  for (i = 0; i < READERS + REMOVERS; i++)
    pthread_join (t[i], NULL);

  printf ("%lu uses, %lu reuses, %lu times too early\n",
          atomic_load (&s->uses), atomic_load (&s->reuses),
          atomic_load (&s->busy));
  epoch_free (s->ep);
  free (s);
}

/* Not run by default: how much does a section cost? */
static void
bench (void)
{
  const unsigned n = 50000000;
  struct epoch *ep = epoch_new ();
  struct timespec a, b;

  CHECK (ep != NULL);
  clock_gettime (CLOCK_MONOTONIC, &a);
  for (unsigned i = 0; i < n; i++)
    epoch_leave (ep, epoch_enter (ep));
  clock_gettime (CLOCK_MONOTONIC, &b);
  printf ("enter and leave: %.1f ns\n",
          ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n);
  epoch_free (ep);
}

int
main (int argc, char *argv[])
{
  if (argc > 1 && strcmp (argv[1], "--bench") == 0) {
    bench ();
    return 0;
  }
  test_order ();
  test_counting ();
  test_threads ();
  test_stress (seed_from_env ());
  return 0;
}
