/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which layers does a disk consist of, and what is known about each?
 *
 * Specification: "Header" (backing file).
 *
 * The stack of an image and all layers below it: images, and perhaps a raw file at the
 * bottom.
 *
 * Locks: none.  The stack does not change after it has been built, except `preallocated',
 * which is atomic.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "format/entry.h"
#include "mapping/layers-impl.h"
#include "mapping/prealloc.h"

struct layers *
layers_new (void)
{
  return memory_new (1, sizeof (struct layers));
}

static void
drop_layer (struct layer *layer)
{
  if (atomic_fetch_sub (&layer->owners, 1) > 1)
    return;
  if (layer->gone)
    layer->gone (layer->opaque);
  if (layer->before)
    drop_layer (layer->before);
  else if (layer->image)
    image_close (layer->image);
  else {
    guestdata_free (layer->guestdata);
    storage_close (layer->file);
  }
  free (layer);
}

void
layers_free (struct layers *s)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (s == NULL)
    return;
  for (unsigned i = 0; i < s->n; i++)
    drop_layer (s->layers[i]);
  free (s->layers);
  free (s);
}

/* Makes space for N more layers. */
static int
reserve (struct layers *s, unsigned n)
{
  struct layer **p = memory_resize (s->layers, s->n + n, sizeof *p);

  if (p == NULL)
    return -1;
  s->layers = p;
  return 0;
}

static struct layer *
new_layer (struct layers *s)
{
  struct layer *layer;

  if (reserve (s, 1) == -1)
    return NULL;
  layer = memory_new (1, sizeof *layer);
  if (layer)
    layer->owners = 1;
  return layer;
}

int
layers_add_image (struct layers *s, struct image *image)
{
  struct layer *layer = new_layer (s);

  if (layer == NULL)
    return -1;
  layer->image = image_ref (image);
  layer->file = image->file;
  layer->guestdata = image->guestdata;
  layer->l1_offset = image->header.l1_offset;
  layer->size = image->header.size;
  layer->preallocated = -1;
  s->layers[s->n++] = layer;
  return 0;
}

/* A partial last sector is read as if zeros followed it. */
static uint64_t
size_of_raw (uint64_t size)
{
  return size > UINT64_MAX - 511 ? size : round_up (size, 512);
}

int
layers_add_raw (struct layers *s, struct storage *file, uint64_t size)
{
  struct layer *layer = new_layer (s);

  if (layer == NULL)
    return -1;
  layer->file = file;
  layer->size = size_of_raw (size);
  layer->guestdata = guestdata_new (file, NULL, GUESTDATA_HOST_SECTORS);
  if (layer->guestdata == NULL) {
    free (layer);
    return -1;
  }
  s->layers[s->n++] = layer;
  return 0;
}

int
layers_share (struct layers *s, const struct layers *of, unsigned from, unsigned to)
{
  if (reserve (s, to - from) == -1)
    return -1;
  for (; from < to; from++) {
    s->layers[s->n++] = of->layers[from];
    atomic_fetch_add (&of->layers[from]->owners, 1);
  }
  return 0;
}

struct layers *
layers_copy (const struct layers *of)
{
  struct layers *s = layers_new ();

  if (s == NULL || layers_share (s, of, 0, of->n) == 0)
    return s;
  layers_free (s);
  return NULL;
}

int
layers_share_raw (struct layers *s, const struct layers *of, unsigned i)
{
  struct layer *const before = of->layers[i];
  struct layer *layer = new_layer (s);

  if (layer == NULL)
    return -1;
  layer->before = before;
  atomic_fetch_add (&before->owners, 1);
  layer->file = before->file;
  layer->guestdata = before->guestdata;
  layer->size = size_of_raw (storage_size (layer->file));
  s->layers[s->n++] = layer;
  return 0;
}

bool
layers_same (const struct layers *a, const struct layers *b, unsigned i)
{
  return a->layers[i] == b->layers[i];
}

bool
layers_is_shared (const struct layers *s, unsigned i)
{
  return atomic_load (&s->layers[i]->owners) > 1;
}

void
layers_when_gone (struct layers *s, unsigned i, void (*gone) (void *), void *opaque)
{
  s->layers[i]->opaque = opaque;
  s->layers[i]->gone = gone;
}

void *
layers_whose_end (const struct layers *s, unsigned i, void (*gone) (void *))
{
  return s->layers[i]->gone == gone ? s->layers[i]->opaque : NULL;
}

struct layers *
layers_over (struct image *top, struct image *second, const struct layers *below,
             unsigned from)
{
  struct layers *s = layers_new ();

  if (s == NULL)
    return NULL;
  if (layers_add_image (s, top) == -1 ||
      (second && layers_add_image (s, second) == -1) ||
      layers_share (s, below, from, below->n) == -1) {
    layers_free (s);
    return NULL;
  }
  return s;
}

void
layers_disconnect (struct layers *s)
{
  for (unsigned i = 0; i < s->n; i++)
    if (s->layers[i]->image)
      image_disconnect (s->layers[i]->image);
    else
      storage_disconnect (s->layers[i]->file);
}

unsigned
layers_count (const struct layers *s)
{
  return s->n;
}

struct image *
layers_image (const struct layers *l, unsigned i)
{
  return l->layers[i]->image;
}

struct storage *
layers_file (const struct layers *s, unsigned i)
{
  return s->layers[i]->file;
}

struct storage *
layers_data_file (const struct layers *s, unsigned i)
{
  const struct layer *layer = s->layers[i];

  return layer->image && layer->image->data ? layer->image->data : layer->file;
}

bool
layers_are_remote (const struct layers *s)
{
  for (unsigned i = 0; i < layers_count (s); i++)
    if (storage_is_remote (layers_file (s, i)) ||
        storage_is_remote (layers_data_file (s, i)))
      return true;
  return false;
}

struct guestdata *
layers_guestdata (const struct layers *s, unsigned i)
{
  return s->layers[i]->guestdata;
}

const struct header *
layers_header (const struct layers *s, unsigned i)
{
  const struct layer *layer = s->layers[i];

  return layer->image ? &layer->image->header : NULL;
}

uint64_t
layers_size (const struct layers *s, unsigned i)
{
  return s->layers[i]->size;
}

bool
layers_data_is_raw (const struct layers *s, unsigned i)
{
  const struct layer *layer = s->layers[i];

  return layer->image == NULL || image_data_is_raw (layer->image);
}

bool
layers_preallocated (struct layers *s, unsigned i)
{
  struct layer *layer = s->layers[i];

  /* Two threads may determine this at the same time; their results are the same. */
  if (layer->preallocated == -1)
    layer->preallocated = prealloc_detect (layer->file, &layer->image->header);
  return layer->preallocated;
}
