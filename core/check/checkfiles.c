/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files must the report of a check not overwrite?
 *
 * The report must not overwrite any file of the chain: images and external data files.
 * reportfile.c never writes to a file that this process has open.  So all of them are
 * kept open, from before the check until after the report, including files that the
 * check itself does not read (a quick check reads only the top image), and also if the
 * image turns out to be corrupt.
 *
 * Only headers are read, without locks.  Errors in them are not reported here, because
 * the check, or opening the disk, reports them.  The chain ends at the first file whose
 * backing file cannot be determined.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/checkfiles.h"

struct checkfiles {
  struct image **images;        /* including raw files */
  size_t n;
  bool incomplete;              /* there was no memory for the others */
};

/* Something has failed, with errno.  Returns NULL. */
static struct image *
note_failure (struct checkfiles *c)
{
  c->incomplete |= errno == ENOMEM;
  return NULL;
}

/* Opens the file at PATH.  NULL if it cannot be opened or is already in the chain. */
static struct image *
add (struct checkfiles *c, const char *path, const struct chain_options *chain)
{
  const struct storage_options options = { .link = chain->image.file.link };
  struct image **images = realloc (c->images, (c->n + 1) * sizeof *images);
  struct image *image;

  if (images == NULL)
    return note_failure (c);
  c->images = images;
  /* The check opens each of these files once more, and so does the disk. */
  chain_reserve_files (6 * (c->n + 1));
  image = image_open_file (path, &options);
  if (image == NULL)
    return note_failure (c);
  for (size_t i = 0; i < c->n; i++)
    if (storage_same (images[i]->file, image->file)) {
      image_close (image);
      return NULL;
    }
  images[c->n++] = image;
  return image;
}

/* Adds the image at PATH with its data file.  *BELOW (the caller frees it) and *FORMAT
 * are set as by chain_below. */
static void
add_image (struct checkfiles *c, const char *path, const struct chain_options *chain,
           char **below, const char **format)
{
  struct image *image = add (c, path, chain);
  struct image_options options = chain->image;

  *below = NULL;
  if (image == NULL)
    return;
  if (image_read_header_to_check (image) == -1) {
    note_failure (c);
    return;
  }
  options.file = (struct storage_options) { .link = chain->image.file.link };
  if (image_open_data (image, &options) == -1)
    note_failure (c);
  if (chain_below (path, &image->header, chain, below, format) == -1)
    note_failure (c);
  /* The check may need the only connection that a server admits. */
  image_disconnect (image);
}

struct checkfiles *
checkfiles_open (const char *path, const struct chain_options *options)
{
  struct checkfiles *c = calloc (1, sizeof *c);
  struct chain_options chain = *options;
  char *next = strdup (path);
  const char *format = "qcow2";
  struct image *raw;

  if (c == NULL || next == NULL) {
    report_error ("%s: check: out of memory", path);
    free (c);
    free (next);
    return NULL;
  }
  report_silence (true);
  while (next && c->n < CHAIN_MAX_LAYERS) {
    CLEANUP_FREE char *this = next;

    next = NULL;
    if (strcmp (format, "raw") == 0) {
      raw = add (c, this, &chain);
      if (raw)
        image_disconnect (raw);
      break;
    }
    add_image (c, this, &chain, &next, &format);
    chain_go_below_top (&chain);
  }
  free (next);
  report_silence (false);
  if (!c->incomplete)
    return c;
  checkfiles_close (c);
  report_error ("%s: check: out of memory", path);
  errno = ENOMEM;
  return NULL;
}

void
checkfiles_close (struct checkfiles *c)
{
  if (c == NULL)
    return;
  for (size_t i = 0; i < c->n; i++)
    image_close (c->images[i]);
  free (c->images);
  free (c);
}
