/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mapping cache: guest offset -> run, packed, bounded, concurrent.  See map.c.  It
 * reads no files: loaders fill it.
 *
 * A map has one memory budget.  A space is one guest address space in it (the L2 tables
 * of the writable image, the resolved chain below it, or the view of a snapshot), divided
 * into slices of equal guest length.  A slice is the unit that is loaded and evicted.
 */

#ifndef QCOW2_MAP_H
#define QCOW2_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/budget.h"
#include "format/run.h"

struct map;
struct map_space;
struct map_slice;
struct map_fill;        /* collects the runs of slices being loaded */

struct map_stats {
  uint64_t hits, misses, evictions, packs;
  uint64_t peeks;               /* misses that read only a few entries */
  uint64_t loads, loaded;       /* times that slices were read, and their number */
  uint64_t looks;               /* slices that eviction and packing looked at */
  uint64_t bytes, peak_bytes;   /* memory in use */
};

/* LIMIT is the number of bytes of memory that are really used (slices, their packed
 * contents, allocator overhead).  The map may exceed it for pinned and dirty slices while
 * they are that, and for its own tables and the memory that the two largest slices took
 * (1M at most), without which it would be useless.  NULL on ENOMEM. */
extern struct map *map_new (uint64_t limit);
extern void map_free (struct map *);  /* frees all its spaces, too */
/* Ends the threads that load slices ahead, because threads do not survive a fork.  No
 * request may be using the spaces; the next ones may start threads again. */
extern void map_end_ahead (struct map *);
extern void map_get_stats (struct map *, struct map_stats *);

/* The budget that counts the memory of its spaces, and other memory for the same
 * images. */
extern struct budget *map_budget (struct map *);

struct map_ops {
  /* Fills N slices, from number SLICE on: calls map_fill_add for consecutive units until
   * all units of the slices are covered.  Called with no lock held; two calls for one
   * slice never run at the same time, unless one is for several slices and what it finds
   * about this one is not used.  Returns 0, or -1 with errno set and, for a single
   * slice, reported.  NULL if load_raw is given (the map then loads the raw form and
   * decodes it). */
  int (*load) (void *opaque, uint64_t slice, unsigned n, struct map_fill *);

  /* For spaces that are edited: reads the raw forms of N slices, as in the file.  (Where
   * everything is RUN_UNALLOCATED, zeros must mean the same.) */
  int (*load_raw) (void *opaque, uint64_t slice, unsigned n, void *raw);

  /* NULL, or asked once: the number of slices whose loading together takes hardly longer
   * than that of one: a power of two, up to MAP_TOGETHER.  The first of the slices above
   * is then within an aligned group of so many, and so are the others. */
  unsigned (*together) (void *opaque);

  /* Decodes the run that begins at unit UNIT of the raw slice, at most MAX units: returns
   * its length in units (>= 1) and sets kind, copied, layer, host. */
  unsigned (*decode) (void *opaque, const void *raw, unsigned unit,
                      unsigned max, struct run *);

  /* NULL, or a function like decode for a slice that is not in memory, which reads only a
   * few entries: MAX is at most MAP_PEEK_UNITS.  Returns the length, or -1 with errno set
   * and reported.  Called with no lock held. */
  int64_t (*peek) (void *opaque, uint64_t slice, unsigned unit, unsigned max,
                   struct run *);

  /* NULL, or asked once: does loading a slice take long?  Then returns the number of
   * slices, and the next one is loaded ahead of readers in order, by another thread.
   * Otherwise returns 0. */
  uint64_t (*slow_slices) (void *opaque);
};
#define MAP_PEEK_UNITS 64u
#define MAP_TOGETHER 128u

/* So many bytes of an image's tables are read together: this takes hardly longer than to
 * read a slice. */
#define MAP_TOGETHER_BYTES (UINT64_C (64) << 10)

/* UNIT_BITS is log2 of the guest bytes of a unit, the granularity of the space's runs.
 * UNITS is the number of units per slice (a power of two, <= 2^24).  RAW_SIZE is the size
 * of the raw form in bytes, 0 if the space is never edited.  NULL on ENOMEM. */
extern struct map_space *map_space_new (struct map *, unsigned unit_bits,
                                        unsigned units, size_t raw_size,
                                        const struct map_ops *, void *opaque);
/* No request may be using the space, and none of its slices may be pinned. */
extern void map_space_free (struct map_space *);

/* HOST is as in struct run, for the first unit.  Adjacent runs may be merged.  Returns 0,
 * or -1 with errno (reported). */
extern int map_fill_add (struct map_fill *, unsigned units,
                         enum run_kind kind, bool copied, uint16_t layer,
                         uint64_t host);

/* Finds the run at OFFSET: at most LEN bytes, never beyond the end of the slice (callers
 * continue where it ends; a very long run may come in pieces).  Loads the slice if
 * necessary, or, when memory is short, reads only the entries it needs.  Sets all fields
 * of *RUN; unsettled means that the slice has changes that are not durable.  Returns 0,
 * or -1 with errno (reported).  A hit takes one short lock that is never held during I/O;
 * a miss blocks only callers that want the same slice. */
extern int map_lookup (struct map_space *, uint64_t offset, uint64_t len,
                       struct run *);

/* Is the slice at OFFSET in memory, or being loaded? */
extern bool map_has (struct map_space *, uint64_t offset);
/* If it is not, loading takes long, and there is memory: another thread loads it. */
extern void map_load_ahead (struct map_space *, uint64_t offset);

/* --- editing (spaces with a raw form) --- */

/* Pins slice number SLICE in raw form, and loads it if needed.  NULL on error
 * (reported). */
extern struct map_slice *map_pin (struct map_space *, uint64_t slice);
extern void map_unpin (struct map_slice *);

/* map_edit_begin locks a pinned slice against lookups and map_take_dirty, and returns its
 * raw form for reading or changing.  Keep the time short: no I/O, one slice at a time,
 * and no other call into the map before map_edit_end.  That call says whether the slice
 * was changed, and whether the change needs a barrier: other writes must be durable
 * before it may reach the file (see checkpoint.c). */
enum map_change { MAP_UNCHANGED, MAP_CHANGED, MAP_CHANGED_BARRIER };
extern void *map_edit_begin (struct map_slice *);
extern void map_edit_end (struct map_slice *, enum map_change);

/* The number of dirty bytes in raw slices (read without a lock, so approximate). */
extern uint64_t map_dirty_bytes (struct map_space *);
/* Are there more than LIMIT dirty bytes in all spaces of the map, and more than this
 * space's share of them in this one? */
extern bool map_dirty_beyond (struct map_space *, uint64_t limit);

/* Takes all dirty slices: for each, copies the raw form, clears the dirty mark, and keeps
 * the slice pinned until map_written.  *ITEMS is an array that map_written frees, with
 * the raw copies in it (which the caller may change until then).  *BARRIER: whether any
 * of them needs a barrier.  Only one thread may call this at a time.  Returns the number
 * of items, or -1 (ENOMEM; then nothing has changed). */
struct map_dirty {
  struct map_slice *slice;
  uint64_t index;               /* slice number */
  void *raw;                    /* a copy of RAW_SIZE bytes */
  bool barrier;
};
extern int map_take_dirty (struct map_space *, struct map_dirty **items,
                           bool *barrier);
/* Ends what map_take_dirty began.  OK: the copies are durable, and slices that have not
 * been changed since become clean.  !OK: they are dirty again (with their barriers).
 * Frees the raw copies and the array. */
extern void map_written (struct map_space *, struct map_dirty *items, int n,
                         bool ok);

#endif /* QCOW2_MAP_H */
