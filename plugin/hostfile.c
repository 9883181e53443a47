/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do bytes get from and to a file of the host?
 *
 * This room wraps one file descriptor.  It knows nothing of qcow2.  All I/O is
 * positional, so that any number of threads may use one file at once: the only
 * shared state is a handful of atomics.
 *
 * Transfers are whole or fail: interrupted and short system calls are
 * continued, and where a file ends, reads go on with zeros, which is what the
 * format asks for (an image may end in the middle of a cluster).
 *
 * Every operation that tests may want to see or disturb passes choke() first,
 * and nothing else in the program reads or writes image files.
 *
 * Errors of the page cache: Linux tells each descriptor of a failed writeback
 * once, through whichever call looks next.  fdatasync is where our callers
 * expect it (R9), but a RWF_DSYNC write or sync_file_range may be the one that
 * gets, and thereby uses up, an error that concerns the data of others.  Such
 * an error is kept in `lost', and every later hostfile_sync fails with it:
 * data that we said was written may be gone.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bytes.h"
#include "cleanup.h"
#include "dropcache.h"
#include "hostfile.h"
#include "hostlock.h"
#include "report.h"

struct hostfile {
  /* Fixed after hostfile_open: no lock. */
  char *path;
  int fd;
  bool writable;
  bool regular;                 /* else a block device */
  struct dropcache *dropcache;  /* cache=none; else NULL */
  const struct hostfile_hooks *hooks;
  dev_t dev;                    /* of the device itself for block devices */
  ino_t ino;                    /* 0 for block devices */

  /* Atomics.  None of them orders access to anything else, so relaxed
   * operations would do; nothing here is hot enough to care.
   */
  _Atomic uint64_t size;
  atomic_bool no_dsync;         /* the host can't do RWF_DSYNC */
  atomic_bool no_punch;         /* the host can't punch holes */
  atomic_bool no_zero;          /* the host can't zero ranges */
  _Atomic uint64_t changes;     /* how many there were; counted when they are done */
  _Atomic uint64_t synced;      /* how many of them a sync that has ended covers */
  atomic_bool no_allocate;      /* the host can't promise space */
  atomic_bool diverted;         /* a hook did our work: ask not the host */
  atomic_int lost;              /* errno of a lost write, or 0; see above */

  pthread_mutex_t role_lock;    /* guards role, and the locks on the file */
  enum hostfile_lock role;
};

/* A place in an iov array: what is before it has been written. */
struct cursor {
  const struct iovec *iov;
  int niov;
  size_t skip;                  /* bytes of iov[0] that have been written */
  uint64_t offset;              /* where the next byte goes */
};

/* --- open and close --- */

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

/* Opens PATH, or what OPTS say, without ever waiting for anyone.  *WRITABLE: in, try; out,
 * is. */
static int
open_fd (const char *path, const struct hostfile_options *opts, bool *writable)
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
examine (struct hostfile *f)
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
      nbdkit_error ("%s: cannot find out the size of the device: %m", f->path);
      return -1;
    }
    f->dev = st.st_rdev;
    f->size = end;
  }
  return 0;
}

/* A hostfile that is not open yet.  NULL: reported. */
static struct hostfile *
new_hostfile (const char *path, const struct hostfile_options *opts)
{
  struct hostfile *f = calloc (1, sizeof *f);

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
start_dropping (struct hostfile *f, const struct hostfile_options *opts)
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
hostfile_open (const char *path, const struct hostfile_options *opts,
               struct hostfile **result)
{
  struct hostfile *f;
  struct stat st;
  int err;

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
      (hostfile_lock (f, opts->data_file ? HOSTFILE_DATA_READER
                      : HOSTFILE_READER) == -1 ||
       examine (f) == -1))
    goto fail;
  if (start_dropping (f, opts) == -1)
    goto fail;
  *result = f;
  return 0;

 fail:
  err = errno;
  hostfile_close (f);
  errno = err;
  return -1;
}

int
hostfile_adopt (const char *path, int fd, const struct hostfile_options *opts,
                struct hostfile **result)
{
  struct hostfile *f = new_hostfile (path, opts);
  int err;

  if (f == NULL)
    return -1;
  f->writable = true;
  f->fd = fd;
  if (examine (f) == -1 || start_dropping (f, opts) == -1) {
    err = errno;
    f->fd = -1;                 /* it stays the caller's */
    hostfile_close (f);
    errno = err;
    return -1;
  }
  *result = f;
  return 0;
}

void
hostfile_close (struct hostfile *f)
{
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
hostfile_path (const struct hostfile *f)
{
  return f->path;
}

bool
hostfile_is_writable (const struct hostfile *f)
{
  return f->writable;
}

bool
hostfile_is_regular (const struct hostfile *f)
{
  return f->regular;
}

bool
hostfile_same (const struct hostfile *a, const struct hostfile *b)
{
  return a->regular == b->regular && a->dev == b->dev && a->ino == b->ino;
}

uint64_t
hostfile_size (const struct hostfile *f)
{
  return f->size;
}

uint64_t
hostfile_allocated (const struct hostfile *f)
{
  struct stat st;

  if (!f->regular || fstat (f->fd, &st) == -1)
    return f->size;
  return (uint64_t) st.st_blocks * 512;
}

/* --- common to all operations --- */

/* The one place that every operation passes.  Returns 0 if the operation
 * is to happen, 1 if it has been done by the hook, or -1 with errno set (not
 * reported).
 */
static int
choke (struct hostfile *f, enum hostfile_op op, const struct iovec *iov,
       int niov, uint64_t offset, uint64_t count, bool dsync)
{
  int r;

  /* The kernel's offsets are signed. */
  if (!range_within (offset, count, INT64_MAX)) {
    errno = EFBIG;
    return -1;
  }
  if (f->hooks == NULL || f->hooks->before == NULL)
    return 0;
  r = f->hooks->before (f->hooks->opaque, f->path, op, iov, niov,
                        offset, count, dsync);
  if (r > 0) {
    f->diverted = true;
    return 1;
  }
  return r;
}

int
hostfile_hook (struct hostfile *f, enum hostfile_op op)
{
  return choke (f, op, NULL, 0, 0, 0, false);
}

static int
report (const struct hostfile *f, const char *operation, uint64_t offset,
        uint64_t count)
{
  nbdkit_error ("%s: cannot %s %" PRIu64 " bytes at offset %" PRIu64 ": %m",
                f->path, operation, count, offset);
  return -1;
}

/* Keeps an error that a later sync would have had to report. */
static void
note_lost (struct hostfile *f, int err)
{
  int none = 0;

  atomic_compare_exchange_strong (&f->lost, &none, err);
}

/* Raises the known size to END.  Only truncate lowers it, and nobody
 * truncates a file while others write beyond the new end.
 */
static void
raise_size (struct hostfile *f, uint64_t end)
{
  uint64_t size = f->size;

  while (size < end &&
         !atomic_compare_exchange_weak (&f->size, &size, end))
    ;
}

/* --- reading and writing --- */

int
hostfile_read (struct hostfile *f, void *buf, uint64_t count, uint64_t offset)
{
  const struct iovec iov = { .iov_base = buf, .iov_len = count };
  uint64_t done = 0;
  int r;

  if (count == 0)
    return 0;
  r = choke (f, HOSTFILE_OP_READ, &iov, 1, offset, count, false);
  if (r == -1)
    return report (f, "read", offset, count);
  if (r > 0)
    return 0;

  while (done < count) {
    ssize_t n = pread (f->fd, (char *) buf + done, count - done, offset + done);

    if (n == -1 && errno == EINTR)
      continue;
    if (n == -1)
      return report (f, "read", offset, count);
    if (n == 0) {               /* the end of the file: zeros from here on */
      memset ((char *) buf + done, 0, count - done);
      break;
    }
    done += n;
  }
  if (f->dropcache)
    dropcache_read (f->dropcache, offset, count);
  return 0;
}

static void
advance (struct cursor *c, size_t n)
{
  c->offset += n;
  c->skip += n;
  while (c->niov > 0 && c->skip >= c->iov[0].iov_len) {
    c->skip -= c->iov[0].iov_len;
    c->iov++;
    c->niov--;
  }
}

/* Writes all from C on, and leaves C behind what has been written.  -1 with
 * errno set; not reported.
 */
static int
write_from (struct hostfile *f, struct cursor *c, int flags)
{
  int r = 0;

  advance (c, 0);               /* the first buffers may be empty */
  while (c->niov > 0) {
    struct iovec rest;
    ssize_t n;

    if (c->skip == 0)
      n = pwritev2 (f->fd, c->iov, c->niov < IOV_MAX ? c->niov : IOV_MAX,
                    c->offset, flags);
    else {                      /* the caller's array must not change */
      rest.iov_base = (char *) c->iov[0].iov_base + c->skip;
      rest.iov_len = c->iov[0].iov_len - c->skip;
      n = pwritev2 (f->fd, &rest, 1, c->offset, flags);
    }
    if (n == -1 && errno == EINTR)
      continue;
    if (n == 0) {               /* no progress, no reason: taken for "full" */
      errno = ENOSPC;
      n = -1;
    }
    if (n == -1) {
      r = -1;
      break;
    }
    advance (c, n);
  }
  raise_size (f, c->offset);
  return r;
}

static int
sync_fd (struct hostfile *f)
{
  int r;

  do
    r = fdatasync (f->fd);
  while (r == -1 && errno == EINTR);
  return r;
}

/* Writes all from C on, durably.  -1 with errno set; not reported. */
static int
write_dsync_from (struct hostfile *f, struct cursor *c)
{
  int suspect = 0;

  if (!f->no_dsync) {
    if (write_from (f, c, RWF_DSYNC) == 0)
      return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS)
      f->no_dsync = true;
    else if (errno == ENOSPC || errno == EDQUOT)
      /* No room for these bytes, or news of other bytes that were lost?  If
       * they can be written now, it was the latter.
       */
      suspect = errno;
    else {
      note_lost (f, errno);
      return -1;
    }
  }

  if (write_from (f, c, 0) == -1)
    return -1;
  if (suspect) {
    note_lost (f, suspect);
    errno = suspect;
    return -1;
  }
  if (sync_fd (f) == -1) {
    note_lost (f, errno);
    return -1;
  }
  return 0;
}

int
hostfile_writev (struct hostfile *f, const struct iovec *iov, int niov,
                 uint64_t offset, bool dsync)
{
  struct cursor c = { .iov = iov, .niov = niov, .offset = offset };
  uint64_t count = 0;
  int r;

  for (int i = 0; i < niov; i++)
    count += iov[i].iov_len;
  if (count == 0)
    return 0;

  r = choke (f, HOSTFILE_OP_WRITE, iov, niov, offset, count, dsync);
  if (r == -1)
    return report (f, "write", offset, count);
  if (r > 0) {
    raise_size (f, offset + count);
    if (!dsync)
      f->changes++;
    return 0;
  }
  r = dsync ? write_dsync_from (f, &c) : write_from (f, &c, 0);
  if (!dsync || r == -1)
    f->changes++;
  if (r == -1)
    return report (f, "write", offset, count);
  if (f->dropcache) {
    int err = dropcache_write (f->dropcache, offset, count);

    if (err)
      note_lost (f, err);
  }
  return 0;
}

int
hostfile_write (struct hostfile *f, const void *buf, uint64_t count,
                uint64_t offset)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };

  return hostfile_writev (f, &iov, 1, offset, false);
}

int
hostfile_sync (struct hostfile *f)
{
  const uint64_t changes = f->changes;
  uint64_t synced = f->synced;
  int r = choke (f, HOSTFILE_OP_SYNC, NULL, 0, 0, 0, false);

  if (r == 0)
    r = sync_fd (f);
  if (r >= 0 && f->lost) {
    errno = f->lost;
    r = -1;
  }
  if (r == -1) {
    nbdkit_error ("%s: cannot make writes durable: fdatasync: %m", f->path);
    return -1;
  }
  /* Another one may have begun later and ended earlier. */
  while (synced < changes &&
         !atomic_compare_exchange_weak (&f->synced, &synced, changes))
    ;
  if (f->dropcache)
    dropcache_sync (f->dropcache);
  return 0;
}

int
hostfile_sync_changes (struct hostfile *f)
{
  if (f->synced == f->changes && !f->lost)
    return 0;
  return hostfile_sync (f) == -1 ? -1 : 1;
}

/* --- space --- */

/* What punch and zero share.  On block devices, too, both modes mean zeros if they
 * succeed.  (BLKDISCARD would promise nothing.) */
static int
erase (struct hostfile *f, int mode, atomic_bool *cannot, const char *what,
       uint64_t offset, uint64_t count)
{
  int r;

  if (count == 0)
    return 1;
  r = choke (f, HOSTFILE_OP_PUNCH, NULL, 0, offset, count, false);
  if (r == -1)
    return report (f, what, offset, count);
  if (r > 0) {
    f->changes++;
    return 1;
  }
  if (*cannot)
    return 0;

  do
    r = fallocate (f->fd, mode | FALLOC_FL_KEEP_SIZE, offset, count);
  while (r == -1 && errno == EINTR);
  f->changes++;
  if (r == 0)
    return 1;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENODEV) {
    nbdkit_debug ("%s: the host cannot %s ranges: %m", f->path, what);
    *cannot = true;
    return 0;
  }
  /* Not a multiple of the device's blocks: the next range may be one. */
  if (errno == EINVAL && !f->regular)
    return 0;
  return report (f, what, offset, count);
}

int
hostfile_punch (struct hostfile *f, uint64_t offset, uint64_t count)
{
  return erase (f, FALLOC_FL_PUNCH_HOLE, &f->no_punch, "punch a hole of",
                offset, count);
}

int
hostfile_zero (struct hostfile *f, uint64_t offset, uint64_t count)
{
  return erase (f, FALLOC_FL_ZERO_RANGE, &f->no_zero, "zero", offset, count);
}

int
hostfile_allocate (struct hostfile *f, uint64_t offset, uint64_t count)
{
  int r;

  r = choke (f, HOSTFILE_OP_ALLOCATE, NULL, 0, offset, count, false);
  if (r == -1)
    return report (f, "allocate", offset, count);
  if (r > 0 || !f->regular || count == 0)
    return 0;
  do
    r = fallocate (f->fd, FALLOC_FL_KEEP_SIZE, offset, count);
  while (r == -1 && errno == EINTR);
  if (r == 0)
    return 0;
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    f->no_allocate = true;
    return 0;
  }
  return report (f, "allocate", offset, count);
}

bool
hostfile_cannot_allocate (const struct hostfile *f)
{
  return f->no_allocate;
}

int
hostfile_truncate (struct hostfile *f, uint64_t size)
{
  int r = choke (f, HOSTFILE_OP_TRUNCATE, NULL, 0, size, 0, false);

  if (r == 0 && !f->regular) {
    if (size <= f->size)
      return 0;
    errno = ENOSPC;
    r = -1;
  }
  else if (r == 0) {
    do
      r = ftruncate (f->fd, size);
    while (r == -1 && errno == EINTR);
  }
  if (r == -1) {
    nbdkit_error ("%s: cannot set the size to %" PRIu64 " bytes: %m",
                  f->path, size);
    return -1;
  }
  f->changes++;
  if (f->regular)
    f->size = size;
  return 0;
}

int
hostfile_hole (struct hostfile *f, uint64_t offset, uint64_t *len, bool *hole)
{
  off_t data, end;

  *hole = false;
  if (offset >= INT64_MAX) {
    *hole = true;
    return 0;
  }
  /* What the hook has taken over, the host knows nothing about. */
  if (f->diverted) {
    *hole = offset >= f->size;
    return 0;
  }

  /* This moves the file offset, which all threads share and none uses: all
   * I/O is positional, so that no lock is needed.
   */
  data = lseek (f->fd, offset, SEEK_DATA);
  if (data == -1) {
    /* ENXIO: no data from here on.  Anything else: the host can't tell;
     * if there is real trouble, the read will say so.
     */
    *hole = errno == ENXIO;
    return 0;
  }
  if ((uint64_t) data > offset) {
    *hole = true;
    *len = min64 (*len, data - offset);
    return 0;
  }
  end = lseek (f->fd, offset, SEEK_HOLE);
  /* Equal if somebody punched a hole since; "data" is never wrong. */
  if (end != -1 && (uint64_t) end > offset)
    *len = min64 (*len, end - offset);
  return 0;
}

void
hostfile_prefetch (struct hostfile *f, uint64_t offset, uint64_t count)
{
  if (count > 0 && range_within (offset, count, INT64_MAX))
    posix_fadvise (f->fd, offset, count, POSIX_FADV_WILLNEED);
}

void
hostfile_write_back (struct hostfile *f, uint64_t offset, uint64_t count)
{
  if (count > 0 && range_within (offset, count, INT64_MAX))
    sync_file_range (f->fd, offset, count, SYNC_FILE_RANGE_WRITE);
}

int
hostfile_lock (struct hostfile *f, enum hostfile_lock role)
{
  LOCK_FOR_BLOCK (&f->role_lock);

  if (hostlock_change (f->fd, f->path, f->role, role) == -1)
    return -1;
  f->role = role;
  return 0;
}
