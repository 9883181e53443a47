/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which thread of a test may change which part of a disk?
 *
 * A disk is divided into random pieces, each with one owner.  Some are small, so that
 * threads share clusters but no byte, and some contain several whole clusters, so that
 * whole clusters can be trimmed and zeroed.  So the owner of a byte knows its contents at
 * any time, without locks.
 *
 * Pieces that belong to all threads are for requests that race for the same bytes.
 */

#include <config.h>

#include <stdlib.h>

#include "lib/pieces.h"

void
pieces_make (struct pieces *p, struct rng *rng, uint64_t size,
             uint64_t cluster_size, uint64_t unit, unsigned owners, bool shared)
{
  /* A single owner may have the whole disk in one piece. */
  const bool one = owners == 1 && rng_below (rng, 2);
  /* Small clusters must not mean that all requests are small. */
  const uint64_t many = 6 + (128 << 10) / cluster_size;
  unsigned room = 0, i, k, owner;
  uint64_t at, len;

  *p = (struct pieces) { .owners = owners };
  for (at = 0; at < size; at += len) {
    /* Whole clusters up to the end of a cluster, or a part of one. */
    if (one)
      len = size;
    else if (rng_below (rng, 3) == 0)
      len = (1 + rng_below (rng, rng_below (rng, 4) ? 6 : many)) * cluster_size
        - at % cluster_size;
    else
      len = (1 + rng_below (rng, cluster_size / unit)) * unit;
    if (len > size - at)
      len = size - at;
    if (p->n == room) {
      room = room ? room * 2 : 64;
      p->all = realloc (p->all, room * sizeof *p->all);
      CHECK (p->all != NULL);
    }
    /* Each owner gets one of the first pieces, so that all have one. */
    owner = p->n < owners ? p->n :
      shared && rng_below (rng, 3) == 0 ? owners : rng_below (rng, owners);
    p->all[p->n++] = (struct piece) { at, len, owner };
  }
  if (p->n < owners)            /* a tiny disk */
    p->owners = owners = p->n;

  p->index = malloc (p->n * sizeof *p->index);
  p->first = malloc ((owners + 2) * sizeof *p->first);
  CHECK (p->index != NULL && p->first != NULL);
  for (owner = 0, k = 0; owner <= owners; owner++) {
    p->first[owner] = k;
    for (i = 0; i < p->n; i++)
      if (p->all[i].owner == owner)
        p->index[k++] = i;
  }
  p->first[owners + 1] = k;
}

void
pieces_free (struct pieces *p)
{
  free (p->all);
  free (p->index);
  free (p->first);
}

const struct piece *
pieces_pick (const struct pieces *p, struct rng *rng, unsigned owner)
{
  const unsigned first = p->first[owner];
  const unsigned n = p->first[owner + 1] - first;

  return n == 0 ? NULL : &p->all[p->index[first + rng_below (rng, n)]];
}

void
piece_part (const struct piece *piece, struct rng *rng, uint64_t unit,
            uint64_t cluster_size, uint64_t longest,
            uint64_t *offset, uint64_t *count)
{
  const uint64_t end = piece->start + piece->len;
  uint64_t from = piece->start, to = end;

  switch (rng_below (rng, 4)) {
  case 0:                       /* all of it */
    break;
  case 1:                       /* whole clusters */
    unit = cluster_size;
    /* fallthrough */
  default:
    from += rng_below (rng, piece->len);
    from = (from + unit - 1) / unit * unit;
    if (from >= end || from < piece->start)
      from = piece->start;
    to = from + 1 + rng_below (rng, end - from);
    to = (to + unit - 1) / unit * unit;
    if (to > end)
      to = end;
  }
  if (to - from > longest)
    to = from + longest;
  *offset = from;
  *count = to - from;
}
