/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a server do to its image?
 *
 * A library for LD_PRELOAD.  It writes into a journal (journal.c) each operation by which
 * the program changes one file or makes it durable, through any of its descriptors, and
 * then carries it out:
 *
 *   POWERCUT_IMAGE     the file
 *   POWERCUT_JOURNAL   the journal
 *
 * Both must exist when the program starts.  Without POWERCUT_JOURNAL it does nothing.
 *
 * Not seen: io_uring, Linux AIO, memory that maps the file, and system calls that are not
 * made through libc.  judge.c compares what was recorded with the file, and refuses such
 * a recording.  copy_file_range fails with ENOSYS, so that programs write instead.
 * sync_file_range makes nothing durable.
 *
 * Locks: none.  Any thread may call any of these functions.
 */

#include <config.h>

/* Where it changes nothing, it would only make two names of a function one. */
#if __SIZEOF_LONG__ == 8
#undef _FILE_OFFSET_BITS
#endif

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "powercut/journal.h"

/* Set by the constructor, constant afterwards. */
static int journal = -1;
static struct stat image;

static void
give_up (const char *name)
{
  fprintf (stderr, "powercut: cannot open %s: %s\n", name, strerror (errno));
  _exit (1);
}

__attribute__ ((constructor))
static void
begin (void)
{
  const char *path = getenv ("POWERCUT_IMAGE"), *to = getenv ("POWERCUT_JOURNAL");

  if (to == NULL)
    return;
  if (path == NULL || stat (path, &image) == -1)
    give_up (path ? path : "POWERCUT_IMAGE");
  journal = journal_open (to);
  if (journal == -1)
    give_up (to);
}

static bool
is_image (int fd)
{
  struct stat st;
  const int err = errno;
  const bool is = journal != -1 && fstat (fd, &st) == 0 && st.st_dev == image.st_dev &&
    st.st_ino == image.st_ino;

  errno = err;
  return is;
}

/* --- entries --- */

static uint64_t
record (enum journal_kind kind, uint64_t offset, uint64_t count, bool durable,
        const void *data)
{
  const struct journal_entry e = {
    .kind = kind, .durable = durable, .number = journal_number (), .offset = offset,
    .count = count,
  };

  journal_append (journal, &e, data);
  return e.number;
}

/* Keeps errno. */
static void
record_end (uint64_t number, int64_t result)
{
  const int err = errno;
  const struct journal_entry e = {
    .kind = JOURNAL_END, .number = number, .result = result,
  };

  journal_append (journal, &e, NULL);
  errno = err;
}

/* --- the functions of libc that are behind this library --- */

#define NEXT(type, name, ...)                                           \
  static type (*next) (__VA_ARGS__);                                    \
  if (next == NULL)                                                     \
    next = (type (*) (__VA_ARGS__)) dlsym (RTLD_NEXT, name)

static ssize_t
next_pwritev2 (int fd, const struct iovec *iov, int niov, off64_t offset, int flags)
{
  NEXT (ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int);
  return next (fd, iov, niov, offset, flags);
}

static int
next_fallocate (int fd, int mode, off64_t offset, off64_t count)
{
  NEXT (int, "fallocate64", int, int, off64_t, off64_t);
  return next (fd, mode, offset, count);
}

/* --- writing --- */

static bool
has_flag (int fd, int flag)
{
  const int flags = fcntl (fd, F_GETFL);

  return flags != -1 && (flags & flag) == flag;
}

/* All bytes, in one piece; to be freed. */
static unsigned char *
join (const struct iovec *iov, int niov, uint64_t *count)
{
  unsigned char *data;
  uint64_t at = 0;
  int i;

  for (*count = i = 0; i < niov; i++)
    *count += iov[i].iov_len;
  data = malloc (*count + 1);
  if (data == NULL)
    abort ();
  for (i = 0; i < niov; i++) {
    memcpy (data + at, iov[i].iov_base, iov[i].iov_len);
    at += iov[i].iov_len;
  }
  return data;
}

/* OFFSET -1: at the position of the descriptor, which moves. */
static ssize_t
write_image (int fd, const struct iovec *iov, int niov, off64_t offset, int flags)
{
  const bool durable = flags & (RWF_DSYNC | RWF_SYNC) || has_flag (fd, O_DSYNC);
  off64_t at = offset;
  struct stat st;
  unsigned char *data;
  uint64_t count, number;
  ssize_t r;

  if ((flags & RWF_APPEND || has_flag (fd, O_APPEND)) && fstat (fd, &st) == 0)
    at = st.st_size;
  else if (offset == -1)
    at = lseek64 (fd, 0, SEEK_CUR);
  data = join (iov, niov, &count);
  number = record (JOURNAL_WRITE, at, count, durable, data);
  free (data);
  r = next_pwritev2 (fd, iov, niov, offset, flags);
  record_end (number, r);
  return r;
}

