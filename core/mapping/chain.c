/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files are below the top image, and may they be opened?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions" (backing
 * format).
 *
 * The format of a file is never probed: an image that does not state the format of its
 * backing file could make the plugin read any raw file as an image, and vice versa.
 *
 * A file that is already in the chain, and a chain that is deeper than CHAIN_MAX_LAYERS,
 * are refused.  Every layer stays open and is locked for a reader.  A chain may need more
 * open files than the default limit allows, so the soft limit is raised when it is
 * reached.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/publicname.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "image/filename.h"
#include "mapping/chain.h"

/* Raises the soft limit on open files to the hard limit. */
static bool
raise_file_limit (void)
{
  struct rlimit limit;

  if (getrlimit (RLIMIT_NOFILE, &limit) == -1 ||
      limit.rlim_cur >= limit.rlim_max)
    return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit (RLIMIT_NOFILE, &limit) == 0;
}

/* A chain of thousands of files leaves this many for the rest of the server. */
#define SPARE_FILES 64

void
chain_reserve_files (unsigned n)
{
  struct rlimit limit;

  if (getrlimit (RLIMIT_NOFILE, &limit) == 0 &&
      n + SPARE_FILES > limit.rlim_cur)
    raise_file_limit ();
}

/* --- the chain --- */

/* Finds the file of LAYERS that is the same file as FILE; NULL if there is none. */
static struct storage *
find_same (const struct layers *layers, const struct storage *file)
{
  unsigned i;

  for (i = 0; i < layers_count (layers); i++)
    if (storage_same (layers_file (layers, i), file))
      return layers_file (layers, i);
    else if (storage_same (layers_data_file (layers, i), file))
      return layers_data_file (layers, i);
  return NULL;
}

static int
check_new (struct layers *layers, struct storage *file)
{
  struct storage *same = find_same (layers, file);

  if (same)
    return report_refusal (ELOOP, "%s: the backing chain contains a loop: the file is "
                           "already used as %s", storage_path (file),
                           storage_path (same));
  if (layers_count (layers) >= CHAIN_MAX_LAYERS)
    return report_refusal (ELOOP, "%s: the backing chain has more than %d files",
                           storage_path (file), CHAIN_MAX_LAYERS);
  return 0;
}

static int
check_new_data (const struct layers *layers, const struct image *image)
{
  struct storage *same = image->data ? find_same (layers, image->data) : NULL;

  if (same == NULL)
    return 0;
  image_data_in_use (image, same);
  return -1;
}

static int
add_qcow2 (struct layers *layers, const char *path,
           const struct image_options *options)
{
  struct image *image = image_open (path, options);
  int r = -1;

  if (image == NULL)
    return -1;
  if (check_new (layers, image->file) == 0 &&
      image_open_data (image, options) == 0 &&
      check_new_data (layers, image) == 0 && image_load (image) == 0)
    r = layers_add_image (layers, image);
  image_close (image);          /* the layers also hold a reference */
  return r;
}

static int
add_raw (struct layers *layers, const char *path,
         const struct chain_options *options)
{
  struct storage *file;

  if (storage_open (path, &options->image.file, &file) == -1)
    return -1;
  if (check_new (layers, file) == -1 ||
      layers_add_raw (layers, file, storage_size (file)) == -1) {
    storage_close (file);
    return -1;
  }
  return 0;
}

/* Of the file below, to be freed; NULL: reported.  TOLD: see filename_of_backing. */
static char *
find_path (const char *overlay, const struct header *h,
           const struct chain_options *options, const char **told)
{
  return options->backing == BACKING_PATH ? memory_text (options->backing_path)
    : filename_of_backing (overlay, h->backing_file, &options->image.rules, told);
}

