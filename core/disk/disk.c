/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a disk put together?
 *
 * Of an image and the layers below it (opening.c), which make its first generation
 * (generation.c).  From then on it changes by steps only (steps.c).
 *
 * Locks: see disk-impl.h; a disk that is being opened or closed belongs to one thread.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/compress.h"
#include "disk/disk-impl.h"

/* --- opening --- */

/* As in QEMU, compressed clusters cannot be encrypted, nor be in a data file. */
static int
check_compress (const char *path, const struct header *h,
                const struct compress_options *options)
{
  const unsigned most = compress_max_level (h->compression_type, options->long_window);
  const char *what = NULL;

  if (h->crypt_method != QCOW2_CRYPT_NONE)
    what = "the image is encrypted";
  else if (h->incompatible & QCOW2_INCOMPAT_DATA_FILE)
    what = "the image has an external data file";
  else if (!compress_supported (h->compression_type))
    what = "this build lacks the image's compression type";
  if (what == NULL && options->level <= most)
    return 0;
  if (what)
    report_error ("%s: compression is not possible: %s", path, what);
  else
    report_error ("%s: compression level %u: the highest level for %s%s is %u", path,
                  options->level, compress_name (h->compression_type),
                  h->compression_type != QCOW2_COMPRESSION_DEFLATE ? ""
                  : options->long_window ? " with a window of 32K"
                  : " with a window of 4K", most);
  errno = EINVAL;
  return -1;
}

/* How far a file can grow, only its file system knows. */
static int
check_watermark (const struct image *image)
{
  if (!storage_is_regular (image->file))
    return 0;
  return report_refusal (EINVAL, "%s: a watermark is not possible: the image is in a "
                         "file, not on a block device or an NBD export",
                         storage_path (image->file));
}

static struct disk *
new_disk (const struct disk_options *options)
{
  struct disk *d = memory_new (1, sizeof *d);

  if (d == NULL)
    return NULL;
  d->options = *options;
  pthread_mutex_init (&d->steps, NULL);
  pthread_mutex_init (&d->lock, NULL);
  pthread_cond_init (&d->opened, NULL);
  pthread_cond_init (&d->kept_changed, NULL);
  d->spacewait = (struct spacewait) {
    .enabled = options->wait_for_space, .path = options->path,
    .client_waits = options->client_waits, .news = options->news,
  };
  pthread_mutex_init (&d->spacewait.lock, NULL);
  readahead_load_init (&d->own_load);
  d->epoch = epoch_new ();
  d->changes = epoch_new ();
  d->flushes = epoch_new ();
  d->map = options->map ? options->map : map_new (options->l2_cache);
  if (d->epoch && d->changes && d->flushes && d->map)
    return d;
  report_error ("out of memory");
  disk_close (d);
  return NULL;
}

/* LAYERS: NULL: opens them. */
static int
open_with (const struct disk_options *options, struct image *image, struct layers *layers,
           struct disk **ret)
{
  struct disk *d = new_disk (options);

  if (d == NULL) {
    layers_free (layers);
    return -1;
  }
  if (layers == NULL)
    layers = disk_open_layers (options, image);
  d->now = layers ? generation_new (d, image, layers) : NULL;
  if (d->now == NULL) {
    disk_close (d);
    return -1;
  }
  image_adopt (image);
  d->why_fixed = d->now->why_fixed;
  atomic_init (&d->current, &d->now->frozen);
  d->options.secret = (struct image_secret) { .passphrase = NULL };
  *ret = d;
  return 0;
}

int
disk_open_on (const struct disk_options *options, struct image *image,
              struct disk **ret)
{
  const struct header *h = &image->header;

  return (options->compress &&
          check_compress (options->path, h, &options->compress_options) == -1) ||
    (options->watermark > 0 && check_watermark (image) == -1) ? -1
    : open_with (options, image, NULL, ret);
}

int
disk_open_over (const struct disk_options *options, const struct layers *over, unsigned i,
                struct disk **ret)
{
  struct image *const image = layers_image (over, i);
  struct layers *layers = layers_over (image, NULL, over, i + 1);

  return layers ? open_with (options, image, layers, ret) : -1;
}

int
disk_open (const struct disk_options *options, struct disk **ret)
{
  struct image *image = disk_open_image (options);
  int r = -1;

  if (image == NULL)
    return -1;
  if (image_load (image) == 0 && image_read_snapshots (image) == 0)
    r = disk_open_on (options, image, ret);
  image_close (image);          /* the disk is an owner of its own */
  return r;
}

int
disk_close (struct disk *d)
{
  int r;

  if (d == NULL)
    return 0;
  r = d->now ? disk_end (d) : 0;
  /* (Clients that have not left may hold more than one.) */
  while (d->generations)
    generation_free (d->generations);
  for (struct toppath *p = d->paths, *next; p; p = next) {
    next = p->next;
    free (p);
  }
  if (d->map && d->options.map == NULL)
    map_free (d->map);
  if (d->epoch)
    epoch_free (d->epoch);
  if (d->changes)
    epoch_free (d->changes);
  if (d->flushes)
    epoch_free (d->flushes);
  pthread_cond_destroy (&d->kept_changed);
  pthread_cond_destroy (&d->opened);
  pthread_mutex_destroy (&d->spacewait.lock);
  pthread_mutex_destroy (&d->lock);
  pthread_mutex_destroy (&d->steps);
  free (d);
  return r;
}

void
disk_hang_up (struct disk *d)
{
  struct generation *g = generation_hold (d);

  layers_disconnect (g->layers);
  generation_drop (g);
}

bool
disk_is_busy (struct disk *d)
{
  return atomic_load (&d->closed) || !epoch_passed (d->epoch, epoch_stamp (d->epoch)) ||
    !epoch_passed (d->flushes, epoch_stamp (d->flushes));
}

/* --- properties --- */

const char *
disk_description (const struct disk *d)
{
  return d->now->description;
}


const struct disk_options *
disk_get_options (const struct disk *d)
{
  return &d->options;
}

struct disk_options
disk_options_meanwhile (const struct disk_options *o, const char *path)
{
  return (struct disk_options) {
    .path = path, .l2_cache = o->l2_cache, .l2_slice = o->l2_slice,
    .untrusted = o->untrusted, .discard = o->discard, .cache = o->cache, .lock = o->lock,
    .rules = o->rules, .link = o->link, .hooks = o->hooks,
  };
}

struct disk_inside
disk_inside (struct disk *d)
{
  return (struct disk_inside) {
    .view = atomic_load (&d->current), .epoch = d->epoch, .map = d->map,
  };
}

struct disk_section
disk_enter (struct disk *d)
{
  const struct epoch_section section = epoch_enter (d->epoch);

  return (struct disk_section) { atomic_load (&d->current), d->epoch, section };
}

void
disk_leave (struct disk_section *p)
{
  epoch_leave (p->epoch, p->section);
}

struct bitmaps *
disk_bitmaps (const struct disk *d)
{
  return d->now->bitmaps;
}

bool
disk_can_inflate (const char *type)
{
  unsigned t;

  for (t = QCOW2_COMPRESSION_DEFLATE; t <= QCOW2_COMPRESSION_ZSTD; t++)
    if (strcmp (type, compress_name (t)) == 0)
      return compress_supported (t);
  return false;
}
