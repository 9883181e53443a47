/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are files of the host opened, and of which type are they?
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

#include "util/report.h"
#include "storage/hostfile.h"
#include "storage/hostfile-impl.h"
#include "storage/hostlock.h"

/* The name of a type of file that cannot be served. */
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
  return report_refusal (EINVAL, "%s: cannot open: is %s, not a regular file or block "
                         "device", path, kind_name (st->st_mode));
}

static int
open_named (const char *path, const struct storage_options *opts, int flags)
{
  return opts->in_dir.name ? dirfile_open (&opts->in_dir, flags) : open (path, flags);
}

static void
report_not_opened (const char *path)
{
  if (errno == EXDEV)
    report_error ("%s: cannot open: a symbolic link leads out of the directory, or is "
                  "absolute", path);
  else
    report_error ("%s: cannot open: %m", path);
}

/* Opens PATH, or the file in OPTS, without ever blocking.  *WRITABLE: on entry, whether
 * to try to open for writing; on return, whether that succeeded.  CLAIM: the kernel shall
 * refuse a block device that it uses. */
static int
open_fd (const char *path, const struct storage_options *opts, bool claim, bool *writable)
{
  /* O_NONBLOCK in case the file has become a FIFO since it was looked at. */
  const int flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (claim ? O_EXCL : 0);
  int fd = -1;

  if (*writable) {
    fd = open_named (path, opts, O_RDWR | flags);
    if (fd == -1 && errno != EACCES && errno != EPERM && errno != EROFS &&
        errno != ETXTBSY) {
      report_not_opened (path);
      return -1;
    }
    *writable = fd >= 0;
  }
  if (fd == -1)
    fd = open_named (path, opts, O_RDONLY | flags);
  if (fd == -1)
    report_not_opened (path);
  return fd;
}

/* Undoes the O_NONBLOCK of open_fd. */
static int
let_block (const char *path, int fd)
{
  const int flags = fcntl (fd, F_GETFL);

  if (flags != -1 && fcntl (fd, F_SETFL, flags & ~O_NONBLOCK) == 0)
    return 0;
  report_error ("%s: fcntl: %m", path);
  return -1;
}

/* Asks the host what FD is, and sets the fields of F that depend on it. */
static int
examine (struct hostfile *f)
{
  struct stat st;

  if (fstat (f->fd, &st) == -1) {
    report_error ("%s: fstat: %m", f->s.path);
    return -1;
  }
  if (check_kind (f->s.path, &st) == -1 || let_block (f->s.path, f->fd) == -1)
    return -1;

  f->s.regular = S_ISREG (st.st_mode);
  if (f->s.regular) {
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->s.size = st.st_size;
  }
  else {
    off_t end = lseek (f->fd, 0, SEEK_END);

    if (end == -1) {
      report_error ("%s: cannot get the size of the device: %m", f->s.path);
      return -1;
    }
    f->dev = st.st_rdev;
    f->s.size = end;
  }
  return 0;
}

/* --- the kind of storage --- */

static void
close_file (struct storage *s)
{
  struct hostfile *f = hostfile_of (s);

  if (f->fd >= 0) {
    if (f->differs || s->lost)
      posix_fadvise (f->fd, 0, 0, POSIX_FADV_DONTNEED);
    close (f->fd);              /* also releases the locks */
  }
  dropcache_free (f->dropcache);
  folios_free (f->folios);
  pthread_mutex_destroy (&f->role_lock);
  free (f);
}

static bool
same_file (const struct storage *sa, const struct storage *sb)
{
  const struct hostfile *a = hostfile_of (sa), *b = hostfile_of (sb);

  return sa->regular == sb->regular && a->dev == b->dev && a->ino == b->ino;
}

static int
lock_file (struct storage *s, enum storage_lock role)
{
  struct hostfile *f = hostfile_of (s);
  LOCK_FOR_BLOCK (&f->role_lock);

  if (hostlock_change (f->fd, s->path, f->role, role) == -1)
    return -1;
  f->role = role;
  return 0;
}

/* Before the first write. */
static void
prepare_writes (struct hostfile *f)
{
  if (f->s.regular && f->dropcache == NULL && f->folios == NULL)
    f->folios = folios_new (f->fd, f->s.size);
}

/* Is it still the same file, by this descriptor? */
static int
check_same (const struct hostfile *f, int fd)
{
  struct stat st;

  if (fstat (fd, &st) == 0 && S_ISREG (st.st_mode) == f->s.regular &&
      (f->s.regular ? st.st_dev == f->dev && st.st_ino == f->ino : st.st_rdev == f->dev))
    return let_block (f->s.path, fd);
  return report_refusal (ESTALE, "%s: cannot open for writing: it is another file now",
                         f->s.path);
}

