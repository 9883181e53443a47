/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A new file has its name only when it is complete.  What is no name of a file is refused,
 * and so is one that something else has, or gets meanwhile.  If memory runs out, the file
 * is made or not, and nothing else is left behind.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "storage/newfile.h"
#include "lib/allocations.h"
#include "lib/shortage.h"
#include "lib/stubs.h"

static const struct storage_options options = { .hooks = &without_sync };
static char here[PATH_MAX / 2];

static const char *
place (const char *name)
{
  static char path[PATH_MAX];

  snprintf (path, sizeof path, "%s/%s", here, name);
  return path;
}

/* How many files there are. */
static unsigned
count (void)
{
  DIR *dir = opendir (here);
  unsigned n = 0;

  CHECK (dir != NULL);
  while (readdir (dir))
    n++;
  closedir (dir);
  return n - 2;
}

/* Makes a file of three bytes; MEANWHILE: something else gets its name. */
static int
make (const char *path, const char *meanwhile)
{
  struct newfile *n;
  int r, fd;

  if (newfile_begin (path, &options, &n) == -1)
    return -1;
  CHECK (access (path, F_OK) == -1);
  r = storage_write (newfile_file (n), "new", 3, 0);
  if (meanwhile) {
    fd = open (meanwhile, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK (fd >= 0 && close (fd) == 0);
  }
  if (r == 0)
    r = newfile_publish (n);
  newfile_end (n);
  return r;
}

static void
test_names (void)
{
  static const char *const names[] = { "none/", ".", "..", "none/.", "", "none/none" };

  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    quiet_errors = true;
    clear_last_error ();
    errno = 0;
    CHECK (make (place (names[i]), NULL) == -1);
    CHECK (errno == (strcmp (names[i], "none/none") == 0 ? ENOENT : EINVAL));
    CHECK (strstr (last_error (), "cannot create"));
    quiet_errors = false;
  }
  CHECK (count () == 0);
  CHECK (make (place ("new"), NULL) == 0 && count () == 1);
  CHECK (unlink (place ("new")) == 0);
}

static void
test_taken (void)
{
  quiet_errors = true;
  errno = 0;
  CHECK (make (place ("new"), place ("new")) == -1 && errno == EEXIST);
  CHECK (newfile_check (place ("new")) == -1 && errno == EEXIST);
  quiet_errors = false;
  CHECK (count () == 1 && unlink (place ("new")) == 0);
  CHECK (newfile_check (place ("new")) == 0);
}

static void
test_no_memory (void)
{
  unsigned failed = 0;
  bool met = true;
  int r, err;

  quiet_errors = true;
  for (uint64_t n = 0; met; n++) {
    clear_last_error ();
    shortage_begin ((struct shortage) { n, 1 });
    errno = 0;
    r = make (place ("new"), NULL);
    err = errno;
    met = shortage_end () > 0;
    failed += r == -1;
    if (r == -1)
      CHECK (met && err == ENOMEM && strstr (last_error (), strerror (ENOMEM)));
    else
      CHECK (unlink (place ("new")) == 0);
    CHECK (count () == 0);
  }
  quiet_errors = false;
  CHECK (failed > 2);
}

int
main (void)
{
  char dir[] = "newfile.XXXXXX";

  CHECK (mkdtemp (dir) && chdir (dir) == 0 && getcwd (here, sizeof here));
  test_names ();
  test_taken ();
  test_no_memory ();
  CHECK (chdir ("..") == 0 && rmdir (dir) == 0);
  return 0;
}
