/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a disk put together, and when can it be written?
 *
 * A disk is a stack of layers, a map, and up to two views.  The first view never changes,
 * and exists from the start.  The other one is writable, and is made when the first
 * client comes that may write.  From then on all clients, including those that only read,
 * use the writable view: `current' points to it.  A request that began before continues
 * with the older view.  Its grace pin protects what it looks up there, like any mapping
 * that has just been replaced.
 *
 * Until such a client comes, nothing in the file changes, and only the reader's lock is
 * held.  After the last client that may write has left, the disk is quiesced: the image
 * is then clean, durable and without leaks.  The writer's lock stays.  If there was no
 * space for that, the checkpoints of the timer go on, so that everything is durable soon
 * after there is some.  The rest is done when the next such client leaves, or at the end.
 *
 * Locks: `lock' guards clients that come and leave: writers, and `w' while it is made.
 * It is held during quiescing, so that no client comes meanwhile.  Requests (serve.c) do
 * not take it.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "format/compress.h"
#include "format/entry.h"
#include "format/luks.h"
#include "request/copyup.h"
#include "disk/disk-impl.h"

/* Bytes of decompressed clusters that are cached for small reads. */
#define INFLATED_CACHE (UINT64_C (16) << 20)

/* --- opening --- */

static const char *
find_why_readonly (const struct disk *d)
{
  const char *why = image_why_readonly (d->image);

  return d->options.untrusted ? "it is untrusted"
    : why ? why
    : d->image->header.incompatible & QCOW2_INCOMPAT_CORRUPT
    ? "the image is marked corrupt" : NULL;
}

/* Bitmaps that writing would make wrong keep the image read-only.  If it is read-only
 * anyway, they can still be exports. */
