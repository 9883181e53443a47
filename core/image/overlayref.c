/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Has the disk of this image gone on in another one, which lies over it?
 *
 * Specification: "Header extensions".
 *
 * After an external snapshot, a server that starts with the name of the old image would
 * show the disk of that instant, and what it writes there would damage the new image.
 * So the old image names the new one, in a header extension of our own, which other
 * programs keep and ignore.  That is only a hint where to look.  What counts is found
 * there: an image that names this one as its backing file, and has data of its own, or
 * has in turn such an image over it (a snapshot may be taken of one that is still empty).
 * If it names one that does not exist, that may be this one by another name.
 *
 * So a name of which nothing is true any more does no harm: that image was deleted,
 * renamed, emptied by a commit, or got another backing file; or a crash came before
 * anything was written to it.  Nor does the name in a copy, which is another file.
 *
 * The name is relative to the directory of the old image if the new one is in it, so that
 * both can move together, and absolute otherwise; without symbolic links, but for those
 * to devices.  It is a path, never a URI, and is opened as the names of backing files
 * are: without waiting, and only regular files and block devices.
 *
 * Locks: none.  Whoever uses the new image has locked the old one as a reader.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "format/format.h"
#include "image/filename.h"
#include "image/headerwrite.h"
#include "image/overlayref.h"

/* Of a header that is not honest, a chain might have no end. */
#define MOST_IMAGES 4096
/* Bytes of their L1 tables, which are read.  One with more counts as used. */
#define MOST_TABLES (256u << 20)

/* Without symbolic links, if it is there.  NULL: reported. */
static char *
real_path (const char *path)
{
  char *real = realpath (path, NULL);

  return real ? real : memory_text (path);
}

/* The same.  But what a link to a device leads to may be another one after the next start
 * of the host. */
static char *
lasting_path (const char *path)
{
  char *real = real_path (path);

  if (real == NULL || path[0] != '/' || strncmp (real, "/dev/", 5) != 0)
    return real;
  free (real);
  return memory_text (path);
}

/* How many bytes of the path are the directory, with the slash? */
static size_t
directory_length (const char *path)
{
  const char *slash = strrchr (path, '/');

  return slash ? slash - path + 1 : 0;
}

/* --- writing the name --- */

/* NULL: the header of the image at path BELOW cannot have the name of this one. */
static const char *
name_for (const struct image *image, const char *below, const char *over)
{
  const size_t dir = directory_length (below);

  if (over[0] != '/')
    return NULL;
  if (dir == directory_length (over) && strncmp (below, over, dir) == 0)
    over += dir;
  return strlen (over) > min64 (QCOW2_MAX_OVERLAY_NAME, image->header.cluster_size) ||
    header_find_control (over, strlen (over)) ? NULL : over;
}

int
overlayref_set (const struct image *image, const char *over, bool ahead)
{
  CLEANUP_FREE char *below = real_path (storage_path (image->file));
  CLEANUP_FREE char *real = over ? lasting_path (over) : NULL;
  const char *const name = real && below ? name_for (image, below, real) : NULL;
  struct headerwrite *w;
  bool begun = false;
  int r = 0;

  if (below == NULL || (over && real == NULL))
    return -1;
  if (storage_is_remote (image->file) || (over && name == NULL))
    return 0;
  w = headerwrite_new (image->file, &image->header);
  if (w == NULL)
    return -1;
  if (name)
    headerwrite_put_extension (w, QCOW2_EXT_OVERLAY, name, strlen (name));
  else
    headerwrite_drop_extension (w, QCOW2_EXT_OVERLAY);
  if (headerwrite_fits (w))
    r = (ahead ? headerwrite_ahead : headerwrite_commit) (w, &begun);
  else
    report_debug ("%s: the header has no space to name the image on top of it", below);
  headerwrite_free (w);
  if (begun && r == -1)
    health_fail (image->health, "the header may or may not name the image on top of it");
  return r;
}

/* --- looking there --- */

/* The image over this one that it names.  NULL: there is none, or errno says that nobody
 * knows. */
static struct image *
open_over (const struct image *image, const struct storage_hooks *hooks)
{
  const struct storage_options options = { .hooks = hooks };
  const char *const name = image->header.overlay;
  CLEANUP_FREE char *below = name ? real_path (storage_path (image->file)) : NULL;
  CLEANUP_FREE char *path = NULL;
  struct image *over = NULL;

  errno = 0;
  if (name == NULL)
    return NULL;
  if (below)
    path = text_new ("%.*s%s", name[0] == '/' ? 0 : (int) directory_length (below), below,
                     name);
  over = path ? image_open_file (path, &options) : NULL;
  if (over && image_read_header (over) == 0 && over->header.backing_file &&
      (filename_means (path, over->header.backing_file, NULL, hooks, image->file) ||
       errno == ENOENT))
    return over;
  KEEP_ERRNO_FOR_BLOCK;
  image_close (over);
  return NULL;
}

int
overlayref_check (const struct image *image, const struct storage_hooks *hooks)
{
  const char *const path = storage_path (image->file);
  struct image *top = NULL, *over;
  const bool before = report_silence (true);
  uint64_t tables = 0;
  bool used = false;
  int r = 0;

  for (unsigned n = 0; n < MOST_IMAGES && (over = open_over (top ? top : image, hooks)); n++) {
    tables += over->header.l1_entries * sizeof (struct be64);
    /* (If it cannot be read, too.) */
    used = used || tables > MOST_TABLES || image_is_empty (over) != 1;
    image_close (top);
    top = over;
  }
  if (!used)
    used = errno == ENOMEM || errno == EMFILE || errno == ENFILE || errno == EIO;
  report_silence (before);
  if (used)
    r = report_refusal (EPERM, "%s: is not written: the disk has gone on in %s, which lies "
                        "over it: use that, or if what it contains is not needed, delete or "
                        "rename it", path, top ? storage_path (top->file)
                        : image->header.overlay);
  KEEP_ERRNO_FOR_BLOCK;
  image_close (top);
  return r;
}
