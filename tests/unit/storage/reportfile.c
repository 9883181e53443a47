/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A report never replaces any other file, neither one that gets its name while the report
 * is being written, nor one that this process has open, whatever it contains; symbolic
 * links are followed and stay; nothing is left behind, also by a process that is killed.
 * Where files without names cannot be named, a report is written nevertheless.  If memory
 * runs out, a report is written or not, and the message says why not.  If a report is to
 * be durable, its file is synced before it gets its name, and its directory afterwards.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/reportfile.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/realcalls.h"
#include "lib/shortage.h"
#include "lib/stubs.h"

#define KEY "check-report"
#define BEGIN "{\n  \"report\": "
#define OURS BEGIN "true }\n"
#define OLDER BEGIN "false }\n"

static const struct report_kind kind = { KEY, { BEGIN } };

/* If not 0, files without names cannot be named. */
static int link_errno;

int
linkat (int from, const char *name, int to, const char *other, int flags)
{
  errno = link_errno;
  return link_errno ? -1 : REAL (linkat, linkat) (from, name, to, other, flags);
}

/* How many files and directories were synced; with which a directory fails. */
static unsigned files_synced, directories_synced;
static int directory_errno;

static bool holds (const char *path, const char *text);

int
fsync (int fd)
{
  struct stat st;

  CHECK (fstat (fd, &st) == 0);
  if (!S_ISDIR (st.st_mode)) {
    CHECK (!holds ("place", OURS));
    files_synced++;
    return REAL (fsync, fsync) (fd);
  }
  CHECK (holds ("place", OURS));
  directories_synced++;
  errno = directory_errno;
  return errno ? -1 : REAL (fsync, fsync) (fd);
}

/* What another program does while the report is written. */
static void (*meanwhile) (void);

static int
print (FILE *fp, const void *opaque)
{
  fputs (opaque, fp);
  if (meanwhile)
    meanwhile ();
  return 0;
}

static int
put (const char *path)
{
  return reportfile_write (&kind, path, false, print, OURS);
}

static void
make (const char *path, const char *text)
{
  FILE *fp = fopen (path, "w");

  CHECK (fp && fputs (text, fp) >= 0 && fclose (fp) == 0);
}

static bool
holds (const char *path, const char *text)
{
  char buf[200];
  FILE *fp = fopen (path, "r");
  size_t n;

  if (fp == NULL)
    return false;
  n = fread (buf, 1, sizeof buf - 1, fp);
  fclose (fp);
  buf[n] = '\0';
  return strcmp (buf, text) == 0;
}

static bool
is_link (const char *path)
{
  struct stat st;

  return lstat (path, &st) == 0 && S_ISLNK (st.st_mode);
}

static void
refused (const char *path, int err)
{
  clear_last_error ();
  CHECK (put (path) == -1);
  CHECK (errno == err);
  CHECK (strstr (last_error (), KEY "=") && strstr (last_error (), path));
}

static void
test_files (void)
{
  CHECK (put ("new") == 0 && holds ("new", OURS));
  make ("new", BEGIN "\"an older and much longer one than that\" }\n");
  CHECK (put ("new") == 0 && holds ("new", OURS));
  make ("empty", "");
  CHECK (put ("empty") == 0 && holds ("empty", OURS));
  make ("stranger", "precious");
  CHECK (reportfile_check (&kind, "stranger", false) == -1);
  refused ("stranger", EEXIST);
  CHECK (holds ("stranger", "precious"));
  CHECK (mkdir ("directory", 0777) == 0);
  CHECK (reportfile_check (&kind, "directory", false) == -1);
  refused ("directory", EEXIST);
  refused ("directory/none/new", ENOENT);
  CHECK (files_in (".") == 4);
}

static void
test_links (void)
{
  /* directory/link -> ../other -> directory/target, which is not there yet. */
  CHECK (symlink ("../other", "directory/link") == 0);
  CHECK (symlink ("directory/target", "other") == 0);
  CHECK (put ("directory/link") == 0);
  CHECK (holds ("directory/target", OURS) && !is_link ("directory/target"));
  CHECK (is_link ("other") && is_link ("directory/link"));
  make ("directory/target", "precious");
  refused ("directory/link", EEXIST);
  CHECK (holds ("directory/target", "precious"));
  CHECK (unlink ("directory/target") == 0 && symlink ("link", "directory/target") == 0);
  refused ("directory/link", ELOOP);
  CHECK (files_in (".") == 5);
}

/* --- others who come while the report is written --- */

static void
put_stranger_over (void)
{
  make ("theirs", "precious");
  CHECK (rename ("theirs", "place") == 0);
}

static void
put_directory (void)
{
  CHECK (unlink ("place") == 0 && mkdir ("place", 0777) == 0);
}

static void
put_link (void)
{
  CHECK (unlink ("place") == 0 && symlink ("stranger", "place") == 0);
}

static void
put_report (void)
{
  make ("theirs", OLDER);
  CHECK (rename ("theirs", "place") == 0);
}

static void
take_away (void)
{
  CHECK (unlink ("place") == 0);
}