static int
open_bitmaps (struct disk *d)
{
  const struct image *image = d->image;
  int r;

  if (!image->header.has_bitmaps || d->options.untrusted)
    return 0;
  r = bitmap_open (image->file, &image->header, image->overlap, &d->bitmaps,
                   d->why_bitmaps);
  if (d->why_readonly)
    return 0;
  if (r == 1)
    d->why_readonly = d->why_bitmaps;
  else if (r == 0 && !d->options.unrecorded &&
           !bitmapdir_can_record (bitmap_directory (d->bitmaps)->recorded))
    d->why_readonly = "its enabled bitmaps together need more than 512M of memory";
  return r == -1 ? -1 : 0;
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
describe (struct disk *d)
{
  const struct header *h = &d->image->header;
  char cluster[32], unit[32];

  describe_size (h->cluster_size, cluster, sizeof cluster);
  describe_size (entry_unit_size (h), unit, sizeof unit);
  snprintf (d->description, sizeof d->description,
            "qcow2 v%u, %s clusters%s%s%s%s%s, %u layer%s%s", h->version, cluster,
            entry_is_extended (h) ? " of " : "",
            entry_is_extended (h) ? unit : "",
            entry_is_extended (h) ? " subclusters" : "",
            d->image->data == NULL ? ""
            : image_data_is_raw (d->image) ? ", raw data file" : ", data file",
            h->crypt_method == QCOW2_CRYPT_LUKS ? ", LUKS"
            : h->crypt_method == QCOW2_CRYPT_AES ? ", AES" : "",
            layers_count (d->layers), layers_count (d->layers) == 1 ? "" : "s",
            d->why_readonly ? ", read-only" : "");
}

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
    nbdkit_error ("%s: compression is not possible: %s", path, what);
  else
    nbdkit_error ("%s: compression level %u: the highest level for %s%s is %u", path,
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
  nbdkit_error ("%s: a watermark is not possible: the image is in a file, not on a block "
                "device or an NBD export", storage_path (image->file));
  errno = EINVAL;
  return -1;
}

/* Limits on the memory and time that an untrusted image may use; sane images stay
 * below.  How long its L1 and refcount tables are does not matter: the format limits that,
 * they are read in pieces, and a table may have to be long because the clusters are small
 * (L1) or large (it is one cluster at least).  What costs memory is to know where the
 * clusters of metadata are that they name: up to 32 MiB for this number of them. */
#define UNTRUSTED_PLACES (3u << 18)
#define UNTRUSTED_SNAPSHOTS 256
#define UNTRUSTED_SNAPSHOT_TABLE (1u << 20)
#define UNTRUSTED_BITMAP_DIRECTORY (1u << 20)

static int
check_untrusted_header (const char *path, const struct header *h)
{
  const char *what = NULL;

  if (h->nb_snapshots > UNTRUSTED_SNAPSHOTS)
    what = "more than 256 snapshots";
  else if (h->has_bitmaps && h->bitmaps.dir_size > UNTRUSTED_BITMAP_DIRECTORY)
    what = "a bitmap directory of more than 1 MiB";
  if (what == NULL)
    return 0;
  nbdkit_error ("%s: the image has %s, more than an untrusted image may have",
                path, what);
  errno = EPERM;
  return -1;
}

/* The header does not say how long the table is. */
static int
check_untrusted_table (const char *path, const struct snapshots *snapshots)
{
  if (snapshots->table_bytes <= UNTRUSTED_SNAPSHOT_TABLE)
    return 0;
  nbdkit_error ("%s: the image has a snapshot table of more than 1 MiB, more than "
                "an untrusted image may have", path);
  errno = EPERM;
  return -1;
}

static int
check_untrusted_image (const struct image *image)
{
  const char *path = storage_path (image->file);
  struct snapshots snapshots;
  int r = check_untrusted_header (path, &image->header);

  if (r == -1)
    return -1;
  r = snapshots_list (image->file, &image->header, &snapshots);
  if (r == 0)
    r = check_untrusted_table (path, &snapshots);
  snapshots_free (&snapshots);
  return r;
}

struct chain_options
disk_chain_options (const struct disk_options *o)
{
  return (struct chain_options) {
    .backing = o->backing, .backing_path = o->backing_path,
    .backing_format = o->backing_format,
    .image = {
      .file = {
        .try_writable = !o->untrusted, .lock = o->lock, .cache = o->cache,
        .in_dir = o->in_dir, .link = &o->link, .hooks = o->hooks,
      },
      .secret = {
        .passphrase = o->secret.passphrase, .len = o->secret.len,
        .unneeded = o->secret.unneeded,
        .most_rounds = o->untrusted ? LUKS_UNTRUSTED_ROUNDS : 0,
      },
      .data_file = o->data_file, .data_file_path = o->data_file_path,
      .most_places = o->untrusted ? UNTRUSTED_PLACES : 0,
      .rules = o->rules,
    },
  };
}

struct image *
disk_open_header (const struct disk_options *o)
{
  struct storage_options file = disk_chain_options (o).image.file;
  struct image *image;

  file.try_writable = false;
  image = image_open_file (o->path, &file);
  if (image == NULL)
    return NULL;
  image_limit_places (image, disk_chain_options (o).image.most_places);
  if (o->untrusted ? image_read_header (image) == 0 &&
      check_untrusted_image (image) == 0 && image_load (image) == 0 &&
      image_read_snapshots (image) == 0 : image_read_cut_header (image) == 0)
    return image;
  image_close (image);
  return NULL;
}

struct image *
disk_open_image (const struct disk_options *o)
{
  const struct chain_options chain = disk_chain_options (o);
  struct image *image = image_open (o->path, &chain.image);

  if (image == NULL)
    return NULL;
  if ((o->untrusted && check_untrusted_image (image) == -1) ||
      image_open_data (image, &chain.image) == -1) {
    image_close (image);
    return NULL;
  }
  return image;
}

struct layers *
disk_open_layers (const struct disk_options *options, struct image *image)
{
  const struct chain_options chain = disk_chain_options (options);
  struct layers *layers = layers_new ();

  if (layers == NULL)
    return NULL;
  if (layers_add_image (layers, image) == 0 && chain_open (layers, &chain) == 0)
    return layers;
  layers_free (layers);
  return NULL;
}

int
disk_find_backing (const struct disk_options *o, const struct header *h, char **path,
                   const char **format)
{
  const struct chain_options chain = disk_chain_options (o);

  if (chain_below (o->path, h, &chain, path, format) == -1)
    return -1;
  if (*path == NULL || chain_check_there (o->path, *path, &chain) == 0)
    return 0;
  free (*path);
  *path = NULL;
  return -1;
}

int
disk_open_on (const struct disk_options *options, struct image *image,
              struct disk **ret)
{
  struct disk *d = calloc (1, sizeof *d);
  struct header *h = &image->header;

  if (d == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  d->options = *options;
  pthread_mutex_init (&d->lock, NULL);
  pthread_cond_init (&d->kept_changed, NULL);
  d->spacewait = (struct spacewait) {
    .enabled = options->wait_for_space, .path = options->path,
    .client_waits = options->client_waits, .news = options->news,
  };
  pthread_mutex_init (&d->spacewait.lock, NULL);

  h->size = max64 (h->size, options->size_at_least);
  if ((options->compress &&
       check_compress (options->path, h, &options->compress_options) == -1) ||
      (options->watermark > 0 && check_watermark (image) == -1))
    goto error;
  d->image = image;
  d->layers = disk_open_layers (options, image);
  if (d->layers == NULL)
    goto error;

  d->grace = grace_new ();
  d->map = options->map ? options->map : map_new (options->l2_cache);
  if (d->grace == NULL || d->map == NULL) {
    nbdkit_error ("out of memory");
    goto error;
  }
  d->cluster_cache = cluster_cache_new (INFLATED_CACHE);
  if (d->cluster_cache == NULL)
    goto error;

  d->frozen.size = h->size;
  d->frozen.image = image;
  d->frozen.layers = d->layers;
  readahead_load_init (&d->own_load);
  d->readahead = readahead_new (d->grace, &d->current,
                                options->load ? options->load : &d->own_load);
  if (d->readahead == NULL)
    goto error;
  d->frozen.cluster_cache = d->cluster_cache;
  d->frozen.readahead = d->readahead;
  d->frozen.is_active = true;
  d->frozen.lower = layers_view_new (d->layers, 0, d->map, h->size,
                                     options->l2_slice);
  if (d->frozen.lower == NULL)
    goto error;
  atomic_init (&d->current, &d->frozen);

  d->why_readonly = find_why_readonly (d);
  if (open_bitmaps (d) == -1 || exports_index (d) == -1)
    goto error;
  describe (d);
  d->options.secret = (struct image_secret) { .passphrase = NULL };
  *ret = d;
  return 0;

 error:
  disk_close (d);
  return -1;
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

/* --- clients come and leave --- */

int
disk_connect (struct disk *d, bool *writable)
{
  LOCK_FOR_BLOCK (&d->lock);

  if (*writable && d->no_space_to_recover) {    /* perhaps there is some now */
    d->no_space_to_recover = false;
    d->why_readonly = NULL;
  }
  if (*writable && d->why_readonly) {
    if (!d->told_readonly)
      nbdkit_error ("%s: served read-only: %s", d->options.path,
                    d->why_readonly);
    d->told_readonly = true;
    *writable = false;
  }
  if (!*writable)
    return 0;
  if (d->live.w == NULL && disk_become_writable (d) == -1) {
    if (d->why_readonly == NULL)
      return -1;
    *writable = false;
    return 0;
  }
  if (d->writers++ == 0)
    checkpoint_start_timer (d->w.checkpoint);
  return 0;
}

/* If there was no space for what clients have written, the timer goes on without them:
 * the next one may never come.  Keeps errno. */
static void
keep_trying (struct disk *d)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (d->restless && health_check (d->image->health) == 0)
    checkpoint_start_timer (d->w.checkpoint);
}

/* Called with the lock held. */
static int
come_to_rest (struct disk *d)
{
  int r;

  readahead_end (d->readahead);
  r = disk_quiesce (d);
  d->restless = r == -1;
  d->no_space = r == -1 && storage_may_try_again (errno);
  keep_trying (d);
  return r;
}

int
disk_disconnect (struct disk *d, bool writable)
{
  LOCK_FOR_BLOCK (&d->lock);

  return !writable || --d->writers > 0 ? 0 : come_to_rest (d);
}

/* Called with the lock held. */
static bool
lacks_space (struct disk *d)
{
  return d->writers == 0 && d->no_space && health_check (d->image->health) == 0;
}

static bool
may_settle (struct disk *d)
{
  return lacks_space (d) && !checkpoint_has_changes (d->w.checkpoint) &&
    !bitmap_is_unsettled (d->bitmaps);
}

bool
disk_lacks_space (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);
  return lacks_space (d);
}

bool
disk_may_settle (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);
  return may_settle (d);
}