const char *
chain_format (const char *format, const char *path)
{
  const bool file = strcmp (format, "file") == 0;
  struct stat st;

  if ((!file && strcmp (format, "host_device") != 0 && strcmp (format, "host_cdrom") != 0) ||
      nbduri_is (path))
    return format;
  return stat (path, &st) == -1 || (file ? S_ISREG (st.st_mode) : S_ISBLK (st.st_mode))
    ? "raw" : format;
}

int
chain_below (const char *overlay, const struct header *h,
             const struct chain_options *options, char **path,
             const char **format)
{
  const char *told = NULL;      /* the format that the name itself implies */

  *path = NULL;
  if (h == NULL)
    return 0;                   /* raw: the end of the chain */
  if (options->backing == BACKING_IGNORE ||
      (options->backing != BACKING_PATH && h->backing_file == NULL))
    return 0;

  if (options->backing == BACKING_DENY) {
    CLEANUP_FREE char *shown = publicname (h->backing_file);

    return report_refusal (EPERM, "%s: the image has a backing file (\"%s\"), which must "
                           "not be opened", overlay, publicname_or (shown));
  }
  *path = find_path (overlay, h, options, &told);
  if (*path == NULL)
    return -1;

  *format = options->backing_format ? options->backing_format
    : h->backing_format ? h->backing_format : told;
  if (*format == NULL) {
    report_error ("%s: the image does not say which format its backing file "
                  "\"%s\" has, and formats are not guessed: %s", overlay, *path,
                  remedy (options->below_top ? REMEDY_BACKING_FORMAT_BELOW
                          : REMEDY_BACKING_FORMAT));
    errno = EINVAL;
  }
  else {
    *format = chain_format (*format, *path);
    if (strcmp (*format, "qcow2") == 0 || strcmp (*format, "raw") == 0)
      return 0;
    report_error ("%s: backing file \"%s\" has format \"%s\", which is not "
                  "supported (only qcow2 and raw are)",
                  overlay, *path, *format);
    errno = ENOTSUP;
  }
  free (*path);
  *path = NULL;
  return -1;
}

int
chain_check_there (const char *overlay, const char *path,
                   const struct chain_options *options)
{
  return filename_check_there (path, "backing file", overlay,
                               remedy (options->below_top ? REMEDY_BACKING_FILE_BELOW
                                       : REMEDY_BACKING_FILE));
}

void
chain_go_below_top (struct chain_options *options)
{
  /* The parameters apply to the top image and its backing file only. */
  options->backing = BACKING_FOLLOW;
  options->backing_format = NULL;
  options->below_top = true;
  options->image.below_top = true;
}

/* The most files that these layers and the next one keep open: with external data files,
 * and for remote ones up to 4 connections, each with 2 descriptors. */
static unsigned
files_needed (const struct layers *layers)
{
  const unsigned n = layers_count (layers);

  return (n + 1) * (storage_is_remote (layers_file (layers, n - 1)) ? 8 : 2);
}

int
chain_open (struct layers *layers, const struct chain_options *options_)
{
  struct chain_options options = *options_;

  options.image.file.try_writable = false;
  options.image.file.in_dir.name = NULL;        /* that one is for the top image */
  options.image.below_top = true;

  for (;;) {
    CLEANUP_FREE char *path = NULL;
    const unsigned bottom = layers_count (layers) - 1;
    const char *format;
    int r;

    const char *const overlay = storage_path (layers_file (layers, bottom));
    const struct header *const h = layers_header (layers, bottom);

    if (chain_below (overlay, h, &options, &path, &format) == -1)
      return -1;
    if (path == NULL)
      return 0;
    if (chain_check_there (overlay, path, &options) == -1)
      return -1;

    chain_reserve_files (files_needed (layers));
    options.image.secret = secret_below (&options.image.secret, h);
    if (strcmp (format, "qcow2") == 0)
      r = add_qcow2 (layers, path, &options.image);
    else
      r = add_raw (layers, path, &options);
    if (r == -1)
      return -1;
    chain_go_below_top (&options);
  }
}