static void
test_races (void)
{
  const unsigned before = files_in (".");

  meanwhile = put_stranger_over;
  refused ("place", EEXIST);
  CHECK (holds ("place", "precious"));
  make ("place", OLDER);
  refused ("place", EEXIST);
  CHECK (holds ("place", "precious"));

  make ("place", OLDER);
  meanwhile = put_directory;
  refused ("place", EEXIST);
  CHECK (rmdir ("place") == 0);

  make ("place", OLDER);
  meanwhile = put_link;
  refused ("place", EEXIST);
  CHECK (is_link ("place") && holds ("stranger", "precious"));
  CHECK (unlink ("place") == 0);

  /* Another server's report, or none any more: the last one stays. */
  meanwhile = put_report;
  CHECK (put ("place") == 0 && holds ("place", OURS));
  meanwhile = take_away;
  CHECK (put ("place") == 0 && holds ("place", OURS));
  meanwhile = NULL;
  CHECK (files_in (".") == before + 1);
}

static void
die (void)
{
  raise (SIGKILL);
}

static void
test_killed (void)
{
  const unsigned before = files_in (".");
  pid_t child;

  make ("place", OLDER);
  meanwhile = die;
  child = fork ();
  if (child == 0)
    _exit (put ("place"));
  meanwhile = NULL;
  CHECK (child > 0 && waitpid (child, NULL, 0) == child);
  CHECK (holds ("place", OLDER) && files_in (".") == before);
}

static void
test_no_link (void)
{
  const unsigned before = files_in (".");

  make ("place", OLDER);
  link_errno = EEXIST;
  refused ("place", EAGAIN);
  CHECK (holds ("place", OLDER) && files_in (".") == before);
  link_errno = EPERM;
  CHECK (put ("place") == 0 && holds ("place", OURS) && files_in (".") == before);
  link_errno = 0;
}

