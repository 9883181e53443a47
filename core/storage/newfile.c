/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a new file appear, completely or not at all?
 *
 * It is written without a name (O_TMPFILE), in the filesystem of its directory, so that
 * it disappears if the process ends for any reason.  When it is complete and durable, it
 * is linked to its name.  The kernel does this atomically, and only if the name does not
 * exist.  Then the directory is made durable.  No program ever sees half of the file, and
 * no existing file is changed.
 *
 * If the filesystem does not support files without names (NFS, and some in user space),
 * or /proc is missing, the file has a random name in the same directory until it is
 * complete.  A process that is killed leaves this file behind.
 *
 * All names are looked up in the directory that was opened at first, even if that has
 * been moved since.
 *
 * Hooks see STORAGE_OP_LINK and STORAGE_OP_SYNC_DIR; an operation that a hook has done
 * itself (> 0) is not done here.
 *
 * Locks: none; a newfile belongs to one thread.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "storage/hostfile.h"
#include "storage/newfile.h"

/* Names to try before giving up. */
#define TRIES 16
/* umask removes the permissions that the user does not want. */
#define MODE 0644

struct newfile {
  char *path;
  const char *name;             /* the last part of path */
  int dir;
  struct storage *file;
  int fd;                       /* of the file; hostfile closes it */
  char temporary[40];           /* its current name; "" if it has none */
  bool published;
  bool unsafe;                  /* STORAGE_CACHE_UNSAFE */
};

static int
exists (const char *path)
{
  report_error ("%s: cannot create: the file exists already", path);
  errno = EEXIST;
  return -1;
}

static int
failed (const struct newfile *n, const char *what)
{
  report_error ("%s: cannot create: %s: %m", n->path, what);
  return -1;
}

int
newfile_check (const char *path)
{
  struct stat st;

  if (lstat (path, &st) == 0)
    return exists (path);
  if (errno == ENOENT)
    return 0;
  report_error ("%s: cannot create: %m", path);
  return -1;
}

/* --- without a name --- */

static int
open_directory (struct newfile *n)
{
  const char *slash = strrchr (n->path, '/');
  char *directory;

  n->name = slash ? slash + 1 : n->path;
  if (slash == NULL || n->name[0] == '\0' || strcmp (n->name, ".") == 0 ||
      strcmp (n->name, "..") == 0) {
    report_error ("%s: cannot create: not a file name", n->path);
    errno = EINVAL;
    return -1;
  }
  directory = strndup (n->path, slash - n->path + 1);
  if (directory == NULL)
    return failed (n, "strndup");
  n->dir = open (directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  free (directory);
  return n->dir == -1 ? failed (n, "cannot open its directory") : 0;
}

/* The name under which every process can find its own unnamed file. */
static const char *
fd_name (int fd, char buf[40])
{
  snprintf (buf, 40, "/proc/self/fd/%d", fd);
  return buf;
}

/* Opens an unnamed file that can be named later; -1 if that is not possible. */
static int
open_unnamed (const struct newfile *n)
{
  const int fd = openat (n->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, MODE);
  char buf[40];

  if (fd >= 0 && access (fd_name (fd, buf), F_OK) == -1) {
    close (fd);
    return -1;
  }
  return fd;
}

static int
open_temporary (struct newfile *n)
{
  uint64_t number;
  int fd;

  for (int i = 0; i < TRIES; i++) {
    if (getrandom (&number, sizeof number, 0) != sizeof number)
      return -1;
    snprintf (n->temporary, sizeof n->temporary, ".qcow2-new-%016" PRIx64, number);
    fd = openat (n->dir, n->temporary,
                 O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (fd >= 0)
      return fd;
    n->temporary[0] = '\0';
    if (errno != EEXIST)
      return -1;
  }
  return -1;
}

int
newfile_begin (const char *path, const struct storage_options *options,
               struct newfile **result)
{
  struct newfile *n = calloc (1, sizeof *n);

  if (n == NULL || (n->path = strdup (path)) == NULL) {
    report_error ("%s: cannot create: %m", path);
    free (n);
    return -1;
  }
  n->dir = -1;
  n->unsafe = options->cache == STORAGE_CACHE_UNSAFE;
  if (open_directory (n) == -1)
    goto fail;
  n->fd = open_unnamed (n);
  if (n->fd == -1)
    n->fd = open_temporary (n);
  if (n->fd == -1) {
    failed (n, "cannot make a file in its directory");
    goto fail;
  }
  if (hostfile_adopt (path, n->fd, options, &n->file) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    close (n->fd);
    goto fail;
  }
  *result = n;
  return 0;

 fail:
  newfile_end (n);
  return -1;
}

struct storage *
newfile_file (struct newfile *n)
{
  return n->file;
}

/* --- with its name --- */

static int
link_unnamed (const struct newfile *n)
{
  char buf[40];

  return linkat (AT_FDCWD, fd_name (n->fd, buf), n->dir, n->name, AT_SYMLINK_FOLLOW);
}

static int
link_temporary (struct newfile *n)
{
  if (renameat2 (n->dir, n->temporary, n->dir, n->name, RENAME_NOREPLACE) == 0) {
    n->temporary[0] = '\0';
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS)
    return -1;
  /* Filesystems that cannot rename without replacing usually have hard links. */
  return linkat (n->dir, n->temporary, n->dir, n->name, 0);
}

/* The file has its name, and is durable; makes the name durable, too. */
static int
sync_directory (const struct newfile *n)
{
  int r = n->unsafe ? 1 : storage_hook (n->file, STORAGE_OP_SYNC_DIR);

  if (r == 0)
    do
      r = fsync (n->dir);
    while (r == -1 && errno == EINTR);
  /* Some filesystems need no sync here, and say so with EINVAL. */
  if (r == -1 && errno != EINVAL)
    return failed (n, "cannot make its name durable: fsync of its directory");
  return 0;
}

int
newfile_publish (struct newfile *n)
{
  int r;

  if (storage_sync (n->file) == -1)
    return -1;
  r = storage_hook (n->file, STORAGE_OP_LINK);
  if (r == 0)
    r = n->temporary[0] ? link_temporary (n) : link_unnamed (n);
  if (r == -1)
    return errno == EEXIST ? exists (n->path) : failed (n, "cannot link into place");
  n->published = true;
  if (n->temporary[0])
    unlinkat (n->dir, n->temporary, 0);
  n->temporary[0] = '\0';
  if (sync_directory (n) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    newfile_withdraw (n);
    return -1;
  }
  return 0;
}

void
newfile_withdraw (struct newfile *n)
{
  struct stat mine, there;

  if (n->published && fstat (n->fd, &mine) == 0 &&
      fstatat (n->dir, n->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
      mine.st_dev == there.st_dev && mine.st_ino == there.st_ino)
    unlinkat (n->dir, n->name, 0);
}

void
newfile_end (struct newfile *n)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (n == NULL)
    return;
  if (n->temporary[0])
    unlinkat (n->dir, n->temporary, 0);
  storage_close (n->file);
  if (n->dir >= 0)
    close (n->dir);
  free (n->path);
  free (n);
}
