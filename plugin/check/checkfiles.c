/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files does a report of a check have to leave alone?
 *
 * All of the chain: the images, and data files.  reportfile.c writes to no file that is
 * open here, so they are held open, from before the check until after the report, also
 * those that the check itself does not look at (a quick one looks at the top image alone)
 * and if the image turns out to be corrupt.
 *
 * Only headers are read, without locks, and what is wrong with them is not told: the
 * check tells it, or who opens the disk does.  A chain that is not clear ends there.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/checkfiles.h"

struct checkfiles {
  struct hostfile **files;
  size_t n;
};

/* Opens that one, too.  NULL: it can't be opened, or is in the chain already. */
static struct hostfile *
add (struct checkfiles *c, const char *path)
{
  static const struct hostfile_options options;
  struct hostfile **files = realloc (c->files, (c->n + 1) * sizeof *files);
  struct hostfile *file;

  if (files == NULL)
    return NULL;
  c->files = files;
  /* What is held here, the check and then the disk open once more. */
  chain_reserve_files (4 * (c->n + 1));
  if (hostfile_open (path, &options, &file) == -1)
    return NULL;
  for (size_t i = 0; i < c->n; i++)
    if (hostfile_same (files[i], file)) {
      hostfile_close (file);
      return NULL;
    }
  files[c->n++] = file;
  return file;
}

/* Adds the image at PATH with its data file.  *BELOW (to be freed) and *FORMAT are as of
 * chain_below. */
static void
add_image (struct checkfiles *c, const char *path, const struct chain_options *chain,
           char **below, const char **format)
{
  struct hostfile *file = add (c, path);
  CLEANUP_FREE char *data = NULL;
  struct header h;

  *below = NULL;
  if (file == NULL || chain_read_header (file, &h) == -1)
    return;
  if (chain_data_file (path, &h, chain, !chain->below_top, &data) == 0 && data)
    add (c, data);
  if (chain_below (path, &h, chain, below, format) == -1)
    *below = NULL;
  else if (*below)              /* it goes with the header */
    *format = strcmp (*format, "raw") == 0 ? "raw" : "qcow2";
  header_free (&h);
}

struct checkfiles *
checkfiles_open (const char *path, const struct chain_options *options)
{
  struct checkfiles *c = calloc (1, sizeof *c);
  struct chain_options chain = *options;
  char *next = strdup (path);
  const char *format = "qcow2";

  if (c == NULL || next == NULL) {
    nbdkit_error ("%s: check: out of memory", path);
    free (c);
    free (next);
    return NULL;
  }
  report_silence (true);
  while (next && c->n < 2 * CHAIN_MAX_LAYERS) {
    CLEANUP_FREE char *this = next;

    next = NULL;
    if (strcmp (format, "raw") == 0) {
      add (c, this);
      break;
    }
    add_image (c, this, &chain, &next, &format);
    chain_go_below_top (&chain);
  }
  free (next);
  report_silence (false);
  return c;
}

void
checkfiles_close (struct checkfiles *c)
{
  if (c == NULL)
    return;
  for (size_t i = 0; i < c->n; i++)
    hostfile_close (c->files[i]);
  free (c->files);
  free (c);
}
