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
 * There is a client that reads, one that writes, somebody who moves the epochs on, and one
 * change.  All that there is at the same time would be too much; so instead, there are
 *
 *   HOLDER       a client that writes, and a second one who closes the gate (as a
 *                transaction over several disks does), and nothing may change meanwhile
 *   LATE         a client that reads, two changes, and a thread that releases what the
 *                first one has replaced, after the change (release_later)
 *   NESTED       two threads of which each reads in two sections, one in the other; they
 *                load and store their own slots, in two steps.  (That others see the end
 *                of a section late only makes them wait: as if the thread had stopped
 *                before that step.)
 *
 * project/models.sh runs it, and sees it fail with each of these mistakes:
 *
 *   GATE_FIRST   a request looks at the gate before it enters its section
 *   VIEW_FIRST   a request looks at the generation before it looks at the gate
 *   STAMP_FIRST  the stamp is taken before the gate is closed
 *   NO_DRAIN     the release does not wait for requests that use the old generation
 *   ONE_EPOCH    a stamp passes when the epoch has moved on once
 *   NO_COUNT     (HOLDER) who opens the gate does so for all who have closed it
 *   EARLY_STAMP  (LATE) the stamp for the release is taken before the next generation is
 *                published
 *   ONE_SLOT     (NESTED) the threads share a slot
 */

#ifdef HOLDER
#define READERS 0
#define WRITERS 1
#define CLOSERS 2
#elif defined LATE
#define READERS 1
#define WRITERS 0
#define CLOSERS 1
#elif defined NESTED
#define READERS 2
#define WRITERS 0
#define CLOSERS 1
#else
#define READERS 1
#define WRITERS 1
#define CLOSERS 1
#endif
#define THREADS 2

#ifndef ROUNDS
#define ROUNDS 2                /* requests of each thread */
#endif

#ifndef MOVES
#define MOVES 2                 /* by somebody else */
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
byte closers;
#ifdef LATE
#define CHANGES_MADE 2
#else
#define CHANGES_MADE 1
#endif
byte now;                       /* the present generation */

/* What is checked. */
byte still;                     /* how many rely on that nothing changes the disk */
bool released[CHANGES_MADE + 1];
byte inside;                    /* requests that change the disk */
byte ended;                     /* threads of requests */
byte opened;                    /* by how many of those who close the gate */
bool readers_ended;

/* A thread changes its own slot. */
inline add (which, parity, id, n)
{
#ifdef NESTED
  count = SLOT (which, parity, id);
  SLOT (which, parity, id) = count + n;
#else
  SLOT (which, parity, id) = SLOT (which, parity, id) + n;
#endif
}

inline enter (which, id, parity)
{
  do
  :: e = epoch[which];
     add (which, e & 1, id, 1);
     if
     :: epoch[which] == e -> parity = e & 1; break
     :: else -> add (which, e & 1, id, -1)
     fi
  od
}

inline leave (which, id, parity)
{
  add (which, parity, id, -1)
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
  :: n < MOVES -> at = epoch[which]; move_on (which, at); n++
  :: else -> break
  od
}

proctype reader (byte id)
{
  byte n, e, parity, v;
#ifdef NESTED
  byte count, outer;
#endif

  do
  :: n < ROUNDS ->
#ifdef NESTED
     enter (REQUESTS, id, outer);
#endif
     enter (REQUESTS, id, parity);
     v = now;
     assert (!released[v]);
#ifdef HANGS
     false;
#endif
     assert (!released[v]);
     leave (REQUESTS, id, parity);
#ifdef NESTED
     assert (!released[v]);
     leave (REQUESTS, id, outer);
#endif
     n++
  :: else -> break
  od;
  atomic { ended++; readers_ended = true }
}

#if WRITERS
#define ENTER enter (REQUESTS, id, all); enter (CHANGES, id, change)
#define LEAVE leave (CHANGES, id, change); leave (REQUESTS, id, all)

proctype writer (byte id)
{
  byte n, e, all, change, v;

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
     assert (still == 0 && !released[v] && v == now);
     assert (!released[v] && v == now);
     inside--;
     LEAVE;
     n++
  :: else -> break
  od;
  ended++
}

#endif

/* Under the lock of the disk. */
inline close_it ()
{
  atomic { closers++; closed = true }
}

inline open_it ()
{
#ifdef NO_COUNT
  closed = false;
#else
  atomic {
    closers--;
    if
    :: closers == 0 -> closed = false
    :: else
    fi
  }
#endif
}

/* Two looks: nothing changes the disk between them. */
inline rely ()
{
  still++;
  assert (inside == 0);
  still--
}

#ifdef HOLDER
proctype holder ()
{
  byte s;

  close_it ();
  s = epoch[CHANGES];
  pass (CHANGES, s);
  rely ();
  open_it ();
  opened++
}
#endif

#ifdef LATE
/* Has a stamp of its own. */
proctype releaser (byte old, s)
{
#ifndef EARLY_STAMP
  s = epoch[REQUESTS];
#endif
  pass (REQUESTS, s);
  released[old] = true
}
#endif

proctype changer ()
{
  byte s, n;
#ifdef EARLY_STAMP
  byte early;
#endif

  do
  :: n < CHANGES_MADE ->
#ifdef STAMP_FIRST
     s = epoch[CHANGES];
     close_it ();
#else
     close_it ();
     s = epoch[CHANGES];
#endif
     pass (CHANGES, s);
#ifdef STUCK
     false;
#endif
     rely ();
#ifdef EARLY_STAMP
     early = epoch[REQUESTS];
#endif
     now = n + 1;
     open_it ();
#ifdef LATE
     if
     :: n == 0 ->
#ifdef EARLY_STAMP
        run releaser (0, early)
#else
        run releaser (0, 0)
#endif
     :: else -> s = epoch[REQUESTS]; pass (REQUESTS, s); released[n] = true
     fi;
#else
#ifndef NO_DRAIN
     s = epoch[REQUESTS];
     pass (REQUESTS, s);
#endif
     released[n] = true;
#endif
     n++
  :: else -> break
  od;
  opened++
}

init
{
  atomic {
#ifdef NESTED
    run reader (0);
#ifdef ONE_SLOT
    run reader (0);
#else
    run reader (1);
#endif
#else
#if READERS
    run reader (0);
#endif
#if WRITERS
    run writer (1);
#endif
#ifndef HOLDER
    run mover ();
#endif
#endif
#ifdef HOLDER
    run holder ();
#endif
    run changer ()
  }
}

#ifdef STUCK
ltl ends { <> readers_ended }
#elif defined HANGS
ltl ends { <> (ended == WRITERS && !closed) }
#else
ltl ends { <> (ended == READERS + WRITERS && opened == CLOSERS && !closed) }
#endif
