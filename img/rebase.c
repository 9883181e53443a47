/* SPDX-License-Identifier: BSD-3-Clause
 *
 * commit and rebase: the backing file of an image gets its data, or is another one.
 *
 * The core does it (commit.c and rebase.c there), and resumes what was stopped.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/publicname.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "change/commit.h"
#include "change/edit.h"
#include "change/rebase.h"
#include "img/change.h"
#include "img/live.h"
#include "img/progress.h"
#include "img/values.h"

static const struct chunks_watch watch = { .step = progress_step };

static int
refuse_rebase (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

/* The image has to name it: it is what the disk shows afterwards. */
static int
refuse_other_backing (const struct imagefile *f)
{
  return f->options.backing == BACKING_PATH || f->options.backing_format
    ? refuse_rebase ("--image-opts: this needs the backing file that the image names "
                     "(rebase -u changes the name)") : 0;
}

/* --- commit --- */

static const struct option
  option_drop = { 'd', "drop", NULL, "do not empty the image" },
  option_base = {
    'b', "base", "BASE", "write into this file of the backing chain what all images over it "
    "contain; implies -d"
  },
  option_rate = { 'r', "rate", "RATE", "read at most so many bytes in a second" };

struct commit_change {
  struct commit_layers layers;
  const char *base;             /* a name, or NULL */
  const struct imagefile *image;
};

/* The layer that NAME means: as an image of the chain calls it, or a path. */
static int
find_base (const struct commit_change *c, const struct layers *layers, unsigned *base)
{
  CLEANUP_FREE char *path = nbduri_is (c->base) ? NULL : imagefile_path (c->base);
  CLEANUP_FREE char *shown = NULL;

  for (*base = 1; *base < layers_count (layers); ++*base) {
    const struct header *over = layers_header (layers, *base - 1);

    if ((over && over->backing_file && strcmp (over->backing_file, c->base) == 0) ||
        (path && edit_name_means (&c->image->options, c->image->options.path, path,
                                  layers_file (layers, *base))))
      return 0;
  }
  shown = publicname (c->base);
  return report_refusal (ENOENT, "-b: '%s' is not in the backing chain of %s",
                         publicname_or (shown), c->image->given);
}

/* What is beyond the end of a layer shows zeros, which it does not contain. */
static int
check_sizes (const struct commit_change *c, const struct layers *layers)
{
  for (unsigned i = 1; i < c->layers.base; i++)
    if (layers_size (layers, i) != layers_size (layers, 0))
      return report_refusal (EINVAL, "-b: the disk in %s has another size than that in "
                             "%s: commit one image after the other",
                             storage_path (layers_file (layers, i)), c->image->given);
  return 0;
}

static int
commit_all (void *opaque, struct disk *disk)
{
  struct commit_change *c = opaque;
  const struct layers *layers = disk_inside (disk).view->layers;
  uint64_t copied;

  if (c->base && (find_base (c, layers, &c->layers.base) == -1 ||
                  check_sizes (c, layers) == -1))
    return -1;
  return commit_disk (disk, &c->layers, &watch, &copied);
}

static int
commit (const struct arguments *a, struct imagefile *f, const struct secrets *secrets)
{
  struct commit_change c = {
    .layers = {
      .base = 1, .keep = is_given (a, &option_drop) || is_given (a, &option_base),
    },
    .base = value_of (a, &option_base), .image = f,
  };
  const char *rate = value_of (a, &option_rate);
  int r;

  (void) secrets;
  if (rate && parse_size ("-r", rate, &c.layers.rate) == -1)
    return -1;
  if (c.base && refuse_other_backing (f) == -1)
    return -1;
  f->options.cache = imagefile_cache (a, &option_cache);
  progress_begin (a, false);
  r = change_image (f, true, commit_all, &c);
  progress_end (r == 0);
  if (r == 0 && !is_given (a, &option_quiet))
    puts ("Image committed.");
  return r;
}

static int
run_commit (const struct arguments *a)
{
  return change_command (a, "backing files", commit);
}

/* Clients go on in the file below; the image stays as it is then, as with -d. */
static int
commit_live (const struct arguments *a, struct live *l)
{
  const char *name = value_of (a, &option_base), *rate = value_of (a, &option_rate);
  const json_t *image = live_image (l), *base;
  uint64_t bytes = 0;           /* 0: any */

  if (image == NULL || (rate && parse_size ("-r", rate, &bytes) == -1))
    return -1;
  base = name ? live_below (l, name) : json_object_get (image, "backing-image");
  if (base == NULL)
    return name ? -1 : refuse_rebase ("the image has no backing file");
  if (live_job (l, a, "block-commit", jsontext_object (
        { "device", jsontext_string (live_device (l)) },
        { "base", json_incref (json_object_get (base, "filename")) },
        { "speed", jsontext_number (bytes) })) == -1)
    return -1;
  if (!is_given (a, &option_quiet)) {
    fputs ("Image committed.\nThe disk is now in ", stdout);
    jsontext_put (json_string_value (json_object_get (base, "filename")), stdout);
    puts (": name that file when the server is started again.");
  }
  return 0;
}

static const struct option *const live_commit_options[] = {
  &option_format, &option_quiet, &option_progress, &option_drop, &option_base,
  &option_rate, NULL
};

