/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Pins, the gate, and the release of a generation, for spin: the protocols of
 * core/util/grace.c, core/disk/serve.c and core/disk/steps.c, with one variable for each
 * atomic of these files, and one step for each access to one.
 *
 * Checked in all orders of steps:
 *
 *   - no request that changes the disk is inside while the image switches
 *   - no request uses a generation after its release, nor writes one that is not
 *     writable yet
 *   - a request that reads ends, whatever the change does (even if it never ends)
 *   - all others end, too, if the change does
 *
 * project/models.sh runs it, and sees it fail with each of these mistakes:
 *
 *   GATE_FIRST   a request looks at the gate before it takes its pin
 *   VIEW_FIRST   a request looks at the generation before it looks at the gate
 *   STAMP_FIRST  the stamp is taken before the gate is closed
 *   NO_DRAIN     the release does not wait for requests that use the old generation
 *   ONE_EPOCH    a stamp passes when the epoch has moved on once
 */

#define READERS 1
#define WRITERS 1
#define THREADS (READERS + WRITERS)

#ifndef ROUNDS
#define ROUNDS 2                /* requests of each thread */
#endif

#ifdef ONE_EPOCH
#define AHEAD 1
#else
#define AHEAD 2
#endif

/* grace.c: a slot for each thread and parity. */
byte epoch;
byte slot[2 * THREADS];

/* steps.c */
bool closed;
#define OLD 0                   /* the old generation, which is writable */
#define FROZEN 1                /* the new one, before it is */
#define LIVE 2                  /* and then */
byte now;                       /* the present view: that of a generation */

/* What is checked. */
bool switching;
bool released[3];
byte inside;                    /* requests that change the disk */
byte ended;                     /* threads of requests */
bool readers_ended;

inline enter (id, parity)
{
  byte e;

  do
  :: e = epoch;
     slot[(e & 1) * THREADS + id]++;
     if
     :: epoch == e -> parity = e & 1; break
     :: else -> slot[(e & 1) * THREADS + id]--
     fi
  od
}

inline leave (id, parity)
{
  slot[parity * THREADS + id]--
}

/* Moves the epoch on from AT, unless requests of the epoch before are left (move_on). */
inline move_on (at)
{
  i = 0;
  do
  :: i < THREADS && slot[((at + 1) & 1) * THREADS + i] == 0 -> i++
  :: i < THREADS && slot[((at + 1) & 1) * THREADS + i] != 0 -> break
  :: i == THREADS ->
     atomic {                   /* compare and exchange */
       if
       :: epoch == at -> epoch = at + 1
       :: else
       fi
     }
     break
  od
}

/* Waits until all have left that entered before S was taken: looks again and again
 * (grace_passed). */
inline pass (s)
{
  byte at, i;

  do
  :: at = epoch;
     if
     :: at >= s + AHEAD -> break
     :: else -> move_on (at)
     fi
  od
}

/* Others move the epoch, too: checkpoints, for what they free. */
proctype mover ()
{
  byte n, at, i;

  do
  :: n < 2 -> at = epoch; move_on (at); n++
  :: else -> break
  od
}

proctype reader (byte id)
{
  byte n, parity, v;

  do
  :: n < ROUNDS ->
     enter (id, parity);
     v = now;
     assert (!released[v]);
     assert (!released[v]);
     leave (id, parity);
     n++
  :: else -> break
  od;
  atomic { ended++; readers_ended = true }
}

proctype writer (byte id)
{
  byte n, parity, v;

  do
  :: n < ROUNDS ->
#ifdef GATE_FIRST
     !closed;
     enter (id, parity);
     v = now;
#else
     do
     :: enter (id, parity);
#ifdef VIEW_FIRST
        v = now;
#endif
        if
        :: !closed -> break
        :: else -> leave (id, parity); !closed     /* disk_wait_at_gate */
        fi
     od;
#ifndef VIEW_FIRST
     v = now;
#endif
     assert (v != FROZEN);
#endif
     inside++;
     assert (!switching && !released[v]);
     assert (!released[v]);
     inside--;
     leave (id, parity);
     n++
  :: else -> break
  od;
  ended++
}

proctype changer ()
{
  byte s;

#ifdef STAMP_FIRST
  s = epoch;
  closed = true;
#else
  closed = true;
  s = epoch;
#endif
  pass (s);
#ifdef STUCK
  false;
#endif
  switching = true;
  assert (inside == 0);
  switching = false;
  now = FROZEN;
#ifndef NO_DRAIN
  s = epoch;
  pass (s);
#endif
  released[OLD] = true;
  now = LIVE;
  closed = false
}

init
{
  atomic {
    run reader (0);
    run writer (1);
    run mover ();
    run changer ()
  }
}

#ifdef STUCK
ltl ends { <> readers_ended }
#else
ltl ends { <> (ended == THREADS && !closed) }
#endif
