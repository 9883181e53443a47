/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Have all requests ended that began before now?
 *
 * There is a 64-bit epoch.  Two counters, one for even and one for odd epochs, count the
 * requests that entered in such an epoch and have not left.  (Each counter is the sum of
 * several slots, each on a cache line of its own: the low bits of a slot.  Its other bits
 * count calls of epoch_leave_counting.)
 *
 * Most slots belong to one thread, which alone changes them: it loads and stores, and
 * only the store of enter has to be ordered before what follows.  Threads for which there
 * is none left share the others, and change them with one access that both reads and
 * writes.
 *
 *   enter  read the epoch e, increment the counter of parity e & 1, read the epoch
 *          again.  If it is still e, the section belongs to epoch e; otherwise decrement
 *          the counter and try again.
 *   leave  decrement where enter incremented.
 *   stamp  read the epoch.
 *   move   from e to e+1: only after each slot of parity (e+1) & 1 was seen to be 0 at
 *          some moment since the epoch became e.
 *
 * A stamp s has passed when the epoch is s+2 or more.  Why that is safe:
 *
 * (1) All accesses but those that leave are sequentially consistent: there is one order
 * of
 *     all of them.  (To leave is a release: a thread that sees that a section has ended
 *     comes after all that was done in it.)  The epoch never decreases, and 64 bits do
 *     not wrap around.
 * (2) A section of epoch e incremented the counter before its second read, which still
 *     found e.  So it is counted before the epoch became e+1.  A thread that moves the
 *     epoch on from e+1 looks at parity e & 1 after it has read e+1.  It finds the slot
 *     of the section above 0 for as long as the section is held, and does not move.  (A
 *     slot is never less than the number of sections held in it, because each section
 *     increments first and decrements last, in the same slot.  Requests in enter that
 *     will try again only cause a delay.)  Hence: while a section of epoch e is held, the
 *     epoch is at most e+1.
 * (3) Two threads that move at the same time both compare-and-swap from the epoch that
 *     they read, so what one of them saw long ago cannot move a later epoch.
 * (4) A request that entered before stamp s was taken has an epoch e <= s, by (1).
 *     While its section is held the epoch is at most e+1 <= s+1, by (2).  So at s+2 it
 *     has left.
 *
 * A request that entered after the stamp may still be running, and nothing needs to wait
 * for it: it looks up after entering, hence after the old mapping was removed.  (If its
 * lookup had found the old mapping, it took the lock that guards the mapping before the
 * remover did, or read an atomic before the remover changed it: all those accesses are
 * part of the order of (1).  So it entered before the remover took the stamp.)
 *
 * New requests never delay an old stamp for ever: they belong to the current epoch, and
 * only the previous one is waited for.
 *
 * Locks: none.  Every field is atomic or constant, or belongs to a thread.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "util/epoch.h"

#define SLOTS EPOCH_THREADS     /* a power of two, at most as many as bits of owned */
#define OWNED 48                /* so many of them belong to one thread */

/* In the count of a slot: bits for sections; above them, what is counted. */
#define SECTION_BITS 16
#define SECTIONS ((UINT64_C (1) << SECTION_BITS) - 1)

struct slot {
  _Alignas (64) _Atomic uint64_t count;
};

struct epoch {
  struct slot slots[2][SLOTS];
  _Alignas (64) _Atomic uint64_t current;
};

struct epoch *
epoch_new (void)
{
  struct epoch *ep = aligned_alloc (_Alignof (struct epoch), sizeof *ep);

  if (ep == NULL)
    return NULL;
  for (unsigned parity = 0; parity < 2; parity++)
    for (unsigned i = 0; i < SLOTS; i++)
      atomic_init (&ep->slots[parity][i].count, 0);
  atomic_init (&ep->current, 0);
  return ep;
}

void
epoch_free (struct epoch *ep)
{
  free (ep);
}

/* --- threads --- */

/* In the whole process, so that a thread has the same slot everywhere. */
static _Atomic uint64_t owned;                  /* bit I: a thread has slot I */
static pthread_key_t ends;                      /* of threads that have one */
static bool knows_ends;
static _Thread_local unsigned number;           /* of the slot; 0: none yet */

/* It has no sections.  What it counted stays. */
static void
thread_ends (void *mine)
{
  number = 0;
  atomic_fetch_and (&owned, ~(UINT64_C (1) << ((uintptr_t) mine - 1)));
}