void
disk_settle (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  if (may_settle (d))
    come_to_rest (d);
}

void
disk_hang_up (struct disk *d)
{
  layers_disconnect (d->layers);
}

int
disk_close (struct disk *d)
{
  int r = 0;

  if (d == NULL)
    return 0;
  readahead_free (d->readahead);
  /* There may be space on the host now (R9). */
  if (d->writers > 0 || d->restless)
    r = disk_quiesce (d);
  if (r == -1 && storage_may_try_again (errno) && l2_dirty_beyond (d->w.l2, 0))
    nbdkit_error ("%s: the changes since the last flush are lost: there was no space or "
                  "memory for them", d->options.path);
  disk_free_writable (d);
  exports_free (d);
  bitmap_close (d->bitmaps);
  layers_view_free (d->frozen.lower);
  cluster_cache_free (d->cluster_cache);
  if (d->map && d->options.map == NULL)
    map_free (d->map);
  if (d->grace)
    grace_free (d->grace);
  layers_free (d->layers);
  pthread_cond_destroy (&d->kept_changed);
  pthread_mutex_destroy (&d->spacewait.lock);
  pthread_mutex_destroy (&d->lock);
  free (d);
  return r;
}

void
disk_allow_ahead (struct disk *d)
{
  readahead_allow (d->readahead);
}