/* The new descriptor has the same locks, before it takes the place of the old one.  That
 * one gives up its own: as long as a thread reads with it, it stays open, and would be
 * another program to a writer's lock. */
static int
become_writable (struct storage *s)
{
  static const struct storage_options none;
  struct hostfile *f = hostfile_of (s);
  bool writable = true;
  const int fd = open_fd (s->path, &none, false, &writable);
  int r = -1;

  if (fd == -1)
    return -1;
  LOCK_FOR_BLOCK (&f->role_lock);

  if (!writable)
    r = 0;
  else if (check_same (f, fd) == 0 &&
           hostlock_change (fd, s->path, STORAGE_UNLOCKED, f->role) == 0) {
    hostlock_change (f->fd, s->path, f->role, STORAGE_UNLOCKED);
    r = dup3 (fd, f->fd, O_CLOEXEC) == -1 ? -1 : 0;
    if (r == -1) {
      report_error ("%s: cannot open for writing: %m", s->path);
      hostlock_change (f->fd, s->path, STORAGE_UNLOCKED, f->role);
    }
    else
      prepare_writes (f);
    s->writable = r == 0;
  }
  KEEP_ERRNO_FOR_BLOCK;
  close (fd);
  return r;
}

static const struct storage_ops hostfile_ops = {
  .close = close_file,
  .read = hostfile_read,
  .write = hostfile_write,
  .sync = hostfile_sync,
  .sync_name = "fdatasync",
  .forget_cache = hostfile_forget_cache,
  .punch = hostfile_punch,
  .zero = hostfile_zero,
  .allocate = hostfile_allocate,
  .set_size = hostfile_set_size,
  .size_now = hostfile_size_now,
  .parts = hostfile_parts,
  .prefetch = hostfile_prefetch,
  .write_back = hostfile_write_back,
  .same = same_file,
  .allocated = hostfile_allocated,
  .lock = lock_file,
  .become_writable = become_writable,
};

/* --- opening --- */

/* Creates a storage that is not open yet.  NULL on error (reported). */
static struct hostfile *
new_hostfile (const char *path, const struct storage_options *opts)
{
  struct hostfile *f = calloc (1, sizeof *f);

  if (f == NULL || storage_init (&f->s, &hostfile_ops, path, opts) == -1) {
    report_error ("%s: cannot open: %m", path);
    free (f);
    return NULL;
  }
  f->fd = -1;
  pthread_mutex_init (&f->role_lock, NULL);
  return f;
}

static int
start_dropping (struct hostfile *f, const struct storage_options *opts)
{
  if (opts->cache != STORAGE_CACHE_NONE)
    return 0;
  f->dropcache = dropcache_new (f->fd);
  if (f->dropcache == NULL) {
    report_error ("%s: cannot open: %m", f->s.path);
    return -1;
  }
  return 0;
}

int
hostfile_open (const char *path, const struct storage_options *opts,
              struct storage **result)
{
  struct hostfile *f;
  struct stat st;
  bool writable;

  /* Look before opening: opening has side effects on some devices.  examine() looks again
   * at the file that was really opened. */
  if ((opts->in_dir.name ? dirfile_stat (&opts->in_dir, &st) : stat (path, &st)) == -1) {
    report_not_opened (path);
    return -1;
  }
  if (check_kind (path, &st) == -1)
    return -1;

  f = new_hostfile (path, opts);
  if (f == NULL)
    return -1;
  writable = opts->try_writable;

  f->fd = open_fd (path, opts, opts->claim && S_ISBLK (st.st_mode), &writable);
  f->s.writable = writable;
  if (f->fd == -1 || examine (f) == -1)
    goto fail;
  /* Until the lock was taken, another program may have changed the file: look again. */
  if (opts->lock &&
      (storage_lock (&f->s, opts->data_file ? STORAGE_DATA_READER
                     : STORAGE_READER) == -1 ||
       examine (f) == -1))
    goto fail;
  if (start_dropping (f, opts) == -1)
    goto fail;
  if (writable)
    prepare_writes (f);
  *result = &f->s;
  return 0;

 fail:
  storage_close (&f->s);
  return -1;
}

int
hostfile_adopt (const char *path, int fd, const struct storage_options *opts,
               struct storage **result)
{
  struct hostfile *f = new_hostfile (path, opts);

  if (f == NULL)
    return -1;
  f->s.writable = true;
  f->fd = fd;
  if (examine (f) == -1 || start_dropping (f, opts) == -1) {
    f->fd = -1;                 /* it still belongs to the caller */
    storage_close (&f->s);
    return -1;
  }
  prepare_writes (f);
  *result = &f->s;
  return 0;
}