static void __attribute__ ((constructor))
create_key (void)
{
  knows_ends = pthread_key_create (&ends, thread_ends) == 0;
}

/* Threads may outlive this library. */
static void __attribute__ ((destructor))
delete_key (void)
{
  if (knows_ends)
    pthread_key_delete (ends);
}

/* A slot that no other thread has, or one that it shares. */
static unsigned __attribute__ ((noinline))
find_slot (void)
{
  static atomic_uint sharers;
  uint64_t before = atomic_load (&owned);
  unsigned i;

  while (knows_ends && (i = __builtin_ctzll (~before)) < OWNED)
    if (atomic_compare_exchange_strong (&owned, &before, before | UINT64_C (1) << i)) {
      if (pthread_setspecific (ends, (void *) (uintptr_t) (i + 1)) == 0)
        return i;
      thread_ends ((void *) (uintptr_t) (i + 1));       /* no memory */
      break;
    }
  return OWNED + atomic_fetch_add (&sharers, 1) % (SLOTS - OWNED);
}

/* Any slot would be correct; a thread keeps the one it got first. */
static inline unsigned
my_slot (void)
{
  if (__builtin_expect (number == 0, 0))
    number = 1 + find_slot ();
  return number - 1;
}

unsigned
epoch_thread (bool *alone)
{
  const unsigned i = my_slot ();

  *alone = i < OWNED;
  return i;
}

/* --- sections --- */

static inline _Atomic uint64_t *
count_of (struct epoch *ep, struct epoch_section section)
{
  return &ep->slots[section.slot / SLOTS][section.slot % SLOTS].count;
}

static inline bool
is_owned (struct epoch_section section)
{
  return section.slot % SLOTS < OWNED;
}

/* Subtracts one section, and adds what is counted: together that is MORE. */
static inline void
leave (struct epoch *ep, struct epoch_section section, uint64_t more)
{
  _Atomic uint64_t *const count = count_of (ep, section);

  if (__builtin_expect (is_owned (section), 1))
    atomic_store_explicit (count,
                           atomic_load_explicit (count, memory_order_relaxed) + more,
                           memory_order_release);
  else
    atomic_fetch_add (count, more);
}

static inline struct epoch_section
enter (struct epoch *ep, unsigned i)
{
  for (;;) {
    const uint64_t e = atomic_load (&ep->current);
    const struct epoch_section section = { .slot = (e & 1) * SLOTS + i };
    _Atomic uint64_t *const count = count_of (ep, section);

    if (__builtin_expect (is_owned (section), 1))
      atomic_store (count, atomic_load_explicit (count, memory_order_relaxed) + 1);
    else
      atomic_fetch_add (count, 1);
    if (atomic_load (&ep->current) == e)
      return section;
    leave (ep, section, -1);
  }
}

struct epoch_section
epoch_enter (struct epoch *ep)
{
  return enter (ep, my_slot ());
}

struct epoch_section
epoch_hold (struct epoch *ep)
{
  return enter (ep, OWNED);
}

void
epoch_leave (struct epoch *ep, struct epoch_section section)
{
  leave (ep, section, -1);
}

void
epoch_leave_counting (struct epoch *ep, struct epoch_section section)
{
  leave (ep, section, SECTIONS);  /* one above the sections, less one section */
}

uint64_t
epoch_counted (struct epoch *ep)
{
  uint64_t n = 0;

  for (unsigned parity = 0; parity < 2; parity++)
    for (unsigned i = 0; i < SLOTS; i++)
      n += atomic_load (&ep->slots[parity][i].count) >> SECTION_BITS;
  return n;
}

uint64_t
epoch_stamp (struct epoch *ep)
{
  return atomic_load (&ep->current);
}

/* Moves the epoch on from E, unless requests of the epoch before are left. */
static bool
move_on (struct epoch *ep, uint64_t e)
{
  const unsigned parity = (e + 1) & 1;

  for (unsigned i = 0; i < SLOTS; i++)
    if ((atomic_load (&ep->slots[parity][i].count) & SECTIONS) != 0)
      return false;
  /* If this fails, another thread has moved it on. */
  atomic_compare_exchange_strong (&ep->current, &e, e + 1);
  return true;
}

bool
epoch_passed (struct epoch *ep, uint64_t stamp)
{
  uint64_t e;

  while ((e = atomic_load (&ep->current)) < stamp + 2)
    if (!move_on (ep, e))
      return false;
  return true;
}
