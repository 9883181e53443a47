/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Lookups without a lock in the mapping cache, against threads that load, edit, pack and
 * evict the slice, for spin: the protocol of core/mapping/map.c and its parts, for one
 * slice number, with one step for each access to what lookups read without the lock.
 *
 * The sections of epoch.c are taken for what gate.pml shows of them: to wait for a stamp
 * is to wait for each lookup that began before.  Memory that was freed is used again at
 * once.
 *
 * Checked in all orders of steps:
 *
 *   - no lookup uses memory that was freed, that is not complete, or that is no pack
 *   - it finds what was published before it began, or later
 *   - all threads end
 *   - if a slice is read to be edited, and that never ends (STUCK), lookups of it still end,
 *     and so do those of other slices, with the lock
 *
 * project/models.sh runs it, and sees it fail with each of these mistakes:
 *
 *   NO_AWAIT     the pack that a raw form replaces is freed at once
 *   EVICT_NOW    so are slices that are evicted
 *   ONE_LOOK     a lookup does not look at the form again after it has read the body
 *   BODY_FIRST   the raw form is stored before the slice says that it is raw
 *   FORM_FIRST   the slice says that it is packed before the pack is stored
 *   LOCKED_IO    the lock is held while a raw form is read
 *   EVICT_RAW    a slice is evicted that was changed and not written
 */

#define READERS 2

#ifndef ROUNDS
#define ROUNDS 2                /* lookups of each reader */
#endif

#define NONE 255

/* The table, and the slices. */
#define SLICES 3
#define EMPTY 0
#define PACK 1
#define RAW 2
byte link;                      /* the slice that the table has */
bool alive[SLICES];
byte form[SLICES];
byte body[SLICES];
bool busy[SLICES];

/* Of the raw form; under the lock. */
byte pins;
bool dirty, writing;

/* Memory for bodies. */
#define BODIES 5
#define FREE 0
#define HALF 1                  /* is being made */
#define PACKED 2
#define RAWED 3
byte kind[BODIES];
byte version[BODIES];           /* of the mapping that it contains */

bool locked;                    /* the shard */

byte file, published;           /* versions */

/* Lookups: those that are inside, and the number of those that ended. */
bool inside[READERS];
byte left[READERS];
byte ended;

#define is_free(b) (kind[b] == FREE)

inline lock () { atomic { !locked -> locked = true } }
inline unlock () { locked = false }

inline new_body (p)
{
  atomic {
    if
    :: is_free (0) -> p = 0
    :: else ->
       if
       :: is_free (1) -> p = 1
       :: else ->
          if
          :: is_free (2) -> p = 2
          :: else ->
             if
             :: is_free (3) -> p = 3
             :: else -> assert (is_free (4)); p = 4
             fi
          fi
       fi
    fi;
    kind[p] = HALF
  }
}

/* map_insert */
inline insert (s)
{
  atomic {
    if
    :: !alive[0] -> s = 0
    :: alive[0] && !alive[1] -> s = 1
    :: alive[0] && alive[1] -> assert (!alive[2]); s = 2
    fi;
    alive[s] = true;
    form[s] = EMPTY;
    body[s] = NONE;
    busy[s] = true
  }
  link = s
}

/* map_await_lookups */
inline await (i, seen)
{
  i = 0;
  do
  :: i < READERS ->
     atomic {
       if
       :: inside[i] -> seen = left[i]
       :: else -> seen = NONE
       fi
     }
     (seen == NONE || left[i] != seen);
     i++
  :: else -> break
  od
}

/* find_packed */
inline find_packed (id)
{
  inside[id] = true;
  s = link;
  v = NONE;
  p = NONE;
  if
  :: s != NONE ->
     assert (alive[s]);
     if
     :: form[s] == PACK ->
        p = body[s];
#ifndef ONE_LOOK
        assert (alive[s]);
        if
        :: form[s] != PACK -> p = NONE
        :: else
        fi
#endif
     :: else
     fi
  :: else
  fi;
  if
  :: p != NONE ->
     assert (kind[p] == PACKED);
     v = version[p];
     assert (kind[p] == PACKED)
  :: else
  fi;
  atomic { inside[id] = false; left[id]++ }
}

