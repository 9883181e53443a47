/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Has the disk of this image gone on in another one, which lies over it, or to which it
 * has moved?
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
 * When a disk has moved to another image (mirror.c, or a commit of the image on top), the
 * old one names that in the same way, and what counts is that the new one names the old
 * one as its origin, in another extension.  In this order, each step durable:
 *
 *   the new image is complete
 *   it names its origin, and none on top      both can be written, and show the same
 *   the old one names it                      from then on only the new one can
 *   clients that write go on there
 *
 * The old one names nothing any more when the new one names its origin, which so means
 * nothing yet, and may even come ahead of all that.  A disk that moves back makes its old
 * image the new one in this order.
 *
 * Behind both names there is the number of the move, chosen at random.  An origin that
 * does not exist is this one, by another name, if both have the same number.  If not, the
 * name of the new one was used again, for an image that has nothing to do with this one.
 *
 * So a name of which nothing is true any more does no harm: that image was deleted,
 * renamed, emptied by a commit, got another backing file, or another disk has moved to
 * it; or a crash came before anything was written to it.  Nor does the name in a copy,
 * which is another file.
 *
 * A name is relative to the directory of its image if the other one is in it, so that
 * both can move together, and absolute otherwise; without symbolic links, but for those
 * to devices.  It is a path, never a URI, and is opened as the names of backing files
 * are: without waiting, and only regular files and block devices.  An image on an NBD
 * server neither gets names, nor is one looked for that it has.
 *
 * Locks: none.  Whoever uses an image has locked those below it as a reader.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
/* Of a name's NUL, and the number. */
#define MOVE_BYTES (1 + sizeof (struct be64))

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

/* --- writing names --- */

/* NULL: the header of the image at path OWN cannot have the name of this one, and MORE
 * bytes. */
static const char *
name_for (const struct image *image, const char *own, const char *other, size_t more)
{
  const size_t dir = directory_length (own);

  if (other[0] != '/')
    return NULL;
  if (dir == directory_length (other) && strncmp (own, other, dir) == 0)
    other += dir;
  return strlen (other) > min64 (QCOW2_MAX_OVERLAY_NAME - more,
                                 image->header.cluster_size) ||
    header_find_control (other, strlen (other)) ? NULL : other;
}

/* *NAME: what the header of the image calls the one at path OTHER, with MORE bytes behind
 * it; NULL: it cannot name it. */
static int
find_name (const struct image *image, const char *other, size_t more, char **name)
{
  CLEANUP_FREE char *own = real_path (storage_path (image->file));
  CLEANUP_FREE char *real = lasting_path (other);
  const char *short_name;

  if (own == NULL || real == NULL)
    return -1;
  short_name = storage_is_remote (image->file) ? NULL : name_for (image, own, real, more);
  *name = short_name ? memory_text (short_name) : NULL;
  return short_name && *name == NULL ? -1 : 0;
}

/* NAME: NULL: none.  MOVE: 0: it is a name alone. */
static void
put_name (struct headerwrite *w, uint32_t type, const char *name, uint64_t move)
{
  char data[QCOW2_MAX_OVERLAY_NAME + MOVE_BYTES];
  const struct be64 number = put64 (move);
  size_t n;

  if (name == NULL) {
    headerwrite_drop_extension (w, type);
    return;
  }
  n = min64 (strlen (name), QCOW2_MAX_OVERLAY_NAME);
  memcpy (data, name, n);
  data[n] = '\0';
  memcpy (data + n + 1, &number, sizeof number);
  headerwrite_put_extension (w, type, data, move ? n + MOVE_BYTES : n);
}

/* Frees W. */
static int
write_header (const struct image *image, struct headerwrite *w, bool ahead)
{
  bool begun;
  const int r = (ahead ? headerwrite_ahead : headerwrite_commit) (w, &begun);

  headerwrite_free (w);
  if (begun && r == -1)
    health_fail (image->health, "the header may or may not say where the disk has gone on");
  return r;
}

