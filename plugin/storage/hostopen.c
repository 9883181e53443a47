/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are files of the host opened, and of which type are they?  The second part of
 * hostfile.
 *
 * Only regular files and block devices are opened, and without waiting: a name from an
 * image may lead to a FIFO.  Facts about the file are checked again under the lock,
 * because until then another program may have changed it.
 *
 * Locks: `role_lock' guards the role, and with it the locks on the file.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "storage/storage-impl.h"
#include "storage/hostlock.h"

/* What a file is that we do not serve. */
static const char *
kind_name (mode_t mode)
{
  switch (mode & S_IFMT) {
  case S_IFDIR: return "a directory";
  case S_IFIFO: return "a FIFO";
  case S_IFCHR: return "a character device";
  case S_IFSOCK: return "a socket";
  case S_IFLNK: return "a symbolic link";
  default: return "of an unknown kind";
  }
}

static int
check_kind (const char *path, const struct stat *st)
{
  if (S_ISREG (st->st_mode) || S_ISBLK (st->st_mode))
    return 0;
  nbdkit_error ("%s: cannot open: is %s, not a regular file or block device",
                path, kind_name (st->st_mode));
  errno = EINVAL;
  return -1;
}

/* Opens PATH, or what OPTS say, without ever waiting for anyone.  *WRITABLE: in, try;
 * out, is. */
static int
open_fd (const char *path, const struct storage_options *opts, bool *writable)
{
  /* O_NONBLOCK in case that the file became a FIFO since we looked. */
  const int flags =
    O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (opts->name ? O_NOFOLLOW : 0);
  const int dir = opts->name ? opts->dir : AT_FDCWD;
  const char *name = opts->name ? opts->name : path;
  int fd = -1;

  if (*writable) {
    fd = openat (dir, name, O_RDWR | flags);
    if (fd == -1 && errno != EACCES && errno != EPERM && errno != EROFS &&
        errno != ETXTBSY) {
      nbdkit_error ("%s: cannot open: %m", path);
      return -1;
    }
    *writable = fd >= 0;
  }
  if (fd == -1)
    fd = openat (dir, name, O_RDONLY | flags);
  if (fd == -1)
    nbdkit_error ("%s: cannot open: %m", path);
  return fd;
}

/* Asks the host what FD is, and fills in what of F depends on it. */
static int
examine (struct storage *f)
{
  struct stat st;
  int flags;

  if (fstat (f->fd, &st) == -1) {
    nbdkit_error ("%s: fstat: %m", f->path);
    return -1;
  }
  if (check_kind (f->path, &st) == -1)
    return -1;

  flags = fcntl (f->fd, F_GETFL);
  if (flags == -1 || fcntl (f->fd, F_SETFL, flags & ~O_NONBLOCK) == -1) {
    nbdkit_error ("%s: fcntl: %m", f->path);
    return -1;
  }

  f->regular = S_ISREG (st.st_mode);
  if (f->regular) {
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->size = st.st_size;
  }
  else {
    off_t end = lseek (f->fd, 0, SEEK_END);

    if (end == -1) {
      nbdkit_error ("%s: cannot get the size of the device: %m", f->path);
      return -1;
    }
    f->dev = st.st_rdev;
    f->size = end;
  }
  return 0;
}

/* A hostfile that is not open yet.  NULL: reported. */
static struct storage *
new_hostfile (const char *path, const struct storage_options *opts)
{
  struct storage *f = calloc (1, sizeof *f);

  if (f == NULL || (f->path = strdup (path)) == NULL) {
    nbdkit_error ("%s: cannot open: %m", path);
    free (f);
    return NULL;
  }
  f->fd = -1;
  f->hooks = opts->hooks;
  pthread_mutex_init (&f->role_lock, NULL);
  return f;
}

static int
start_dropping (struct storage *f, const struct storage_options *opts)
{
  if (!opts->drop_cache)
    return 0;
  f->dropcache = dropcache_new (f->fd);
  if (f->dropcache == NULL) {
    nbdkit_error ("%s: cannot open: %m", f->path);
    return -1;
  }
  return 0;
}

int
storage_open (const char *path, const struct storage_options *opts,
              struct storage **result)
{
  struct storage *f;
  struct stat st;

  /* Look before opening: to open some devices is to do something to them.
   * examine() looks again at what was really opened.
   */
  if ((opts->name
       ? fstatat (opts->dir, opts->name, &st, AT_SYMLINK_NOFOLLOW)
       : stat (path, &st)) == -1) {
    nbdkit_error ("%s: cannot open: %m", path);
    return -1;
  }
  if (check_kind (path, &st) == -1)
    return -1;

  f = new_hostfile (path, opts);
  if (f == NULL)
    return -1;
  f->writable = opts->try_writable;

  f->fd = open_fd (path, opts, &f->writable);
  if (f->fd == -1 || examine (f) == -1)
    goto fail;
  /* Until now somebody else may have changed it: look again. */
  if (opts->lock &&
      (storage_lock (f, opts->data_file ? STORAGE_DATA_READER
                     : STORAGE_READER) == -1 ||
       examine (f) == -1))
    goto fail;
  if (start_dropping (f, opts) == -1)
    goto fail;
  *result = f;
  return 0;

 fail:
  storage_close (f);
  return -1;
}

int
storage_adopt (const char *path, int fd, const struct storage_options *opts,
               struct storage **result)
{
  struct storage *f = new_hostfile (path, opts);

  if (f == NULL)
    return -1;
  f->writable = true;
  f->fd = fd;
  if (examine (f) == -1 || start_dropping (f, opts) == -1) {
    f->fd = -1;                 /* it stays the caller's */
    storage_close (f);
    return -1;
  }
  *result = f;
  return 0;
}

void
storage_close (struct storage *f)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (f == NULL)
    return;
  if (f->fd >= 0)
    close (f->fd);              /* drops the locks, too */
  dropcache_free (f->dropcache);
  pthread_mutex_destroy (&f->role_lock);
  free (f->path);
  free (f);
}

const char *
storage_path (const struct storage *f)
{
  return f->path;
}

bool
storage_is_writable (const struct storage *f)
{
  return f->writable;
}

bool
storage_is_regular (const struct storage *f)
{
  return f->regular;
}

bool
storage_same (const struct storage *a, const struct storage *b)
{
  return a->regular == b->regular && a->dev == b->dev && a->ino == b->ino;
}

uint64_t
storage_size (const struct storage *f)
{
  return f->size;
}

uint64_t
storage_allocated (const struct storage *f)
{
  struct stat st;

  if (!f->regular || fstat (f->fd, &st) == -1)
    return f->size;
  return (uint64_t) st.st_blocks * 512;
}

int
storage_lock (struct storage *f, enum storage_lock role)
{
  LOCK_FOR_BLOCK (&f->role_lock);

  if (hostlock_change (f->fd, f->path, f->role, role) == -1)
    return -1;
  f->role = role;
  return 0;
}