static const struct option *const commit_options[] = {
  &option_format, &option_quiet, &option_progress, &option_cache, &option_drop,
  &option_base, &option_rate, IMAGE_OPTIONS, NULL
};

const struct command commit_command = {
  "commit", "IMAGE",
  "Write what an image contains into its backing file, and empty the image.",
  commit_options, 1, 1, .run = run_commit,
  .live = commit_live, .live_options = live_commit_options
};

/* --- rebase --- */

static const struct option
  option_backing = { 'b', "backing", "FILE", "the new backing file; '' for none" },
  option_backing_format = { 'F', "backing-format", "FORMAT", "its format" },
  option_unsafe = {
    'u', "backing-unsafe", NULL, "copy nothing, only change the name in the image"
  },
  option_compress = { 'c', "compress", NULL, "compress what is copied" };

struct rebase_change {
  struct rebase to;
  const struct image_secret *secret;
};

static int
rebase_all (void *opaque, struct disk *disk)
{
  const struct rebase_change *c = opaque;
  uint64_t copied;

  return rebase_disk (disk, c->secret, &c->to, &watch, &copied);
}

static int
read_names (const struct arguments *a, struct rebase *to)
{
  const char *format = value_of (a, &option_backing_format);
  bool raw;

  *to = (struct rebase) {
    .name = value_of (a, &option_backing), .unsafe = is_given (a, &option_unsafe)
  };
  if (to->name == NULL)
    return refuse_rebase ("-b is required (-b '' for no backing file)");
  if (to->name[0] == '\0')
    return format ? refuse_rebase ("-F requires the name of a backing file") : 0;
  if (format == NULL)
    return refuse_rebase ("the format of the backing file is required: -F qcow2 or raw");
  to->format = format;
  return imagefile_parse_format ("-F", format, &raw);
}

static int
rebase (const struct arguments *a, struct imagefile *f, const struct secrets *secrets)
{
  struct rebase_change c;
  int r;

  (void) secrets;
  if (refuse_other_backing (f) == -1 || read_names (a, &c.to) == -1 ||
      (nbduri_is (c.to.name) && imagefile_allow_uri (f, c.to.name) == -1))
    return -1;
  c.secret = &f->options.secret;
  f->options.cache = imagefile_cache (a, &option_cache);
  if (f->options.cache == STORAGE_CACHE_DEFAULT)
    f->options.cache = imagefile_cache (a, &option_src_cache);
  if (is_given (a, &option_compress))
    f->options.compress = COMPRESS_ON;
  progress_begin (a, false);
  r = change_image (f, !c.to.unsafe, rebase_all, &c);
  progress_end (r == 0);
  return r;
}

static int
run_rebase (const struct arguments *a)
{
  return change_command (a, "backing files", rebase);
}

static bool
is_text (const json_t *object, const char *key, const char *text)
{
  const char *there = json_string_value (json_object_get (object, key));

  return there && strcmp (there, text) == 0;
}

/* Only the header changes. */
static int
rename_live (const struct rebase *to, struct live *l)
{
  const json_t *inserted = live_inserted (l);

  if (inserted == NULL)
    return -1;
  if (to->name[0] == '\0')
    return refuse_rebase ("-u -b '' cannot be used with --control: clients would see "
                          "another disk");
  if (!is_text (json_object_get (inserted, "image"), "backing-filename-format", to->format))
    return refuse_rebase ("-F: the format that the image states cannot be changed while "
                          "it is in use");
  return live_do (l, "change-backing-file", jsontext_object (
    { "device", jsontext_string (live_device (l)) },
    { "image-node-name", json_incref (json_object_get (inserted, "node-name")) },
    { "backing-file", jsontext_string (to->name) }));
}

/* What was between the image and the new backing file, which has to be in its chain, is
 * copied into the image. */
static int
rebase_live (const struct arguments *a, struct live *l)
{
  json_t *arguments;
  const json_t *base;
  struct rebase to;

  if (read_names (a, &to) == -1)
    return -1;
  if (to.unsafe)
    return rename_live (&to, l);
  base = to.name[0] ? live_below (l, to.name) : NULL;
  if (to.name[0] && base == NULL)
    return -1;
  if (base && !is_text (base, "format", to.format))
    return refuse_rebase ("-F: that file has another format in the chain");
  arguments = jsontext_object ({ "device", jsontext_string (live_device (l)) });
  if (base)
    arguments = jsontext_add (arguments,
      { "base", json_incref (json_object_get (base, "filename")) },
      { "backing-file", jsontext_string (to.name) });
  return live_job (l, a, "block-stream", arguments);
}

static const struct option *const live_rebase_options[] = {
  &option_format, &option_quiet, &option_progress, &option_backing,
  &option_backing_format, &option_unsafe, NULL
};

static const struct option *const rebase_options[] = {
  &option_format, &option_quiet, &option_progress, &option_cache, &option_src_cache,
  &option_force_share, &option_backing, &option_backing_format, &option_unsafe,
  &option_compress, IMAGE_OPTIONS, NULL
};

const struct command rebase_command = {
  "rebase", "-b FILE -F FORMAT IMAGE",
  "Put an image over another backing file.  What is different there is copied into the "
  "image first.",
  rebase_options, 1, 1, .run = run_rebase,
  .live = rebase_live, .live_options = live_rebase_options
};
