/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which new image does the user want?
 *
 * The parameters for creation, most of them named after those of qemu-img create -o.
 * What goes together is mostly known to newimage.c; here are the rules between these
 * parameters and the others.
 *
 * The image is made in .get_ready: all that is wrong with parameters has been found
 * then, and errors and progress still reach the user's terminal.
 *
 * Locks: none; there are no threads yet.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "createparams.h"
#include "format.h"
#include "paramvalue.h"
#include "progress.h"

/* Most milliseconds for iter-time=: what is more is cut off by luksmake.c anyway. */
#define MAX_ITER_TIME 60000

static int
set_size (struct createparams *p, const char *key, const char *value)
{
  if (p->wanted) {
    nbdkit_error ("create= was given twice");
    return -1;
  }
  p->wanted = true;
  if (strcmp (value, "auto") == 0) {
    p->options.size_of_backing = true;
    return 0;
  }
  return parse_bytes (key, value, &p->options.image.size);
}

static int
set_iter_time (struct createparams *p, const char *key, const char *value)
{
  if (nbdkit_parse_unsigned (key, value, &p->options.iter_ms) == -1)
    return -1;
  if (p->options.iter_ms == 0 || p->options.iter_ms > MAX_ITER_TIME) {
    nbdkit_error ("%s=%s: must be 1 to %d milliseconds", key, value, MAX_ITER_TIME);
    return -1;
  }
  return 0;
}

static int
set_one (struct createparams *p, const char *key, const char *value)
{
  static const struct choice compats[] = {
    { "0.10", 2 }, { "1.1", 3 }, { "v2", 2 }, { "v3", 3 }, { NULL, 0 }
  };
  static const struct choice compressions[] = {
    { "zlib", QCOW2_COMPRESSION_DEFLATE }, { "zstd", QCOW2_COMPRESSION_ZSTD },
    { NULL, 0 }
  };
  static const struct choice encryptions[] = { { "luks", true }, { NULL, 0 } };
  struct newimage_options *const image = &p->options.image;
  int choice, r;

  if (strcmp (key, "create") == 0)
    return set_size (p, key, value);
  if (strcmp (key, "cluster-size") == 0)
    return parse_bytes (key, value, &image->cluster_size);
  if (strcmp (key, "compat") == 0) {
    r = parse_choice (key, value, compats, &choice);
    if (r == 0)
      image->version = choice;
    return r;
  }
  if (strcmp (key, "refcount-bits") == 0)
    return nbdkit_parse_unsigned (key, value, &image->refcount_bits);
  if (strcmp (key, "extended-l2") == 0)
    return parse_flag (key, value, &image->extended_l2);
  if (strcmp (key, "lazy-refcounts") == 0)
    return parse_flag (key, value, &image->lazy_refcounts);
  if (strcmp (key, "compression-type") == 0) {
    r = parse_choice (key, value, compressions, &choice);
    if (r == 0)
      image->compression_type = choice;
    return r;
  }
  if (strcmp (key, "encrypt") == 0) {
    r = parse_choice (key, value, encryptions, &choice);
    p->options.encrypt = r == 0;
    return r;
  }
  if (strcmp (key, "iter-time") == 0)
    return set_iter_time (p, key, value);
  if (strcmp (key, "backing-file") == 0) {
    p->backing_file = value;
    return 0;
  }
  if (strcmp (key, "data-file-raw") == 0)
    return parse_flag (key, value, &image->data_file_raw);
  return 1;
}

int
createparams_set (struct createparams *p, const char *key, const char *value)
{
  const int r = set_one (p, key, value);

  if (r == 1)
    return 0;
  if (p->first == NULL && strcmp (key, "create") != 0)
    p->first = key;
  return r == 0 ? 1 : -1;
}

/* --- what goes together --- */

static int
refuse (const char *text)
{
  nbdkit_error ("%s", text);
  return -1;
}

static int
check_others (const struct createparams *p, const struct disk_options *disk,
              const char *snapshot)
{
  if (snapshot)
    return refuse ("snapshot= does not go with create=: a new image has none");
  if (disk->untrusted)
    return refuse ("untrusted=true does not go with create=");
  if (disk->backing == BACKING_PATH)
    return refuse ("backing=PATH does not go with create=: "
                   "a new image is given one with backing-file=PATH");
  if (disk->backing == BACKING_DENY && p->backing_file)
    return refuse ("backing=deny does not go with backing-file=");
  if (p->backing_file && disk->backing_format == NULL)
    return refuse ("backing-file= needs backing-format=qcow2 or backing-format=raw");
  if (p->backing_file == NULL && disk->backing_format)
    return refuse ("backing-format= does not go with create= without backing-file=");
  if (p->options.size_of_backing && p->backing_file == NULL)
    return refuse ("create=auto takes the size of the backing file, and needs "
                   "backing-file=");
  if (p->options.encrypt && disk->secret.len == 0)
    return refuse ("encrypt=luks needs a passphrase=, which is not empty");
  return 0;
}

/* What the header is to call the data file: as the user does if that is next to the
 * image, so that both can be moved; else its whole path, which means the same from
 * everywhere. */
static const char *
data_file_name (const struct createparams *p, const char *path)
{
  /* The current directory, with a slash, if the name is relative. */
  const size_t n = strlen (p->options.data_path) - strlen (p->data_file);
  const char *slash = strrchr (path, '/');

  if (slash && n == (size_t) (slash + 1 - path) &&
      strncmp (path, p->options.data_path, n) == 0)
    return p->data_file;
  return p->options.data_path;
}

int
createparams_complete (struct createparams *p, const char *path,
                       const struct disk_options *disk, const char *snapshot)
{
  struct create_options *const o = &p->options;

  if (!p->wanted) {
    if (p->first == NULL)
      return 0;
    nbdkit_error ("%s= is for new images, and needs create=SIZE", p->first);
    return -1;
  }
  if (check_others (p, disk, snapshot) == -1)
    return -1;
  o->path = path;
  o->image.backing_file = p->backing_file;
  o->image.backing_format = disk->backing_format;
  if (p->data_file) {
    o->image.data_file = data_file_name (p, path);
    if (strcmp (o->data_path, path) == 0)
      return refuse ("data-file= is the image itself");
  }
  o->file.lock = disk->lock;
  o->file.drop_cache = disk->drop_cache;
  o->file.hooks = disk->hooks;
  return 0;
}

/* --- making it --- */

/* A user who wants it to stop is as good as an error: nothing is left behind. */
static int
show_progress (void *opaque, uint64_t done, uint64_t total)
{
  if (progress_step (opaque, done, total, done))
    return 0;
  nbdkit_error ("stopped while the image was made");
  errno = EINTR;
  return -1;
}

int
createparams_run (struct createparams *p, const struct disk_options *disk)
{
  struct progress progress;
  int r;

  if (!p->wanted)
    return 0;
  progress_begin (&progress, "create");
  p->options.secret = disk->secret;
  p->options.progress = show_progress;
  p->options.opaque = &progress;
  r = create_image (&p->options);
  p->options.secret = (struct chain_secret) { NULL, 0 };
  progress_end (&progress);
  return r;
}
