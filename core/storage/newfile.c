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
 * A file that is to be replaced is opened and locked from the beginning, and in the end
 * it must still be what the name means.  The new one gets its owner and mode, and another
 * name, under which it takes the place of the old one.  Who has opened the old one before
 * would get its locks now; so it becomes empty, unless it has other names.
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
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/hostfile.h"
#include "storage/newfile.h"

/* Names to try before giving up. */
#define TRIES 16
/* As many symbolic links as the kernel follows. */
#define MOST_LINKS 40
/* umask removes the permissions that the user does not want. */
#define MODE 0644

struct newfile {
  char *path;                   /* for messages */
  char *target;                 /* the same, but no symbolic link */
  const char *name;             /* the last part of target */
  int dir;
  struct storage *file;
  int fd;                       /* of the file; hostfile closes it */
  struct storage *old;          /* what it replaces, or NULL */
  int old_fd;                   /* the same; hostfile closes it */
  bool may_replace;
  char temporary[40];           /* its current name; "" if it has none */
  bool published;
  bool unsafe;                  /* STORAGE_CACHE_UNSAFE */
};

static int
exists (const char *path)
{
  return report_refusal (EEXIST, "%s: cannot create: the file exists already", path);
}

static int
exists_now (const struct newfile *n)
{
  if (!n->may_replace)
    return exists (n->path);
  return report_refusal (n->old ? ESTALE : EEXIST, "%s: another program has made, moved or "
                         "removed the file meanwhile", n->path);
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
  const char *slash = strrchr (n->target, '/');
  char *directory;

  n->name = slash ? slash + 1 : n->target;
  if (slash == NULL || n->name[0] == '\0' || strcmp (n->name, ".") == 0 ||
      strcmp (n->name, "..") == 0)
    return report_refusal (EINVAL, "%s: cannot create: not a file name", n->path);
  directory = strndup (n->target, slash - n->target + 1);
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
choose_temporary (struct newfile *n)
{
  uint64_t number;

  if (getrandom (&number, sizeof number, 0) != sizeof number)
    return -1;
  snprintf (n->temporary, sizeof n->temporary, ".qcow2-new-%016" PRIx64, number);
  return 0;
}

static int
open_temporary (struct newfile *n)
{
  int fd;

  for (int i = 0; i < TRIES; i++) {
    if (choose_temporary (n) == -1)
      return -1;
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

/* --- what is replaced --- */

/* What the symbolic link n->target leads to; 0: it is none.  -1 with errno set. */
static int
follow_link (struct newfile *n)
{
  const char *slash = strrchr (n->target, '/');
  char to[PATH_MAX], *target;
  const ssize_t len = readlink (n->target, to, sizeof to - 1);

  if (len == -1)
    return errno == EINVAL || errno == ENOENT ? 0 : -1;
  to[len] = '\0';
  target = to[0] == '/' || slash == NULL ? strdup (to)
    : text_new ("%.*s%s", (int) (slash - n->target + 1), n->target, to);
  if (target == NULL)
    return -1;
  free (n->target);
  n->target = target;
  return 1;
}

static int
follow_links (struct newfile *n)
{
  int r = 1;

  for (unsigned i = 0; r == 1 && i <= MOST_LINKS; i++)
    r = follow_link (n);
  if (r == 0)
    return 0;
  if (r == 1)
    errno = ELOOP;
  report_error ("%s: cannot create: %m", n->path);
  return -1;
}

static int
open_old (struct newfile *n, const struct storage_options *options)
{
  const struct storage_options adopted = { .hooks = options->hooks };

  n->old_fd = openat (n->dir, n->name,
                      O_RDWR | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
  if (n->old_fd == -1) {
    if (errno == ENOENT)
      return 0;
    report_error ("%s: cannot replace: %m", n->path);
    return -1;
  }
  if (hostfile_adopt (n->path, n->old_fd, &adopted, &n->old) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    close (n->old_fd);
    return -1;
  }
  if (!storage_is_regular (n->old))
    return report_refusal (EINVAL, "%s: cannot replace: not a regular file", n->path);
  return options->lock ? storage_lock (n->old, STORAGE_WRITER) : 0;
}

/* --- */

static int
begin_file (const char *path, const struct storage_options *options, bool may_replace,
            struct newfile **result)
{
  struct newfile *n = memory_new (1, sizeof *n);

  if (n == NULL)
    return -1;
  *n = (struct newfile) {
    .path = memory_text (path), .target = memory_text (path), .dir = -1,
    .unsafe = options->cache == STORAGE_CACHE_UNSAFE, .may_replace = may_replace,
  };
  if (n->path == NULL || n->target == NULL ||
      (may_replace && follow_links (n) == -1) || open_directory (n) == -1 ||
      (may_replace && open_old (n, options) == -1))
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

int
newfile_begin (const char *path, const struct storage_options *options,
               struct newfile **result)
{
  return begin_file (path, options, false, result);
}

int
newfile_begin_over (const char *path, const struct storage_options *options,
                    struct newfile **result)
{
  return begin_file (path, options, true, result);
}

struct storage *
newfile_file (struct newfile *n)
{
  return n->file;
}

struct storage *
newfile_old (struct newfile *n)
{
  return n->old;
}

struct dirfile
newfile_place (const struct newfile *n)
{
  return (struct dirfile) { .name = n->name, .dir = n->fd, .opened = true };
}

/* --- with its name --- */

static int
link_unnamed (const struct newfile *n, const char *name)
{
  char buf[40];

  return linkat (AT_FDCWD, fd_name (n->fd, buf), n->dir, name, AT_SYMLINK_FOLLOW);
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

static int
give_name (struct newfile *n)
{
  return n->temporary[0] ? link_temporary (n) : link_unnamed (n, n->name);
}

/* Is the old file still there? */
static bool
is_there (const struct newfile *n, const struct stat *old)
{
  struct stat there;

  return fstatat (n->dir, n->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
    there.st_dev == old->st_dev && there.st_ino == old->st_ino;
}

/* Only root can give files away. */
static int
take_owner (const struct newfile *n, const struct stat *old)
{
  if (fchown (n->fd, old->st_uid, old->st_gid) == -1 && errno == EPERM)
    errno = fchown (n->fd, -1, old->st_gid) == -1 ? errno : 0;
  return fchmod (n->fd, old->st_mode & 07777);
}

static int
replace (struct newfile *n)
{
  struct stat old;

  if (fstat (n->old_fd, &old) == -1 || take_owner (n, &old) == -1)
    return -1;
  for (unsigned i = 0; n->temporary[0] == '\0' && i < TRIES; i++) {
    if (choose_temporary (n) == -1)
      return -1;
    if (link_unnamed (n, n->temporary) == -1) {
      n->temporary[0] = '\0';
      if (errno != EEXIST)
        return -1;
    }
  }
  if (!is_there (n, &old)) {
    errno = EEXIST;
    return -1;
  }
  if (renameat (n->dir, n->temporary, n->dir, n->name) == -1)
    return -1;
  n->temporary[0] = '\0';
  return 0;
}

/* It was replaced.  -1: reported. */
static int
empty_old (const struct newfile *n)
{
  struct stat st;

  return fstat (n->old_fd, &st) == 0 && st.st_nlink > 0 ? 0 : storage_truncate (n->old, 0);
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
    r = n->old ? replace (n) : give_name (n);
  if (r == -1)
    return errno == EEXIST ? exists_now (n) : failed (n, "cannot link into place");
  n->published = true;
  if (n->temporary[0])
    unlinkat (n->dir, n->temporary, 0);
  n->temporary[0] = '\0';
  if (sync_directory (n) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    newfile_withdraw (n);
    return -1;
  }
  return n->old ? empty_old (n) : 0;
}

void
newfile_withdraw (struct newfile *n)
{
  struct stat mine, there;

  if (n->published && n->old == NULL && fstat (n->fd, &mine) == 0 &&
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
  storage_close (n->old);
  if (n->dir >= 0)
    close (n->dir);
  free (n->target);
  free (n->path);
  free (n);
}