void
disk_end_ahead (struct disk *d)
{
  readahead_end (d->readahead);
  map_end_ahead (d->map);
}

/* --- properties --- */

const char *
disk_description (const struct disk *d)
{
  return d->description;
}

const char *
disk_why_readonly (const struct disk *d)
{
  return d->why_readonly;
}

struct disk_inside
disk_inside (struct disk *d)
{
  return (struct disk_inside) {
    .view = atomic_load (&d->current), .grace = d->grace, .map = d->map,
    .bitmaps = d->bitmaps,
  };
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

void
disk_get_stats (struct disk *d, struct disk_stats *stats)
{
  LOCK_FOR_BLOCK (&d->lock);

  memset (stats, 0, sizeof *stats);
  map_get_stats (d->map, &stats->map);
  cluster_cache_get_stats (d->cluster_cache, &stats->cluster_cache);
  if (d->live.w) {
    alloc_get_stats (d->w.alloc, &stats->alloc);
    checkpoint_get_stats (d->w.checkpoint, &stats->checkpoint);
  }
  spacewait_get_stats (&d->spacewait, &stats->space);
  stats->file_size = storage_size_now (d->image->file, false);
  stats->is_device = !storage_is_regular (d->image->file);
}

void
disk_add_stats (struct disk_stats *sum, const struct disk_stats *s)
{
  sum->cluster_cache.ahead += s->cluster_cache.ahead;
  sum->cluster_cache.ahead_hits += s->cluster_cache.ahead_hits;
  sum->cluster_cache.hits += s->cluster_cache.hits;
  sum->cluster_cache.inflations += s->cluster_cache.inflations;
  sum->cluster_cache.waits += s->cluster_cache.waits;
  sum->cluster_cache.evictions += s->cluster_cache.evictions;
  sum->cluster_cache.bytes += s->cluster_cache.bytes;
  sum->cluster_cache.peak_bytes += s->cluster_cache.peak_bytes;
  sum->alloc.allocated += s->alloc.allocated;
  sum->alloc.freed += s->alloc.freed;
  sum->alloc.punched += s->alloc.punched;
  sum->alloc.extended += s->alloc.extended;
  sum->alloc.low += s->alloc.low;
  sum->checkpoint.flushes += s->checkpoint.flushes;
  sum->checkpoint.runs += s->checkpoint.runs;
  sum->checkpoint.syncs += s->checkpoint.syncs;
  sum->checkpoint.shared += s->checkpoint.shared;
  sum->checkpoint.timed += s->checkpoint.timed;
  sum->space.waiting += s->space.waiting;
  sum->space.requests += s->space.requests;
  sum->space.pauses += s->space.pauses;
  sum->space.ms += s->space.ms;
}
