/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is one state of a disk made of?
 *
 * A generation is made of an image that was read from its file, and of the layers below
 * it.  It has a view that never changes, from the start.  The other one is writable, and
 * is made by a step (writable.c).  From then on all clients, including those that only
 * read, use the writable view.  A request that began before continues with the older
 * view: its read section protects what it looks up there, like any mapping that has just
 * been replaced.
 *
 * Mappings and decompressed clusters are those of one generation: what they say of a host
 * cluster may not be true in the next one.
 *
 * disk-impl.h tells how one generation follows another.
 *
 * Locks: the disk's lock guards owners, and which generations there are.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/remedy.h"
#include "util/report.h"
#include "format/entry.h"
#include "disk/disk-impl.h"

/* Bytes of decompressed clusters that are cached for small reads. */
#define INFLATED_CACHE (UINT64_C (16) << 20)

static const char *
choose_why_fixed (const struct generation *g)
{
  const char *why = image_why_readonly (g->image);

  return g->disk->options.untrusted ? "it is untrusted"
    : why ? why
    : g->image->header.incompatible & QCOW2_INCOMPAT_CORRUPT
    ? remedy (REMEDY_MARKED_CORRUPT) : NULL;
}

/* Bitmaps that changes would make wrong keep the image as it is.  If it is read-only
 * anyway, they can still be exports. */
static int
open_bitmaps (struct generation *g)
{
  const struct image *image = g->image;
  const char *why = choose_why_fixed (g);
  int r = 0;

  if (image->header.has_bitmaps && !g->disk->options.untrusted)
    r = bitmap_open (image->file, &image->header, image->overlap, &g->bitmaps,
                     g->why_bitmaps);
  if (g->bitmaps && !bitmapdir_can_record (bitmap_directory (g->bitmaps)->recorded))
    g->why_unrecorded = "its enabled bitmaps together need more than 512M of memory";
  g->why_fixed = why ? why : r == 1 ? g->why_bitmaps : NULL;
  return r == -1 && why == NULL ? -1 : 0;
}

/* The size of a cluster or subcluster, such as "64K". */
static void
describe_size (uint64_t size, char *text, size_t room)
{
  if (size >= 1 << 20)
    snprintf (text, room, "%uM", (unsigned) (size >> 20));
  else if (size >= 1024)
    snprintf (text, room, "%uK", (unsigned) (size >> 10));
  else
    snprintf (text, room, "%u", (unsigned) size);
}

static void
describe (struct generation *g)
{
  const struct header *h = &g->image->header;
  char cluster[32], unit[32];

  describe_size (h->cluster_size, cluster, sizeof cluster);
  describe_size (entry_unit_size (h), unit, sizeof unit);
  snprintf (g->description, sizeof g->description,
            "qcow2 v%u, %s clusters%s%s%s%s%s, %u layer%s%s", h->version, cluster,
            entry_is_extended (h) ? " of " : "",
            entry_is_extended (h) ? unit : "",
            entry_is_extended (h) ? " subclusters" : "",
            g->image->data == NULL ? ""
            : image_data_is_raw (g->image) ? ", raw data file" : ", data file",
            h->crypt_method == QCOW2_CRYPT_LUKS ? ", LUKS"
            : h->crypt_method == QCOW2_CRYPT_AES ? ", AES" : "",
            layers_count (g->layers), layers_count (g->layers) == 1 ? "" : "s",
            g->why_fixed || g->why_unrecorded ? ", read-only" : "");
}

static int
make_frozen (struct generation *g)
{
  struct disk *d = g->disk;
  const uint64_t size = g->image->header.size;

  g->cluster_cache = cluster_cache_new (INFLATED_CACHE);
  g->readahead = readahead_new (d->epoch, &d->current,
                                d->options.load ? d->options.load : &d->own_load);
  g->frozen = (struct view) {
    .size = size, .image = g->image, .layers = g->layers,
    .cluster_cache = g->cluster_cache, .readahead = g->readahead, .is_active = true,
    .lower = layers_view_new (g->layers, 0, d->map, size, d->options.l2_slice),
    .alone = layers_view_new_single (g->layers, 0, d->map, d->options.l2_slice),
  };
  return g->cluster_cache && g->readahead && g->frozen.lower && g->frozen.alone ? 0 : -1;
}

struct generation *
generation_new (struct disk *d, struct image *image, struct layers *layers)
{
  struct generation *g = memory_new (1, sizeof *g);

  if (g == NULL) {
    layers_free (layers);
    return NULL;
  }
  g->disk = d;
  g->users = 1;
  g->image = image_ref (image);
  g->layers = layers;
  {
    LOCK_FOR_BLOCK (&d->lock);

    g->older = d->generations;
    d->generations = g;
  }
  if (make_frozen (g) == -1 || open_bitmaps (g) == -1 || exports_index (g) == -1) {
    generation_free (g);
    return NULL;
  }
  describe (g);
  return g;
}

static void
forget (struct generation *g)
{
  LOCK_FOR_BLOCK (&g->disk->lock);

  for (struct generation **p = &g->disk->generations; *p; p = &(*p)->older)
    if (*p == g) {
      *p = g->older;
      break;
    }
}

void
generation_free (struct generation *g)
{
  KEEP_ERRNO_FOR_BLOCK;

  forget (g);
  readahead_free (g->readahead);
  generation_end_writing (g);
  exports_free (g);
  bitmap_close (g->bitmaps);
  layers_view_free (g->frozen.alone);
  layers_view_free (g->frozen.lower);
  cluster_cache_free (g->cluster_cache);
  layers_free (g->layers);
  image_close (g->image);
  free (g);
}

struct generation *
generation_hold (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  d->now->users++;
  return d->now;
}

void
generation_drop (struct generation *g)
{
  bool last;
  {
    LOCK_FOR_BLOCK (&g->disk->lock);

    last = --g->users == 0;
  }
  if (last)
    generation_free (g);
}
