/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a disk now: can it be written, and if not, why?
 *
 * Locks: none of its own; the present generation is held meanwhile.
 */

#include <config.h>

#include <stdio.h>

#include "format/format.h"
#include "disk/disk-impl.h"

static void
count_bitmaps (struct bitmaps *bitmaps, struct disk_state *s)
{
  s->bitmaps = bitmap_count (bitmaps);
  for (size_t i = 0; i < s->bitmaps; i++)
    s->inconsistent += (bitmap_get (bitmaps, i)->flags & QCOW2_BITMAP_IN_USE) != 0;
}

void
disk_get_state (struct disk *d, struct disk_state *s)
{
  struct generation *const g = generation_hold (d);
  const char *readonly;
  bool corrupt;

  *s = (struct disk_state) {
    .size = g->image->header.size,
    .cluster_size = g->image->header.cluster_size,
  };
  count_bitmaps (g->bitmaps, s);
  if (health_why (g->image->health, &corrupt, s->why))
    s->health = corrupt ? DISK_CORRUPT : DISK_FAILED;
  else if ((readonly = disk_why_readonly (d)) != NULL) {
    corrupt = g->image->header.incompatible & QCOW2_INCOMPAT_CORRUPT;
    s->health = corrupt ? DISK_CORRUPT : DISK_READONLY;
    snprintf (s->why, sizeof s->why, "%s", corrupt ? "the image is marked corrupt"
              : readonly);
  }
  generation_drop (g);
}
