/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do slices get into memory, and which are loaded together?
 *
 * Part of map.c.  Most of the time that it takes to load a slice passes before its first
 * byte arrives: a call, a seek, a round trip.  So while there is plenty of memory, a miss
 * loads what lies around it, too: the slices of an aligned group (map_ops.together) that
 * are not in memory.
 *
 *      group    [ 4 ][ 5 ][ 6 ][ 7 ]       5 is wanted, 6 is in memory:
 *      loaded   ####  ####      ####       one read, of 4 to 7
 *
 * The neighbours are inserted into the table before anything is read, as the wanted slice
 * is: they are EMPTY and busy, so that other threads that want to look at them or edit
 * them wait.  A thread inserts slices without waiting for any, so no two threads wait for
 * each other.  What is in memory already is not replaced: it may be newer than the file.
 *
 * No request fails because of a neighbour.  If a group cannot be loaded, nothing is
 * reported, and the wanted slice is loaded alone.
 *
 * Locks: loading and packing happen without any; the shards' locks are taken one by one.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "mapping/map-impl.h"

/* --- packing --- */

struct map_fill {
  const struct map_space *space;
  struct pack_builder builder;  /* of the slice that is being filled */
  struct pack **next, **end;    /* where its pack and those of the others go */
};

static void
fill_begin (struct map_fill *fill, const struct map_space *space, struct pack **packs,
            unsigned n)
{
  *fill = (struct map_fill) { .space = space, .next = packs, .end = packs + n };
  pack_begin (&fill->builder, space->shape);
}

/* Begins the next slice, when the one before has been filled. */
static int
next_slice (struct map_fill *fill)
{
  *fill->next = pack_build (&fill->builder);
  if (*fill->next == NULL) {
    report_error ("mapping cache: malloc: %m");
    return -1;
  }
  fill->next++;
  pack_end (&fill->builder);
  pack_begin (&fill->builder, fill->space->shape);
  return 0;
}

int
map_fill_add (struct map_fill *fill, unsigned units, enum run_kind kind,
              bool copied, uint16_t layer, uint64_t host)
{
  const struct pack_shape shape = fill->space->shape;

  while (units > 0) {
    const unsigned left = shape.units - fill->builder.units;
    const unsigned n = units < left ? units : left;

    assert (fill->next < fill->end);
    if (pack_add (&fill->builder, n, kind, copied, layer, host) == -1) {
      report_error ("mapping cache: realloc: %m");
      return -1;
    }
    if (n == left && next_slice (fill) == -1)
      return -1;
    units -= n;
    if (run_host_advances (kind))
      host += (uint64_t) n << shape.unit_bits;
  }
  return 0;
}

/* Ends the filling, which has failed if R is -1. */
static int
fill_end (struct map_fill *fill, int r)
{
  KEEP_ERRNO_FOR_BLOCK;

  assert (r == -1 || fill->next == fill->end);
  pack_end (&fill->builder);
  return r;
}

static int
fill_from_raw (const struct map_space *space, const void *raw, struct map_fill *fill)
{
  const unsigned units = space->shape.units;
  struct run run;
  unsigned unit, n;

  for (unit = 0; unit < units; unit += n) {
    n = space->ops->decode (space->opaque, raw, unit, units - unit, &run);
    assert (n >= 1 && n <= units - unit);
    if (map_fill_add (fill, n, run.kind, run.copied, run.layer, run.host) == -1)
      return -1;
  }
  return 0;
}

/* Makes packs of N slices from their raw forms. */
static int
pack_raw (const struct map_space *space, const char *raw, unsigned n, struct pack **packs)
{
  struct map_fill fill;
  int r = 0;

  fill_begin (&fill, space, packs, n);
  for (unsigned i = 0; r == 0 && i < n; i++)
    r = fill_from_raw (space, raw + i * space->raw_size, &fill);
  return fill_end (&fill, r);
}

struct pack *
map_pack_raw (const struct map_space *space, const void *raw)
{
  struct pack *p = NULL;

  pack_raw (space, raw, 1, &p);
  return p;
}

