/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Pins, the gate, and the release of a generation, for spin: the protocols of
 * core/util/epoch.c, core/disk/serve.c and core/disk/steps.c, with one variable for each
 * atomic of these files, and one step for each access to one.
 *
 * Checked in all orders of steps:
 *
 *   - no request that changes the disk is inside while the image switches, and none changes
 *     another generation than the present one
 *   - no request uses a generation after its release
 *   - a request that reads ends, whatever the change does (even if it never ends)
 *   - all others end, too, if the change does; and they do not wait for those that read
 *
 * project/models.sh runs it, and sees it fail with each of these mistakes:
 *
 *   GATE_FIRST   a request looks at the gate before it enters its section
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

/* epoch.c: a slot for each thread and parity.  REQUESTS counts all requests, CHANGES those
 * that change the disk. */
#define REQUESTS 0
#define CHANGES 1
byte epoch[2];
byte slot[4 * THREADS];
#define SLOT(which, parity, id) slot[((which) * 2 + (parity)) * THREADS + (id)]

/* steps.c */
bool closed;
#define OLD 0
#define NEW 1
byte now;                       /* the present generation */

/* What is checked. */
bool switching;
bool released[2];
byte inside;                    /* requests that change the disk */
byte ended;                     /* threads of requests */
bool readers_ended;

inline enter (which, id, parity)
{
  byte e;

  do
  :: e = epoch[which];
     SLOT (which, e & 1, id)++;
     if
     :: epoch[which] == e -> parity = e & 1; break
     :: else -> SLOT (which, e & 1, id)--
     fi
  od
}

inline leave (which, id, parity)
{
  SLOT (which, parity, id)--
}

/* Moves the epoch on from AT, unless requests of the epoch before are left (move_on). */
inline move_on (which, at)
{
  i = 0;
  do
  :: i < THREADS && SLOT (which, (at + 1) & 1, i) == 0 -> i++
  :: i < THREADS && SLOT (which, (at + 1) & 1, i) != 0 -> break
  :: i == THREADS ->
     atomic {                   /* compare and exchange */
       if
       :: epoch[which] == at -> epoch[which] = at + 1
       :: else
       fi
     }
     break
  od
}

/* Waits until all have left that entered before S was taken: looks again and again
 * (epoch_passed). */
inline pass (which, s)
{
  byte at, i;

  do
  :: at = epoch[which];
     if
     :: at >= s + AHEAD -> break
     :: else -> move_on (which, at)
     fi
  od
}

/* Others move the epochs, too: checkpoints, for what they free, and who else waits for
 * requests that change the disk. */
proctype mover ()
{
  byte n, at, i, which;

  if
  :: which = REQUESTS
  :: which = CHANGES
  fi;
  do
  :: n < 2 -> at = epoch[which]; move_on (which, at); n++
  :: else -> break
  od
}

proctype reader (byte id)
{
  byte n, parity, v;

  do
  :: n < ROUNDS ->
     enter (REQUESTS, id, parity);
     v = now;
     assert (!released[v]);
#ifdef HANGS
     false;
#endif
     assert (!released[v]);
     leave (REQUESTS, id, parity);
     n++
  :: else -> break
  od;
  atomic { ended++; readers_ended = true }
}

#define ENTER enter (REQUESTS, id, all); enter (CHANGES, id, change)
#define LEAVE leave (CHANGES, id, change); leave (REQUESTS, id, all)

proctype writer (byte id)
{
  byte n, all, change, v;

  do
  :: n < ROUNDS ->
#ifdef GATE_FIRST
     !closed;
     ENTER;
     v = now;
#else
     do
     :: ENTER;
#ifdef VIEW_FIRST
        v = now;
#endif
        if
        :: !closed -> break
        :: else -> LEAVE; !closed       /* disk_wait_at_gate */
        fi
     od;
#ifndef VIEW_FIRST
     v = now;
#endif
#endif
     inside++;
     assert (!switching && !released[v] && v == now);
     assert (!released[v] && v == now);
     inside--;
     LEAVE;
     n++
  :: else -> break
  od;
  ended++
}

proctype changer ()
{
  byte s;

#ifdef STAMP_FIRST
  s = epoch[CHANGES];
  closed = true;
#else
  closed = true;
  s = epoch[CHANGES];
#endif
  pass (CHANGES, s);
#ifdef STUCK
  false;
#endif
  switching = true;
  assert (inside == 0);
  switching = false;
  now = NEW;
  closed = false;
#ifndef NO_DRAIN
  s = epoch[REQUESTS];
  pass (REQUESTS, s);
#endif
  released[OLD] = true
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
#elif defined HANGS
ltl ends { <> (ended == WRITERS && !closed) }
#else
ltl ends { <> (ended == THREADS && !closed) }
#endif
