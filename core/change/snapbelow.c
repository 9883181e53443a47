/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an internal snapshot show data of the layers below its image?
 *
 * Then these layers cannot go: only the active disk gets what it needs of them.
 *
 * Locks: none.
 */

#include <config.h>

#include <string.h>

#include "change/snapbelow.h"

static int
needs (struct layers *layers, struct map *map, uint64_t slice_size,
       const struct snapshot *s)
{
  const struct header *const h = layers_header (layers, 0);
  struct layers_view *v;
  struct run run = { .len = 0 };
  uint64_t at;
  int r = 0;

  if (s->disk_size > (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits))
    return 1;
  v = layers_view_new_snapshot (layers, map, s->l1_offset, s->disk_size, slice_size);
  if (v == NULL)
    return -1;
  for (at = 0; r == 0 && at < s->disk_size; at += run.len) {
    r = layers_lookup (v, at, s->disk_size - at, &run);
    if (r == 0)
      r = run.layer > 0 && run.kind != RUN_ZERO;
  }
  layers_view_free (v);
  return r;
}

int
snapbelow_needs (struct layers *layers, struct map *map, uint64_t slice_size,
                 char name[PRINTABLE_SIZE (64)])
{
  const struct snapshots *all = &layers_image (layers, 0)->snapshots;
  int r = 0;

  for (uint32_t i = 0; r == 0 && i < all->n; i++) {
    const struct snapshot *s = &all->list[i];

    r = needs (layers, map, slice_size, s);
    if (r == 1)
      printable (s->name, strlen (s->name), name, PRINTABLE_SIZE (64));
  }
  return r;
}
