/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mapping cache: guest offset -> run, packed, bounded, concurrent.
 * See map.c.  It knows no file: loaders fill it.
 *
 * A map is one memory budget.  A space is one guest address space in it (the writable
 * image's own L2 tables; the resolved chain below; a snapshot's view), cut into slices
 * of equal guest length.  A slice is what is loaded and evicted.
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
struct map_fill;        /* collects the runs of a slice being loaded */

struct map_stats {
  uint64_t hits, misses, evictions, packs;
  uint64_t peeks;               /* misses that read a few entries only */
  uint64_t looks;               /* slices looked at for evictions and packs */
  uint64_t bytes, peak_bytes;   /* memory held */
};

/* LIMIT: bytes of memory really held (slices, their packed contents, allocator
 * overhead).  Pinned and dirty slices may exceed it for as long as they are so; and the
 * map's own tables and what the two largest slices took (1M at most) may, for without
 * these it would be of no use.
 * NULL on ENOMEM. */
extern struct map *map_new (uint64_t limit);
extern void map_free (struct map *);  /* all its spaces are freed with it */
extern void map_get_stats (struct map *, struct map_stats *);

/* The memory of its spaces is counted there, and what others hold for the same images. */
extern struct budget *map_budget (struct map *);

struct map_ops {
  /* Fills one slice: calls map_fill_add for consecutive units from 0 until all units
   * of the slice are covered.  Called with no lock held; two calls for one slice never
   * run at once.  Returns 0, or -1 with errno set and reported.
   * NULL if load_raw is given (then the map loads raw and decodes).
   */
  int (*load) (void *opaque, uint64_t slice, struct map_fill *);

  /* Only for spaces that are edited: the slice's raw form (what the file holds). */
  int (*load_raw) (void *opaque, uint64_t slice, void *raw);

  /* The run that begins at unit UNIT of the raw slice, at most MAX units:
   * returns its length in units (>= 1) and sets kind, copied, layer, host. */
  unsigned (*decode) (void *opaque, const void *raw, unsigned unit,
                      unsigned max, struct run *);

  /* NULL, or: as decode, of a slice that is not in memory, by reading no more than a
   * few entries: MAX is at most MAP_PEEK_UNITS.  Returns the length, or -1 with errno
   * set and reported.  Called with no lock held. */
  int64_t (*peek) (void *opaque, uint64_t slice, unsigned unit, unsigned max,
                   struct run *);
};
#define MAP_PEEK_UNITS 64u

/* UNIT_BITS: log2 of the guest bytes of a unit, the granularity of the space's
 * runs.  UNITS: units per slice (a power of two, <= 2^24).  RAW_SIZE: bytes of the raw
 * form, 0 if never edited.  NULL on ENOMEM.  */
extern struct map_space *map_space_new (struct map *, unsigned unit_bits,
                                        unsigned units, size_t raw_size,
                                        const struct map_ops *, void *opaque);
/* No request may be using it; nothing of it may be pinned. */
extern void map_space_free (struct map_space *);

/* host as in struct run, for the first unit.  Adjacent runs may be merged.
 * Returns 0, or -1 with errno (reported). */
extern int map_fill_add (struct map_fill *, unsigned units,
                         enum run_kind kind, bool copied, uint16_t layer,
                         uint64_t host);

/* Finds the run at OFFSET: at most LEN bytes, never beyond the slice's end
 * (callers go on where it ends; a very long run may come in pieces).  Loads the slice
 * if it has to, or, when memory is short, reads only what it was asked for.
 * Sets all fields of *RUN.  unsettled = the slice has changes that are not durable.
 * Returns 0, or -1 with errno (reported).
 * A hit takes one short lock that is never held during I/O; a miss blocks only
 * callers that want the same slice.
 */
extern int map_lookup (struct map_space *, uint64_t offset, uint64_t len,
                       struct run *);

/* --- editing (spaces with a raw form) --- */

/* Pins slice number SLICE in raw form, loading it if needed. NULL on error (reported). */
extern struct map_slice *map_pin (struct map_space *, uint64_t slice);
extern void map_unpin (struct map_slice *);

/* Locks a pinned slice against lookups and snapshots and returns its raw form to
 * read or change.  Keep it short: no I/O, one slice at a time, and no other call
 * into the map before the end.  At the end say whether it was
 * changed, and whether the change needs a barrier: other writes to be durable
 * before it may reach the file (see checkpoint.c).
 */
enum map_change { MAP_UNCHANGED, MAP_CHANGED, MAP_CHANGED_BARRIER };
extern void *map_edit_begin (struct map_slice *);
extern void map_edit_end (struct map_slice *, enum map_change);

/* How many bytes of raw slices are dirty now (an unlocked, approximate read). */
extern uint64_t map_dirty_bytes (struct map_space *);
/* Are there more than LIMIT bytes of them in all spaces of the map, and in this one
 * more than its share of that? */
extern bool map_dirty_beyond (struct map_space *, uint64_t limit);

/* Snapshot of all dirty slices: for each, copies the raw form, clears the
 * dirty mark and keeps the slice pinned until map_written.
 * *ITEMS is an array that map_written frees, with the items' raw copies (which may be
 * changed until then).  *BARRIER: any of them needs one.
 * One caller at a time.  Returns the number of items, or -1 (ENOMEM; then nothing
 * has changed). */
struct map_dirty {
  struct map_slice *slice;
  uint64_t index;               /* slice number */
  void *raw;                    /* a copy of RAW_SIZE bytes */
  bool barrier;
};
extern int map_take_dirty (struct map_space *, struct map_dirty **items,
                           bool *barrier);
/* Ends the snapshot.  OK: the copies are durable, slices that have not been changed
 * since become clean.  Not OK: they are dirty again (with their barriers).
 * Frees the raw copies and the array. */
extern void map_written (struct map_space *, struct map_dirty *items, int n,
                         bool ok);

#endif /* QCOW2_MAP_H */