/* The rest of map_lookup: a hit with the lock, or a miss. */
inline find_locked ()
{
  lock ();
  do
  :: link != NONE && form[link] == EMPTY ->
     unlock ();
     (link == NONE || form[link] != EMPTY);
     lock ()
  :: else -> break
  od;
  if
  :: link == NONE ->
     insert (s);
     unlock ();
     new_body (p);
     v = file;
     version[p] = v;
     kind[p] = PACKED;
     lock ();
     body[s] = p;
     form[s] = PACK;
     busy[s] = false;
     unlock ()
  :: else ->
     p = body[link];
     assert (kind[p] == (form[link] == PACK -> PACKED : RAWED));
     v = version[p];
     unlock ()
  fi
}

proctype reader (byte id)
{
  byte n, s, p, v, begun;

  do
  :: n < ROUNDS ->
     begun = published;
     find_packed (id);
     if
     :: v == NONE -> find_locked ()
     :: else
     fi;
     assert (v >= begun && v <= published);
     n++
  :: else -> break
  od;
  ended++
}

/* map_pin, an edit, a checkpoint that writes it, and map_unpin. */
proctype editor ()
{
  byte s, p, old, i, seen;

  lock ();
  do
  :: link != NONE && busy[link] ->
     unlock ();
     (link == NONE || !busy[link]);
     lock ()
  :: else -> break
  od;
  if
  :: link == NONE -> insert (s)
  :: else -> s = link; busy[s] = true
  fi;
#ifndef LOCKED_IO
  unlock ();
#endif
  new_body (p);
#ifdef STUCK
  false;
#endif
  version[p] = file;
  kind[p] = RAWED;
#ifndef LOCKED_IO
  lock ();
#endif
  old = body[s];
#ifdef BODY_FIRST
  body[s] = p;
  form[s] = RAW;
#else
  form[s] = RAW;
  body[s] = p;
#endif
  pins = 1;
  busy[s] = false;
  unlock ();
#ifndef NO_AWAIT
  await (i, seen);
#endif
  if
  :: old != NONE -> kind[old] = FREE
  :: else
  fi;

  lock ();                      /* map_edit_begin, map_edit_end */
  version[p]++;
  dirty = true;
  published = version[p];
  pins = 0;                     /* map_unpin: what is dirty is not evictable, either */
  unlock ();

  lock ();                      /* map_take_dirty */
  old = version[p];
  writing = true;
  dirty = false;
  unlock ();
  file = old;
  lock ();                      /* map_written */
  writing = false;
  unlock ();
  ended++
}

/* A lookup of another slice of the shard, which is raw. */
proctype other ()
{
  lock ();
  unlock ();
  ended++
}

#define is_clean (pins == 0 && !dirty && !writing)

/* mapreclaim.c: packs what is raw, and evicts what is packed. */
proctype reclaimer ()
{
  byte n, s, p, old, i, seen;

  do
  :: n < 2 ->
     lock ();
     s = link;
     if
#ifdef EVICT_RAW
     :: s != NONE && !busy[s] && form[s] != EMPTY && pins == 0 ->
#else
     :: s != NONE && !busy[s] && form[s] == PACK ->
#endif
        link = NONE;
        unlock ();
#ifndef EVICT_NOW
        await (i, seen);
#endif
        kind[body[s]] = FREE;
        alive[s] = false
     :: s != NONE && !busy[s] && form[s] == RAW && is_clean ->
        busy[s] = true;
        unlock ();
        new_body (p);
        old = body[s];
        version[p] = version[old];
        kind[p] = PACKED;
        lock ();
#ifdef FORM_FIRST
        form[s] = PACK;
        body[s] = p;
#else
        body[s] = p;
        form[s] = PACK;
#endif
        busy[s] = false;
        unlock ();
        kind[old] = FREE
     :: else -> unlock ()
     fi;
     n++
  :: else -> break
  od;
  ended++
}

init
{
  atomic {
    link = 0;
    alive[0] = true;
    form[0] = PACK;
    body[0] = 0;
    kind[0] = PACKED;
    run reader (0);
    run reader (1);
    run editor ();
#ifdef STUCK
    run other ()
#else
    run reclaimer ()
#endif
  }
}

#ifdef STUCK
ltl ends { <> (ended == READERS + 1) }
#else
ltl ends { <> (ended == READERS + 2) }
#endif
