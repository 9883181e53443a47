/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a guest range in the same place in two stacks of layers?
 *
 * Then both show the same there, and nothing has to be read to know that.  So if one
 * stack is a part of the other, only what the files between them contain is looked at.
 *
 * Locks: none.
 */

#include <config.h>

#include "util/bytes.h"
#include "mapping/places.h"

/* A hole of a raw file shows zeros, which need not be read.  May shorten the run. */
static void
look_for_hole (const struct layers *layers, struct run *run)
{
  if (run->kind == RUN_NORMAL && layers_header (layers, run->layer) == NULL &&
      storage_hole (layers_data_file (layers, run->layer), run->host, &run->len))
    run->kind = RUN_ZERO;
}

/* Are the bytes of run X of A and run Y of B, which begin at the same guest offset, the
 * same ones? */
static bool
same_place (const struct places *a, const struct run *x, const struct places *b,
            const struct run *y)
{
  if (x->kind != y->kind)
    return false;
  if (x->kind == RUN_ZERO)
    return true;
  /* (The bytes of a raw file are read as they are; those of an image may have to be
   * decrypted.) */
  return x->host == y->host &&
    (layers_header (a->layers, x->layer) == NULL) ==
    (layers_header (b->layers, y->layer) == NULL) &&
    storage_same (layers_data_file (a->layers, x->layer),
                  layers_data_file (b->layers, y->layer));
}

int
places_differ (const struct places *a, const struct places *b, uint64_t unit, uint64_t at,
               uint64_t *len)
{
  uint64_t same = 0, n;
  struct run x, y;

  do {
    if (layers_lookup (a->view, at + same, *len - same, &x) == -1 ||
        layers_lookup (b->view, at + same, *len - same, &y) == -1)
      return -1;
    look_for_hole (a->layers, &x);
    look_for_hole (b->layers, &y);
    n = min64 (x.len, y.len);
    if (!same_place (a, &x, b, &y)) {
      if (same >= unit) {
        *len = round_down (same, unit);
        return 0;
      }
      *len = min64 (*len, round_up (same + n, unit));
      return 1;
    }
    same += n;
  } while (same < *len);
  return 0;
}
