/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in an image's header mean?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions" (external data file
 * name).
 *
 * Names are resolved as QEMU does: a relative name is relative to the directory of the
 * name by which the image was opened, symbolic links in it not followed.
 * The "file:" prefix is understood; other protocols and "json:" are not files
 * and are refused.
 *
 * For a data file with a relative name, QEMU looks in its working directory; other
 * programs look next to the image, as for backing files.  The plugin looks in both
 * places.  If there is a file in each, they must be the same.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "image/filename.h"

/* Does the name begin with a protocol ("nbd:", "http://")? */
static bool
has_protocol (const char *name)
{
  const char *colon = strchr (name, ':');
  const char *slash = strchr (name, '/');

  return colon != NULL && (slash == NULL || colon < slash);
}

/* The path that NAME, of a WHAT of the image at OVERLAY, means; to be freed.
 * NULL on error (reported). */
static char *
resolve_name (const char *overlay, const char *what, const char *name)
{
  const char *slash;
  char *path;
  int r;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  else if (has_protocol (name)) {
    nbdkit_error ("%s: %s name \"%s\" is not a plain path; "
                  "only files are supported", overlay, what, name);
    errno = ENOTSUP;
    return NULL;
  }
  if (name[0] == '\0') {
    nbdkit_error ("%s: %s name is empty", overlay, what);
    errno = EINVAL;
    return NULL;
  }

  slash = strrchr (overlay, '/');
  if (name[0] == '/' || slash == NULL)
    r = asprintf (&path, "%s", name);
  else
    r = asprintf (&path, "%.*s%s", (int) (slash - overlay + 1), overlay, name);
  if (r == -1) {
    nbdkit_error ("asprintf: %m");
    return NULL;
  }
  return path;
}

char *
filename_of_backing (const char *overlay, const char *name)
{
  return resolve_name (overlay, "backing file", name);
}

/* NAME as QEMU understands it: as it stands, from the current directory.  NULL: not
 * a relative name of something that is there. */
static char *
find_in_cwd (const char *name, struct stat *st)
{
  CLEANUP_FREE char *cwd = NULL;
  char *path;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  if (name[0] == '/' || stat (name, st) == -1 ||
      (cwd = getcwd (NULL, 0)) == NULL ||
      asprintf (&path, "%s/%s", cwd, name) == -1)
    return NULL;
  return path;
}

char *
filename_of_data (const char *overlay, const char *name)
{
  char *path = resolve_name (overlay, "data file", name);
  char *other;
  struct stat st, other_st;

  if (path == NULL)
    return NULL;
  other = find_in_cwd (name, &other_st);
  if (other == NULL)
    return path;
  if (stat (path, &st) == -1) {
    free (path);
    return other;
  }
  if (st.st_dev == other_st.st_dev && st.st_ino == other_st.st_ino) {
    free (other);
    return path;
  }
  nbdkit_error ("%s: the external data file \"%s\" could be %s or %s: "
                "use data-file= to say which", overlay, name, path, other);
  errno = EINVAL;
  free (other);
  free (path);
  return NULL;
}