/* The same, if there is space: 1; or else 0. */
static int
write_if_fits (const struct image *image, struct headerwrite *w, bool ahead)
{
  if (headerwrite_fits (w))
    return write_header (image, w, ahead) == 0 ? 1 : -1;
  report_debug ("%s: the header has no space for the name of another image",
                storage_path (image->file));
  headerwrite_free (w);
  return 0;
}

static int
set_name (const struct image *image, const char *over, uint64_t move, bool ahead)
{
  CLEANUP_FREE char *name = NULL;
  struct headerwrite *w;

  if (over && find_name (image, over, move ? MOVE_BYTES : 0, &name) == -1)
    return -1;
  if (storage_is_remote (image->file) || (over && name == NULL))
    return 0;
  w = headerwrite_new (image->file, &image->header);
  if (w == NULL)
    return -1;
  put_name (w, QCOW2_EXT_OVERLAY, name, move);
  return write_if_fits (image, w, ahead);
}

int
overlayref_set (const struct image *image, const char *over, bool ahead)
{
  return set_name (image, over, 0, ahead);
}

/* --- a disk that moves --- */

/* (Without a number, the old image is not known by another name.) */
static uint64_t
choose_number (void)
{
  uint64_t number;

  return getrandom (&number, sizeof number, 0) == sizeof number ? number : 0;
}

bool
overlayref_names_one (const struct image *image)
{
  const bool before = report_silence (true);
  struct headerwrite *const w = headerwrite_new (image->file, &image->header);
  const bool r = w == NULL || headerwrite_has_extension (w, QCOW2_EXT_OVERLAY);

  headerwrite_free (w);
  report_silence (before);
  return r;
}

void
overlayref_announce (const struct image *to, const char *from)
{
  const bool before = report_silence (true);
  CLEANUP_FREE char *name = NULL;
  struct headerwrite *w = NULL;

  if (find_name (to, from, MOVE_BYTES, &name) == 0 && name)
    w = headerwrite_new (to->file, &to->header);
  if (w) {
    put_name (w, QCOW2_EXT_ORIGIN, name, choose_number ());
    write_if_fits (to, w, true);
  }
  report_silence (before);
}

/* NULL: reported. */
static struct headerwrite *
plan_arrival (const struct image *to, const char *name, uint64_t move)
{
  struct headerwrite *const w = headerwrite_new (to->file, &to->header);

  if (w) {
    headerwrite_drop_extension (w, QCOW2_EXT_OVERLAY);
    put_name (w, QCOW2_EXT_ORIGIN, name, move);
  }
  return w;
}

int
overlayref_arrive (struct image *to, const struct image *from)
{
  CLEANUP_FREE char *name = NULL;
  uint64_t move = to->header.origin_move;
  struct headerwrite *w;

  if (find_name (to, storage_path (from->file), MOVE_BYTES, &name) == -1)
    return -1;
  if (storage_is_remote (to->file) &&
      to->header.overlay == NULL && to->header.origin == NULL)
    return 0;
  if (name && overlayref_set (from, NULL, false) != 1) {
    free (name);
    name = NULL;
  }
  /* (It may have been announced.) */
  if (move == 0 || name == NULL || to->header.origin == NULL ||
      strcmp (name, to->header.origin) != 0)
    move = choose_number ();
  w = plan_arrival (to, name, move);
  if (w && name && !headerwrite_fits (w)) {
    headerwrite_free (w);
    free (name);
    name = NULL;
    w = plan_arrival (to, NULL, 0);
  }
  if (w == NULL || write_header (to, w, false) == -1)
    return -1;
  free (to->header.overlay);
  free (to->header.origin);
  to->header.overlay = NULL;
  to->header.origin = name;
  to->header.origin_move = move;
  name = NULL;
  return to->header.origin != NULL;
}

void
overlayref_stay (const struct image *to)
{
  struct headerwrite *const w =
    storage_is_remote (to->file) ? NULL : headerwrite_new (to->file, &to->header);

  if (w == NULL)
    return;
  put_name (w, QCOW2_EXT_OVERLAY, to->header.overlay, to->header.overlay_move);
  put_name (w, QCOW2_EXT_ORIGIN, to->header.origin, to->header.origin_move);
  write_if_fits (to, w, false);
}