/* --- loading --- */

/* Makes packs of slices [first, first+n), some of them also on error (reported). */
static int
make_packs (const struct map_space *space, uint64_t first, unsigned n,
            struct pack **packs)
{
  CLEANUP_FREE void *raw = NULL;
  struct map_fill fill;

  if (space->ops->load) {
    fill_begin (&fill, space, packs, n);
    return fill_end (&fill, space->ops->load (space->opaque, first, n, &fill));
  }
  raw = memory_get (n * space->raw_size);
  if (raw == NULL)
    return -1;
  if (space->ops->load_raw (space->opaque, first, n, raw) == -1)
    return -1;
  return pack_raw (space, raw, n, packs);
}

/* Loads slices [first, first+n), or on error (reported) none of them. */
static int
load (const struct map_space *space, uint64_t first, unsigned n, struct pack **packs)
{
  const int r = make_packs (space, first, n, packs);
  KEEP_ERRNO_FOR_BLOCK;

  map_trace (space, r == 0 ? "loaded" : "not loaded", first, n);
  for (unsigned i = 0; r == -1 && i < n; i++) {
    free (packs[i]);
    packs[i] = NULL;
  }
  return r;
}

/* --- groups --- */

/* Inserts slice INDEX, unless the table has it.  NULL: it has, or ENOMEM. */
static struct map_slice *
insert_absent (struct map_space *space, uint64_t index)
{
  struct shard *shard = map_shard (space, index);
  struct map_slice *s = NULL;
  LOCK_FOR_BLOCK (&shard->lock);

  if (map_find (space, index) == NULL)
    s = map_insert (shard, space, index);
  return s;
}

void
map_group_begin (struct map_group *g, struct map_slice *wanted)
{
  struct map_space *space = wanted->space;
  const unsigned n = space->together;
  const uint64_t aligned = wanted->index & ~(uint64_t) (n - 1);
  struct map_slice *s;
  bool silent;

  *g = (struct map_group) { .wanted = wanted, .first = wanted->index, .n = 1 };
  g->slices[0] = wanted;
  if (n == 1 || !map_has_plenty (space->map, n))
    return;
  silent = report_silence (true);
  for (uint64_t i = aligned; i < aligned + n; i++) {
    s = i == wanted->index ? wanted : insert_absent (space, i);
    if (s == NULL)
      continue;
    if (i < g->first)
      g->first = i;
    g->n = i - g->first + 1;
    g->slices[g->n - 1] = s;
  }
  report_silence (silent);
}

const struct pack *
map_group_load (struct map_group *g)
{
  const struct map_space *space = g->wanted->space;
  struct pack **p = &g->packs[g->wanted->index - g->first];
  int r = -1;

  if (g->n > 1) {
    const bool silent = report_silence (true);

    r = load (space, g->first, g->n, g->packs);
    report_silence (silent);
  }
  if (r == -1)
    load (space, g->wanted->index, 1, p);
  return *p;
}

/* Ends the first load of a slice: it has the pack P, or if that is NULL, it goes. */
static void
end_load (struct map_slice *s, struct pack *p)
{
  struct map *map = s->space->map;
  struct shard *shard = map_shard (s->space, s->index);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    if (p) {
      s->pack = p;
      s->form = SLICE_PACK;     /* last: see map.c */
      shard->loaded++;
      map_not_busy (shard, s);
    }
    else
      map_give_up (shard, s);
  }
  if (p == NULL) {
    map_await_lookups (map);
    free (s);
  }
}

void
map_group_end (struct map_group *g)
{
  KEEP_ERRNO_FOR_BLOCK;
  struct map_space *space = g->wanted->space;
  struct shard *shard = map_shard (space, g->wanted->index);

  {
    LOCK_FOR_BLOCK (&shard->lock);
    shard->loads++;
  }
  for (unsigned i = 0; i < g->n; i++)
    if (g->slices[i])
      end_load (g->slices[i], g->packs[i]);
    else
      free (g->packs[i]);
}
