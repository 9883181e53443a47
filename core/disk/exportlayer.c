/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a single layer served?
 *
 * layer:N shows the contents of layer N itself.  Clusters that the layer marks as zero
 * are zeros but not holes, because they hide the layers below.  Ranges that the layer
 * does not contain are holes.
 *
 * Layer 0 is the image itself: its view is derived anew from the current view for each
 * request, so that it shows what was written, and what the image has become.
 *
 * The mappings of a layer are made when a client first opens the export, and kept for
 * later clients.  They count against l2-cache like all mappings.
 *
 * Locks: the disk's lock while the mappings are made.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "disk/exportkind.h"

struct layer_export {
  struct export e;
  struct view own;              /* read-only */
};

static size_t
count_layers (const struct generation *g)
{
  return layers_count (g->layers);
}

static size_t
find_layer (const struct generation *g, const char *name)
{
  unsigned long n;
  char *end;

  if (name[0] < '0' || name[0] > '9')
    return SIZE_MAX;
  errno = 0;
  n = strtoul (name, &end, 10);
  return errno != 0 || *end != '\0' || n >= layers_count (g->layers) ? SIZE_MAX : n;
}

static void
hint_layer (const struct generation *g, char *text, size_t size)
{
  snprintf (text, size, ": the layers are numbered from 0, and there are %u of them",
            layers_count (g->layers));
}

static const char *
name_layer (const struct generation *g, size_t number, unsigned which,
            char buf[EXPORT_NUMBER])
{
  (void) g, (void) which;       /* no other export can have this name */
  snprintf (buf, EXPORT_NUMBER, "%zu", number);
  return buf;
}

static void
describe_layer (const struct generation *g, size_t number, char *text, size_t size)
{
  const struct header *h = layers_header (g->layers, number);

  if (h == NULL)
    snprintf (text, size, "layer %zu of %u only, raw", number,
              layers_count (g->layers));
  else
    snprintf (text, size, "layer %zu of %u only, qcow2, clusters of %" PRIu64
              " bytes", number, layers_count (g->layers), h->cluster_size);
}

static int
open_layer (struct export *e)
{
  struct layer_export *x = (struct layer_export *) e;
  struct disk *d = e->disk;
  struct generation *g = e->generation;
  const uint32_t i = e->slot->number;

  if (i == 0) {
    e->size = g->frozen.size;
    return 0;
  }
  LOCK_FOR_BLOCK (&d->lock);

  if (e->slot->kept == NULL)
    e->slot->kept = layers_view_new_single (g->layers, i, d->map, d->options.l2_slice);
  if (e->slot->kept == NULL)
    return -1;
  x->own = g->frozen;
  x->own.is_active = false;
  x->own.single = true;
  x->own.size = e->size = layers_size (g->layers, i);
  x->own.lower = e->slot->kept;
  return 0;
}

static void
forget_layer (void *kept)
{
  layers_view_free (kept);
}

/* (`lower' is not used while layer 0 is writable.) */
static const struct view *
view_layer (const struct export *e, const struct view *current,
            struct view *made)
{
  if (e->slot->number > 0)
    return &((const struct layer_export *) e)->own;
  *made = *current;
  made->single = true;
  made->lower = current->alone;
  return made;
}

const struct export_kind export_layer = {
  .noun = "layer", .prefix = "layer:",
  .count = count_layers, .find = find_layer, .hint = hint_layer,
  .name = name_layer, .describe = describe_layer,
  .bytes = sizeof (struct layer_export), .open = open_layer, .forget = forget_layer,
  .view = view_layer,
};
