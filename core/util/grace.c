/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Have all requests ended that began before now?
 *
 * There is a 64-bit epoch.  Two counters, one for even and one for odd epochs, count the
 * requests that entered in such an epoch and have not left.  (Each counter is the sum of
 * several slots, each on a cache line of its own: the low bits of a slot.  Its other bits
 * count what grace_leave_counting was told to count.)
 *
 *   enter  read the epoch e, increment the counter of parity e & 1, read the epoch
 *          again.  If it is still e, the pin belongs to epoch e; otherwise decrement the
 *          counter and try again.
 *   leave  decrement where enter incremented.
 *   stamp  read the epoch.
 *   move   from e to e+1: only after each slot of parity (e+1) & 1 was seen to be 0 at
 *          some moment since the epoch became e.
 *
 * A stamp s has passed when the epoch is s+2 or more.  Why that is safe:
 *
 * (1) All accesses are sequentially consistent: there is one order of all of them.  The
 *     epoch never decreases, and 64 bits do not wrap around.
 * (2) A pin of epoch e incremented the counter before its second read, which still found
 *     e.  So it is counted before the epoch became e+1.  A thread that moves the epoch on
 *     from e+1 looks at parity e & 1 after it has read e+1.  It finds the slot of the
 *     pin above 0 for as long as the pin is held, and does not move.  (A slot is never
 *     less than the number of pins held in it, because each pin increments first and
 *     decrements last, in the same slot.  Requests in enter that will try again only
 *     cause a delay.)  Hence: while a pin of epoch e is held, the epoch is at most e+1.
 * (3) Two threads that move at the same time both compare-and-swap from the epoch that
 *     they read, so what one of them saw long ago cannot move a later epoch.
 * (4) A request that entered before stamp s was taken has an epoch e <= s, by (1).
 *     While its pin is held the epoch is at most e+1 <= s+1, by (2).  So at s+2 it has
 *     left.
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
 * Locks: none.  Every field is atomic or constant.
 */

#include <config.h>

#include <stdatomic.h>
#include <stdlib.h>

#include "util/grace.h"

#define SLOTS 64                /* a power of two */

/* In the count of a slot: bits for pins; above them, what is counted. */
#define PIN_BITS 16
#define PINS ((UINT64_C (1) << PIN_BITS) - 1)

struct slot {
  _Alignas (64) _Atomic uint64_t count;
};

struct grace {
  struct slot slots[2][SLOTS];
  _Alignas (64) _Atomic uint64_t epoch;
};

struct grace *
grace_new (void)
{
  struct grace *g = aligned_alloc (_Alignof (struct grace), sizeof *g);

  if (g == NULL)
    return NULL;
  for (unsigned parity = 0; parity < 2; parity++)
    for (unsigned i = 0; i < SLOTS; i++)
      atomic_init (&g->slots[parity][i].count, 0);
  atomic_init (&g->epoch, 0);
  return g;
}

void
grace_free (struct grace *g)
{
  free (g);
}

/* Any slot would be correct; a thread keeps the one it got first.  Threads are numbered
 * in the whole process, so that those that meet have different ones. */
static unsigned
my_slot (void)
{
  static atomic_uint threads;
  static _Thread_local unsigned number;         /* 0: none yet */

  if (number == 0)
    number = 1 + atomic_fetch_add (&threads, 1) % SLOTS;
  return number - 1;
}

struct grace_pin
grace_enter (struct grace *g)
{
  const unsigned i = my_slot ();

  for (;;) {
    const uint64_t e = atomic_load (&g->epoch);
    const unsigned parity = e & 1;

    atomic_fetch_add (&g->slots[parity][i].count, 1);
    if (atomic_load (&g->epoch) == e)
      return (struct grace_pin) { .slot = parity * SLOTS + i };
    atomic_fetch_sub (&g->slots[parity][i].count, 1);
  }
}

void
grace_leave (struct grace *g, struct grace_pin pin)
{
  atomic_fetch_sub (&g->slots[pin.slot / SLOTS][pin.slot % SLOTS].count, 1);
}

void
grace_leave_counting (struct grace *g, struct grace_pin pin)
{
  /* Adds one above the pins, and subtracts one pin, which the slot has. */
  atomic_fetch_add (&g->slots[pin.slot / SLOTS][pin.slot % SLOTS].count, PINS);
}

uint64_t
grace_counted (struct grace *g)
{
  uint64_t n = 0;

  for (unsigned parity = 0; parity < 2; parity++)
    for (unsigned i = 0; i < SLOTS; i++)
      n += atomic_load (&g->slots[parity][i].count) >> PIN_BITS;
  return n;
}

uint64_t
grace_stamp (struct grace *g)
{
  return atomic_load (&g->epoch);
}

/* Moves the epoch on from E, unless requests of the epoch before are left. */
static bool
move_on (struct grace *g, uint64_t e)
{
  const unsigned parity = (e + 1) & 1;

  for (unsigned i = 0; i < SLOTS; i++)
    if ((atomic_load (&g->slots[parity][i].count) & PINS) != 0)
      return false;
  /* If this fails, another thread has moved it on. */
  atomic_compare_exchange_strong (&g->epoch, &e, e + 1);
  return true;
}

bool
grace_passed (struct grace *g, uint64_t stamp)
{
  uint64_t e;

  while ((e = atomic_load (&g->epoch)) < stamp + 2)
    if (!move_on (g, e))
      return false;
  return true;
}
