/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A host that can be told to do less than it is asked to do, or to fail: for tests of
 * hostfile.c and its parts.
 *
 * The functions below replace the system calls that these make, so a program can include
 * this in only one source file.
 */

#ifndef TEST_HOSTCALLS_H
#define TEST_HOSTCALLS_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "storage/storage.h"
#include "lib/realcalls.h"
#include "lib/stubs.h"

static struct {
  bool short_transfers;         /* EINTR, or less than requested */
  struct rng rng;
  int read_errno;
  int write_errno;              /* plain writes fail with this after ... */
  uint64_t write_room;          /* ... this many more bytes */
  bool write_nothing;           /* writes return 0 */
  int dsync_errno;              /* RWF_DSYNC writes fail with this */
  int sync_errno;               /* fdatasync fails with this */
  int range_errno;              /* waiting sync_file_range fails with this */
  int punch_errno;              /* all kinds of fallocate fail with this */
  int zero_range_errno, allocate_errno;
  atomic_uint reads_aliasing, writes, dsyncs, syncs, punches;
  atomic_uint forgets;          /* the whole file was dropped from the page cache */
} host;

/* How many of COUNT bytes this call transfers; 0 means EINTR. */
static inline size_t
some (size_t count)
{
  if (!host.short_transfers)
    return count;
  if (rng_below (&host.rng, 4) == 0)
    return 0;
  return 1 + rng_below (&host.rng, count);
}

ssize_t
pread (int fd, void *buf, size_t count, off_t offset)
{
  size_t n = some (count);

  if (host.read_errno) {
    errno = host.read_errno;
    return -1;
  }
  if (n == 0 && count > 0) {
    errno = EINTR;
    return -1;
  }
  return REAL (pread, pread64) (fd, buf, n, offset);
}

ssize_t
preadv (int fd, const struct iovec *iov, int niov, off_t offset)
{
  struct iovec part[2];
  size_t n;

  CHECK (niov == 2);
  memcpy (part, iov, sizeof part);
  host.reads_aliasing++;
  n = some (iov[0].iov_len + iov[1].iov_len);
  if (host.read_errno || n == 0) {
    errno = host.read_errno ? host.read_errno : EINTR;
    return -1;
  }
  if (n < part[0].iov_len)
    part[0].iov_len = n;
  part[1].iov_len = n - part[0].iov_len;
  return REAL (preadv, preadv64) (fd, part, 2, offset);
}

/* Emulators may not have the call; and no test here cuts the power. */
static inline ssize_t
really_write (int fd, const struct iovec *iov, int niov, off_t offset, int flags)
{
  const ssize_t n = REAL (pwritev2, pwritev64v2) (fd, iov, niov, offset, flags);

  return n == -1 && errno == EOPNOTSUPP
    ? REAL (pwritev, pwritev64) (fd, iov, niov, offset) : n;
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int niov, off_t offset, int flags)
{
  struct iovec part = iov[0];

  CHECK (niov > 0 && niov <= IOV_MAX);
  if (flags & RWF_DSYNC) {
    host.dsyncs++;
    if (host.dsync_errno) {
      errno = host.dsync_errno;
      return -1;
    }
  }
  host.writes++;
  if (host.write_nothing)
    return 0;
  if (host.write_errno) {
    if (host.write_room == 0) {
      errno = host.write_errno;
      return -1;
    }
    if (part.iov_len > host.write_room)
      part.iov_len = host.write_room;
    host.write_room -= part.iov_len;
    return really_write (fd, &part, 1, offset, flags);
  }
  if (host.short_transfers) {
    part.iov_len = some (part.iov_len);
    if (part.iov_len == 0) {
      errno = EINTR;
      return -1;
    }
    return really_write (fd, &part, 1, offset, flags);
  }
  return really_write (fd, iov, niov, offset, flags);
}

int
fdatasync (int fd)
{
  host.syncs++;
  if (host.sync_errno) {
    errno = host.sync_errno;
    return -1;
  }
  return REAL (fdatasync, fdatasync) (fd);
}

int
sync_file_range (int fd, off_t offset, off_t count, unsigned flags)
{
  if (host.range_errno && (flags & SYNC_FILE_RANGE_WAIT_AFTER)) {
    errno = host.range_errno;
    return -1;
  }
  return REAL (sync_file_range, sync_file_range) (fd, offset, count, flags);
}

int
posix_fadvise (int fd, off_t offset, off_t len, int advice)
{
  host.forgets += advice == POSIX_FADV_DONTNEED && offset == 0 && len == 0;
  return REAL (posix_fadvise, posix_fadvise64) (fd, offset, len, advice);
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  host.punches++;
  CHECK (mode & FALLOC_FL_KEEP_SIZE);
  errno = host.punch_errno ? host.punch_errno
    : mode & FALLOC_FL_ZERO_RANGE ? host.zero_range_errno
    : mode & FALLOC_FL_PUNCH_HOLE ? 0 : host.allocate_errno;
  if (errno)
    return -1;
  return REAL (fallocate, fallocate64) (fd, mode, offset, len);
}

static inline void
calm_host (void)
{
  struct rng rng = host.rng;

  memset (&host, 0, sizeof host);
  host.rng = rng;
}

/* --- files --- */

static char dir[] = "hostfile-XXXXXX";   /* a private directory */
static char path[PATH_MAX];

static const struct storage_options rw = { .try_writable = true };

/* What each test does at its beginning and its end. */
static inline void
host_begin (uint64_t seed)
{
  char cwd[PATH_MAX / 2];

  rng_init (&host.rng, seed, 0);
  CHECK (mkdtemp (dir) != NULL);
  CHECK (getcwd (cwd, sizeof cwd) != NULL);
  snprintf (path, sizeof path, "%s/%s/file", cwd, dir);
}

static inline void
host_end (void)
{
  unlink (path);
  CHECK (rmdir (dir) == 0);
}

/* A new, empty file for each test. */
static inline struct storage *
fresh (const struct storage_options *opts)
{
  struct storage *f;
  int fd = open (path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

  CHECK (fd >= 0);
  close (fd);
  CHECK (storage_open (path, opts, &f) == 0);
  CHECK (storage_size (f) == 0);
  return f;
}

/* R is -1, errno is ERR, and the message contains TEXT. */
#define CHECK_FAILS(r, err, text)                                       \
  do {                                                                  \
    unsigned long before_ = error_count ();                             \
    quiet_errors = true;                                                \
    errno = 0;                                                          \
    CHECK ((r) == -1);                                                  \
    CHECK (errno == (err));                                             \
    quiet_errors = false;                                               \
    CHECK (error_count () == before_ + 1);      /* reported once */     \
    if (strstr (last_error (), (text)) == NULL) {                       \
      fprintf (stderr, "not in \"%s\": %s\n", last_error (), (text));   \
      abort ();                                                         \
    }                                                                   \
  } while (0)

#endif /* TEST_HOSTCALLS_H */
