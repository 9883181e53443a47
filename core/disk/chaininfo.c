/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an image say about itself, and about what lies below it?
 *
 * A JSON object that describes the image, or an array of objects that describe all files
 * of the backing chain, from the top down, as qemu-img info does (imageinfo.c).  The
 * names of files are relative if the user's name of the image is.
 *
 * The files are opened here, read-only and locked for a reader, without a disk: an image
 * can be described although it cannot be served, because a passphrase or a backing file
 * is missing.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/filename.h"
#include "image/imageinfo.h"
#include "mapping/chain.h"
#include "disk/chaininfo.h"

/* The files of the chain that were described so far.  They stay open, because a loop is
 * recognized by them. */
struct walk {
  struct chain_options chain;
  struct image **images;
  size_t n;
  char *name;                   /* how the next file is called */
  json_t *info;                 /* an array */
};

static int
check_loop (const struct walk *w, const struct image *image)
{
  for (size_t i = 0; i < w->n; i++)
    if (storage_same (w->images[i]->file, image->file))
      return report_refusal (ELOOP, "%s: the backing chain contains a loop: the file is "
                             "already used as %s", storage_path (image->file),
                             storage_path (w->images[i]->file));
  return 0;
}

/* Describes the image, which then belongs to the walk. */
static int
add (struct walk *w, struct image *image, bool raw)
{
  json_t *info;

  if (MEMORY_APPEND (w->images, w->n) == -1) {
    image_close (image);
    return -1;
  }
  w->images[w->n++] = image;
  info = imageinfo_describe (image, raw, w->name);
  if (info == NULL)
    return -1;
  w->info = jsontext_append (w->info, info);
  if (w->info)
    return 0;
  report_error ("%s: info: no memory", storage_path (image->file));
  return -1;
}

/* How the file at PATH, the backing file of IMAGE, is called. */
static int
name_below (struct walk *w, const struct image *image, const char *path)
{
  const char *told = image->header.backing_file;
  char *name = w->chain.backing == BACKING_PATH || filename_has_protocol (told)
    ? strdup (path) : filename_shown (w->name, told);

  if (name == NULL) {
    report_error ("%s: info: %m", path);
    return -1;
  }
  free (w->name);
  w->name = name;
  return 0;
}

/* Opens and describes the file at PATH. */
static int
add_below (struct walk *w, const char *path, bool raw)
{
  struct image *image;

  if (w->n >= CHAIN_MAX_LAYERS)
    return report_refusal (ELOOP, "%s: the backing chain has more than %d files", path,
                           CHAIN_MAX_LAYERS);
  chain_reserve_files (8 * (w->n + 1));
  image = image_open_file (path, &w->chain.image.file);
  if (image == NULL)
    return -1;
  if ((!raw && image_read_cut_header (image) == -1) || check_loop (w, image) == -1) {
    image_close (image);
    return -1;
  }
  return add (w, image, raw);
}

static int
describe_below (struct walk *w)
{
  const char *format = "qcow2";

  w->chain.image.file.try_writable = false;
  w->chain.image.file.in_dir.name = NULL;       /* that one is for the top image */
  while (strcmp (format, "qcow2") == 0) {
    const struct image *image = w->images[w->n - 1];
    CLEANUP_FREE char *path = NULL;

    if (chain_below (storage_path (image->file), &image->header, &w->chain, &path,
                     &format) == -1)
      return -1;
    if (path == NULL)
      return 0;
    if (chain_check_there (storage_path (image->file), path, &w->chain) == -1)
      return -1;
    if (name_below (w, image, path) == -1)
      return -1;
    chain_go_below_top (&w->chain);
    if (add_below (w, path, strcmp (format, "raw") == 0) == -1)
      return -1;
  }
  return 0;
}

static void
end (struct walk *w)
{
  KEEP_ERRNO_FOR_BLOCK;

  for (size_t i = 0; i < w->n; i++)
    image_close (w->images[i]);
  free (w->images);
  free (w->name);
  json_decref (w->info);
}

/* Adds to W->info what the report says. */
static int
describe (struct walk *w, const struct disk_options *o, bool chain)
{
  struct image *image = disk_open_header (o);

  if (image == NULL || add (w, image, false) == -1)
    return -1;
  return chain ? describe_below (w) : 0;
}

json_t *
chaininfo_describe (const struct disk_options *o, const char *name, bool chain)
{
  struct walk w = {
    .chain = disk_chain_options (o), .name = strdup (name), .info = json_array (),
  };
  json_t *document = NULL;

  if (w.name == NULL || w.info == NULL) {
    report_error ("%s: info: no memory", o->path);
    errno = ENOMEM;
  }
  else if (describe (&w, o, chain) == 0)
    document = json_incref (chain ? w.info : json_array_get (w.info, 0));
  end (&w);
  return document;
}
