/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A new file has its name only when it is complete.  What is no name of a file is
 * refused, and so is one that something else has, or gets meanwhile.  If memory runs out,
 * the file is made or not, and nothing else is left behind.  One that may replace another
 * has its owner and mode, and replaces nothing else.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/newfile.h"
#include "lib/allocations.h"
#include "lib/images.h"
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
  CHECK (files_in (here) == 0);
  CHECK (make (place ("new"), NULL) == 0 && files_in (here) == 1);
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
  CHECK (files_in (here) == 1 && unlink (place ("new")) == 0);
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
    CHECK (files_in (here) == 0);
  }
  quiet_errors = false;
  CHECK (failed > 2);
}

/* Writes a file anew. */
static void
put (const char *name, const char *text)
{
  const int fd = open (name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);

  CHECK (fd >= 0 && write (fd, text, strlen (text)) == (ssize_t) strlen (text) &&
         close (fd) == 0);
}

static void
check_text (int fd, const char *text)
{
  char buf[16] = "";

  CHECK (fd >= 0 && pread (fd, buf, sizeof buf - 1, 0) >= 0 && strcmp (buf, text) == 0);
}

/* Replaces the file, while MEANWHILE is done to it. */
static int
replace (const char *name, void (*meanwhile) (void))
{
  struct newfile *n;
  struct storage *s;
  int r;

  CHECK (newfile_begin_over (place (name), &options, &n) == 0);
  CHECK (storage_write (newfile_file (n), "new", 3, 0) == 0);
  CHECK (storage_open (place (name), &(struct storage_options) {
        .in_dir = newfile_place (n) }, &s) == 0);
  CHECK (storage_same (s, newfile_file (n)) && storage_size (s) == 3);
  storage_close (s);
  if (meanwhile)
    meanwhile ();
  r = newfile_publish (n);
  newfile_withdraw (n);
  newfile_end (n);
  return r;
}

/* With its owner and mode, at the end of a link; whoever has the old one open finds
 * nothing, unless it has another name. */
static void
test_replaced (void)
{
  struct stat st;

  for (unsigned names = 1; names <= 2; names++) {
    put ("file", "old");
    CHECK (chmod ("file", 0604) == 0 && symlink ("file", "link") == 0);
    CHECK (names == 1 || link ("file", "other") == 0);
    const int before = open ("file", O_RDONLY | O_CLOEXEC);
    CHECK (replace ("link", NULL) == 0);
    const int after = open ("file", O_RDONLY | O_CLOEXEC);

    check_text (before, names == 1 ? "" : "old");
    check_text (after, "new");
    CHECK (fstat (after, &st) == 0 && (st.st_mode & 07777) == 0604);
    CHECK (lstat ("link", &st) == 0 && S_ISLNK (st.st_mode));
    CHECK (files_in (here) == names + 1);
    CHECK (close (before) == 0 && close (after) == 0);
    CHECK (unlink ("file") == 0 && unlink ("link") == 0);
  }
  CHECK (unlink ("other") == 0);
}

static void
move_away (void)
{
  CHECK (rename ("file", "moved") == 0);
}

static void
move_and_put (void)
{
  move_away ();
  put ("file", "other");
}

static void
put_other (void)
{
  put ("file", "other");
}

/* What appears, goes or changes meanwhile stays as it is. */
static void
test_changed_meanwhile (void)
{
  static const struct { bool exists; void (*meanwhile) (void); int err; } cases[] = {
    { true, move_away, ESTALE }, { true, move_and_put, ESTALE },
    { false, put_other, EEXIST },
  };

  quiet_errors = true;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (cases[i].exists)
      put ("file", "old");
    errno = 0;
    CHECK (replace ("file", cases[i].meanwhile) == -1 && errno == cases[i].err);
    CHECK (strstr (last_error (), "another program has"));
    for (unsigned j = 0; j < 2; j++) {
      const char *name = j ? "moved" : "file";
      const int fd = open (name, O_RDONLY | O_CLOEXEC);

      if (fd >= 0) {
        check_text (fd, j ? "old" : "other");
        CHECK (close (fd) == 0 && unlink (name) == 0);
      }
    }
    CHECK (files_in (here) == 0);
  }
  quiet_errors = false;
}

int
main (void)
{
  char dir[] = "newfile.XXXXXX";

  CHECK (mkdtemp (dir) && chdir (dir) == 0 && getcwd (here, sizeof here));
  test_names ();
  test_taken ();
  test_no_memory ();
  test_replaced ();
  test_changed_meanwhile ();
  CHECK (chdir ("..") == 0 && rmdir (dir) == 0);
  return 0;
}