/* Does the filesystem have files without names? */
static bool
has_unnamed (void)
{
  const int fd = open (".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);

  return fd >= 0 && close (fd) == 0;
}

static int
put_durably (void)
{
  make ("place", OLDER);
  return reportfile_write (&kind, "place", true, print, OURS);
}

static void
test_durable (void)
{
  CHECK (put ("place") == 0 && files_synced == 0 && directories_synced == 0);
  CHECK (put_durably () == 0 && files_synced == 1 && directories_synced == 1);
  directory_errno = EINVAL;
  CHECK (put_durably () == 0);
  directory_errno = EIO;
  CHECK (put_durably () == -1 && errno == EIO);
  CHECK (files_synced == 3 && directories_synced == 3);
}

/* The bytes are those of a report, but the file is open here: it is of a disk. */
static int disk = -1;

static void
put_disk_over (void)
{
  make ("theirs", OLDER);
  disk = open ("theirs", O_RDWR | O_CLOEXEC);
  CHECK (disk >= 0 && rename ("theirs", "place") == 0);
}

static void
test_own_files (void)
{
  const unsigned before = files_in (".");
  char name[40];
  int fd;

  disk = open ("place", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  CHECK (disk >= 0);
  refused ("place", EEXIST);
  CHECK (reportfile_check (&kind, "place", false) == -1);
  CHECK (holds ("place", ""));
  CHECK (pwrite (disk, OLDER, strlen (OLDER), 0) == (ssize_t) strlen (OLDER));
  CHECK (link ("place", "alias") == 0);
  refused ("alias", EEXIST);
  CHECK (unlink ("alias") == 0);
  CHECK (symlink ("place", "alias") == 0);
  refused ("alias", EEXIST);
  CHECK (unlink ("alias") == 0);
  CHECK (holds ("place", OLDER));

  /* Through a descriptor, be it ours or the user's. */
  CHECK (fcntl (disk, F_SETFL, O_APPEND) == 0);
  snprintf (name, sizeof name, "/dev/fd/%d", disk);
  refused (name, EEXIST);
  fd = open ("place", O_RDWR | O_APPEND);
  CHECK (fd >= 0);
  snprintf (name, sizeof name, "/proc/self/fd/%d", fd);
  refused (name, EEXIST);
  CHECK (holds ("place", OLDER));
  /* The user may have it open. */
  CHECK (close (disk) == 0 && put ("place") == 0 && close (fd) == 0);

  meanwhile = put_disk_over;
  refused ("place", EEXIST);
  meanwhile = NULL;
  CHECK (holds ("place", OLDER) && close (disk) == 0);
  CHECK (unlink ("place") == 0 && files_in (".") == before - 1);
  make ("place", "");
}

/* Documents that begin like JSON, or like other reports, are not ours. */
static void
test_strangers (void)
{
  static const char *const texts[] = {
    "{", "{}", "{ \"report\": 1 }", "{\n  \"report\":"
  };

  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    make ("place", texts[i]);
    refused ("place", EEXIST);
    CHECK (holds ("place", texts[i]));
  }
}

static void
test_long_name (void)
{
  char name[NAME_MAX + 1];

  memset (name, 'x', NAME_MAX);
  name[NAME_MAX] = '\0';
  CHECK (put (name) == 0 && put (name) == 0 && holds (name, OURS));
  CHECK (unlink (name) == 0);
}

/* Two names of one place. */
static void
test_same (void)
{
  char *here = realpath (".", NULL);
  char name[PATH_MAX + 20], other[PATH_MAX + 20];

  CHECK (here != NULL);
  snprintf (name, sizeof name, "%s/none", here);
  snprintf (other, sizeof other, "%s/./directory/../none", here);
  CHECK (reportfile_same (name, other));
  CHECK (symlink ("none", "alias") == 0);
  snprintf (other, sizeof other, "%s/alias", here);
  CHECK (reportfile_same (name, other));
  CHECK (unlink ("alias") == 0);
  CHECK (!reportfile_same (name, other));
  snprintf (other, sizeof other, "%s/directory/none", here);
  CHECK (!reportfile_same (name, other));
  free (here);
}

static void
test_descriptors (void)
{
  char name[40];
  int fd = open ("log", O_RDWR | O_CREAT, 0666);

  CHECK (fd >= 0);
  snprintf (name, sizeof name, "/dev/fd/%d", fd);
  CHECK (write (fd, "before\n", 7) == 7);
  CHECK (put (name) == 0);
  /* Who has it open goes on behind the report. */
  CHECK (write (fd, "after\n", 6) == 6);
  CHECK (holds ("log", "before\n" OURS "after\n"));
  CHECK (lseek (fd, 0, SEEK_SET) == 0);
  refused (name, EEXIST);
  CHECK (fcntl (fd, F_SETFL, O_APPEND) == 0);
  CHECK (put (name) == 0);
  CHECK (holds ("log", "before\n" OURS "after\n" OURS));
  CHECK (reportfile_check (&kind, name, true) == -1);
  close (fd);
  fd = open ("log", O_RDONLY);
  snprintf (name, sizeof name, "/proc/self/fd/%d", fd);
  refused (name, EBADF);
  close (fd);
  refused (name, ENOENT);
}

static void
clean_up (const char *dir)
{
  static const char *const names[] = {
    "new", "empty", "stranger", "directory/link", "directory/target", "other", "place",
    "log",
  };
  size_t i;

  for (i = 0; i < sizeof names / sizeof names[0]; i++)
    CHECK (unlink (names[i]) == 0);
  CHECK (rmdir ("directory") == 0);
  CHECK (chdir ("..") == 0 && rmdir (dir) == 0);
}

/* Each allocation fails in turn. */
static void
test_no_memory (const char *path, const char *shown)
{
  unsigned before, failed = 0;
  bool met = true;
  int r, err;

  for (uint64_t n = 0; met; n++) {
    make (shown, OLDER);
    before = files_in (".");
    clear_last_error ();
    shortage_begin ((struct shortage) { n, 1 });
    errno = 0;
    r = put (path);
    err = errno;
    met = shortage_end () > 0;
    failed += r == -1;
    if (r == -1)
      CHECK (met && err == ENOMEM && strstr (last_error (), strerror (ENOMEM)));
    CHECK (holds (shown, r == 0 ? OURS : OLDER));
    CHECK (files_in (".") == before);
  }
  printf ("%s: %u allocations failed\n", path, failed);
  CHECK (failed > 1);
}

/* What the user has open. */
static void
test_no_memory_for_descriptor (void)
{
  bool met = true;
  char name[40];
  int fd, r, err;

  for (uint64_t n = 0; met; n++) {
    fd = open ("log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0666);
    CHECK (fd >= 0);
    snprintf (name, sizeof name, "/dev/fd/%d", fd);
    clear_last_error ();
    shortage_begin ((struct shortage) { n, 1 });
    errno = 0;
    r = put (name);
    err = errno;
    met = shortage_end () > 0;
    if (r == -1)
      CHECK (met && err == ENOMEM && strstr (last_error (), strerror (ENOMEM)));
    CHECK (holds ("log", r == 0 ? OURS : ""));
    CHECK (close (fd) == 0);
  }
}

int
main (void)
{
  char dir[] = "reportfile.XXXXXX";

  CHECK (mkdtemp (dir) && chdir (dir) == 0);
  test_files ();
  test_links ();
  test_races ();
  if (has_unnamed ()) {
    test_killed ();
    test_no_link ();
  }
  test_durable ();
  test_own_files ();
  test_strangers ();
  test_long_name ();
  test_same ();
  test_descriptors ();
  quiet_errors = true;
  test_no_memory ("place", "place");
  link_errno = EPERM;
  test_no_memory ("place", "place");
  link_errno = 0;
  CHECK (symlink ("directory/further", "alias") == 0);
  CHECK (symlink ("../place", "directory/further") == 0);
  test_no_memory ("alias", "place");
  CHECK (unlink ("alias") == 0 && unlink ("directory/further") == 0);
  test_no_memory_for_descriptor ();
  quiet_errors = false;
  clean_up (dir);
  return 0;
}