ssize_t
write (int fd, const void *buf, size_t count)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };
  NEXT (ssize_t, "write", int, const void *, size_t);

  return is_image (fd) ? write_image (fd, &iov, 1, -1, 0) : next (fd, buf, count);
}

ssize_t
writev (int fd, const struct iovec *iov, int niov)
{
  NEXT (ssize_t, "writev", int, const struct iovec *, int);

  return is_image (fd) ? write_image (fd, iov, niov, -1, 0) : next (fd, iov, niov);
}

ssize_t
pwrite64 (int fd, const void *buf, size_t count, off64_t offset)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };
  NEXT (ssize_t, "pwrite64", int, const void *, size_t, off64_t);

  return is_image (fd) && offset >= 0 ? write_image (fd, &iov, 1, offset, 0)
    : next (fd, buf, count, offset);
}

ssize_t
pwritev64 (int fd, const struct iovec *iov, int niov, off64_t offset)
{
  NEXT (ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);

  return is_image (fd) && offset >= 0 ? write_image (fd, iov, niov, offset, 0)
    : next (fd, iov, niov, offset);
}

ssize_t
pwritev64v2 (int fd, const struct iovec *iov, int niov, off64_t offset, int flags)
{
  return is_image (fd) ? write_image (fd, iov, niov, offset, flags)
    : next_pwritev2 (fd, iov, niov, offset, flags);
}

/* --- other changes --- */

static int
resize_image (int fd, off64_t size)
{
  NEXT (int, "ftruncate64", int, off64_t);
  uint64_t number;
  int r;

  if (!is_image (fd))
    return next (fd, size);
  number = record (JOURNAL_RESIZE, size, 0, false, NULL);
  r = next (fd, size);
  record_end (number, r);
  return r;
}

int
ftruncate64 (int fd, off64_t size)
{
  return resize_image (fd, size);
}

int
truncate64 (const char *path, off64_t size)
{
  const int fd = open (path, O_WRONLY | O_CLOEXEC);
  int r, err;

  if (fd == -1)
    return -1;
  r = resize_image (fd, size);
  err = errno;
  close (fd);
  errno = err;
  return r;
}

/* The contents change first, then the size. */
static int
fallocate_image (int fd, int mode, off64_t offset, off64_t count)
{
  uint64_t zero = 0, grow = 0;
  int r;

  if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
    zero = record (JOURNAL_ZERO, offset, count, false, NULL);
  if (!(mode & FALLOC_FL_KEEP_SIZE))
    grow = record (JOURNAL_GROW, offset + count, 0, false, NULL);
  r = next_fallocate (fd, mode, offset, count);
  if (grow > 0)
    record_end (grow, r);
  if (zero > 0)
    record_end (zero, r);
  return r;
}

int
fallocate64 (int fd, int mode, off64_t offset, off64_t count)
{
  return is_image (fd) ? fallocate_image (fd, mode, offset, count)
    : next_fallocate (fd, mode, offset, count);
}

int
posix_fallocate64 (int fd, off64_t offset, off64_t count)
{
  NEXT (int, "posix_fallocate64", int, off64_t, off64_t);
  uint64_t number;
  int r;

  if (!is_image (fd))
    return next (fd, offset, count);
  number = record (JOURNAL_GROW, offset + count, 0, false, NULL);
  r = next (fd, offset, count);
  record_end (number, r == 0 ? 0 : -1);
  return r;
}

ssize_t
copy_file_range (int from, off64_t *from_offset, int to, off64_t *to_offset, size_t count,
                 unsigned flags)
{
  NEXT (ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);

  if (!is_image (to))
    return next (from, from_offset, to, to_offset, count, flags);
  errno = ENOSYS;
  return -1;
}

/* --- syncs --- */

static int
sync_image (int fd, int (*next) (int))
{
  uint64_t number;
  int r;

  if (!is_image (fd))
    return next (fd);
  number = record (JOURNAL_SYNC, 0, 0, false, NULL);
  r = next (fd);
  record_end (number, r);
  return r;
}

int
fsync (int fd)
{
  NEXT (int, "fsync", int);

  return sync_image (fd, next);
}

int
fdatasync (int fd)
{
  NEXT (int, "fdatasync", int);

  return sync_image (fd, next);
}

/* (Of the filesystem of another file: then the image is not covered for certain.) */
int
syncfs (int fd)
{
  NEXT (int, "syncfs", int);

  return sync_image (fd, next);
}

/* Where off_t has 64 bits, the functions have two names each.  Elsewhere those without 64
 * are not recorded: they are of no use for images. */
#if __SIZEOF_LONG__ == 8
#define SAME(name, as) extern __typeof__ (as) name __attribute__ ((alias (#as)))
SAME (pwrite, pwrite64);
SAME (pwritev, pwritev64);
SAME (pwritev2, pwritev64v2);
SAME (ftruncate, ftruncate64);
SAME (truncate, truncate64);
SAME (fallocate, fallocate64);
SAME (posix_fallocate, posix_fallocate64);
#endif
