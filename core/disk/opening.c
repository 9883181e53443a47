/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the images of a disk opened, and which are refused?
 *
 * The top image is opened in steps, for callers that need only its header, or change it
 * before it is served.  The layers below it are opened when it has been loaded.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "util/report.h"
#include "format/luks.h"
#include "disk/disk.h"

/* Limits on the memory and time that an untrusted image may use; sane images stay
 * below.  How long its L1 and refcount tables are does not matter: the format limits
 * that, they are read in pieces, and a table may have to be long because the clusters are
 * small (L1) or large (it is one cluster at least).  What costs memory is to know where
 * the clusters of metadata are that they name: up to 32 MiB for this number of them. */
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
  return report_refusal (EPERM, "%s: the image has %s, more than an untrusted image may "
                         "have", path, what);
}

/* The header does not say how long the table is. */
static int
check_untrusted_table (const char *path, const struct snapshots *snapshots)
{
  if (snapshots->table_bytes <= UNTRUSTED_SNAPSHOT_TABLE)
    return 0;
  return report_refusal (EPERM, "%s: the image has a snapshot table of more than 1 MiB, "
                         "more than an untrusted image may have", path);
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

static struct image_secret
secret_within (const struct disk_options *o)
{
  struct image_secret secret = o->secret;

  secret.most_rounds = o->untrusted ? LUKS_UNTRUSTED_ROUNDS : 0;
  return secret;
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
      .secret = secret_within (o),
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