void
overlayref_moved (const struct image *from, const struct image *to, bool named)
{
  const char *const path = storage_path (to->file);
  const bool says = named && set_name (from, path, to->header.origin_move, false) == 1;

  report_event (EVENT_MOVED, path, "the disk has moved here from %s%s",
                storage_path (from->file), says ? "" : ", which does not say so");
}

/* --- looking there --- */

/* The path of what the image, whose path is this without links, calls NAME. */
static char *
path_of (const char *path, const char *name)
{
  return text_new ("%.*s%s", name[0] == '/' ? 0 : (int) directory_length (path), path, name);
}

/* It could not be examined.  (Second line: a server of NFS, FUSE or CephFS is away.) */
static bool
nobody_knows (int err)
{
  switch (err) {
  case ENOMEM: case EMFILE: case ENFILE: case EIO:
  case ESTALE: case ETIMEDOUT: case EHOSTDOWN: case ENOTCONN: case ESHUTDOWN:
    return true;
  default:
    return false;
  }
}

/* How an image goes on with the disk of another one. */
enum way { NOT_AT_ALL, ON_TOP, INSTEAD };

/* NOT_AT_ALL: errno may say that nobody knows. */
static enum way
way_of (const struct image *over, const char *path, const struct image *image,
        const struct storage_hooks *hooks)
{
  const struct header *const h = &over->header;
  const struct storage *const below = image->file;
  CLEANUP_FREE char *origin = NULL;

  errno = 0;
  if (h->backing_file && (filename_means (path, h->backing_file, NULL, hooks, below) ||
                          errno == ENOENT))
    return ON_TOP;
  if (h->origin == NULL || nobody_knows (errno) ||
      (origin = path_of (path, h->origin)) == NULL)
    return NOT_AT_ALL;
  if (filename_is_file (origin, hooks, below))
    return INSTEAD;
  return errno == ENOENT && h->origin_move != 0 &&
    h->origin_move == image->header.overlay_move ? INSTEAD : NOT_AT_ALL;
}

/* The image that this one names, in which its disk goes on, in that WAY.  NULL: there is
 * none, or errno says that nobody knows. */
static struct image *
open_over (const struct image *image, const struct storage_hooks *hooks, enum way *way)
{
  const struct storage_options options = { .hooks = hooks };
  const char *const name = image->header.overlay;
  CLEANUP_FREE char *below = NULL, *path = NULL;
  struct image *over = NULL;

  errno = 0;
  /* (Where a server's files are is not known.) */
  if (name == NULL || storage_is_remote (image->file))
    return NULL;
  below = real_path (storage_path (image->file));
  if (below)
    path = path_of (below, name);
  over = path ? image_open_file (path, &options) : NULL;
  if (over && image_read_header (over) == 0 &&
      (*way = way_of (over, path, image, hooks)) != NOT_AT_ALL)
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
  bool used = false, moved = false;
  enum way way;
  int r = 0, err;

  for (unsigned n = 0;
       n < MOST_IMAGES && (over = open_over (top ? top : image, hooks, &way)); n++) {
    tables += over->header.l1_entries * sizeof (struct be64);
    moved = moved || way == INSTEAD;
    /* (If it cannot be read, too.) */
    used = used || moved || tables > MOST_TABLES || image_is_empty (over) != 1;
    image_close (top);
    top = over;
  }
  err = errno;
  report_silence (before);
  if (used)
    r = report_refusal (EPERM, "%s: is not written: the disk has %s %s%s: use that, or if "
                        "what it contains is not needed, delete or rename it", path,
                        moved ? "moved to" : "gone on in", storage_path (top->file),
                        moved ? "" : ", which lies over it");
  else if (nobody_knows (err))
    r = report_refusal (EPERM, "%s: is not written: the disk may have gone on in %s, which "
                        "cannot be examined: %s", path, (top ? top : image)->header.overlay,
                        strerror (err));
  KEEP_ERRNO_FOR_BLOCK;
  image_close (top);
  return r;
}
