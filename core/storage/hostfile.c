/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bytes read from and written to a file of the host?
 *
 * One kind of storage (storage-impl.h).  It wraps one file descriptor.  Interrupted and
 * short system calls are continued.
 *
 * Errors of the page cache: Linux reports a failed writeback to each descriptor once,
 * through the next call that checks for it.  The callers expect such an error from
 * fdatasync (R9).  But an RWF_DSYNC write or sync_file_range may get, and thereby
 * consume, an error that concerns data of other requests.  Such an error is kept
 * (storage_note_lost), and every later sync fails with it: data that was reported as
 * written may be lost.
 *
 * After such an error the page cache has data that the disk lacks, and Linux takes that
 * for clean.  Reads of this session may see it: that is what clients have written, and it
 * can still be rescued.  The next session must not rely on it, because a power cut brings
 * back what the disk has, whatever is synced meanwhile.  So it is dropped on closing.  If
 * the server is killed before, the next session finds the image marked (image/health.c),
 * and calls hostfile_forget_cache.
 *
 * Locks: none; atomics.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "storage/aliasing.h"
#include "storage/hostfile-impl.h"
#include "storage/wholesectors.h"

/* The same as pread. */
static ssize_t
read_some (int fd, void *buf, size_t count, uint64_t offset)
{
  return aliasing_slow (buf, count, offset) ? aliasing_read (fd, buf, count, offset)
    : pread (fd, buf, count, offset);
}

int
hostfile_read (struct storage *s, void *buf, uint64_t count, uint64_t offset)
{
  struct hostfile *f = hostfile_of (s);
  uint64_t done = 0;

  while (done < count) {
    ssize_t n = read_some (f->fd, (char *) buf + done, count - done, offset + done);

    if (n == -1 && errno == EINTR)
      continue;
    if (n == -1)
      return -1;
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

/* Writes the beginning of the COUNT bytes from C on, from a copy.  Returns the same as
 * pwritev2. */
static ssize_t __attribute__ ((noinline))
write_copy (struct hostfile *f, const struct cursor *c, size_t count, int flags)
{
  struct wholesectors w;
  ssize_t n;

  wholesectors_copy (&w, c, count);
  n = pwritev2 (f->fd, &w.iov, 1, c->offset, flags);
  KEEP_ERRNO_FOR_BLOCK;
  wholesectors_end (&w);
  return n;
}

/* Writes everything from C on, with whole sectors or not, and moves C behind the bytes
 * that were written.  Returns 0, or -1 with errno set (not reported). */
static int
write_from (struct hostfile *f, struct cursor *c, bool whole, int flags)
{
  int r = 0;

  cursor_advance (c, 0);        /* the first buffers may be empty */
  while (c->niov > 0) {
    const size_t torn = whole ? wholesectors_torn (c) : 0;
    struct iovec rest;
    ssize_t n;

    if (torn > 0)
      n = write_copy (f, c, torn, flags);
    else if (c->skip == 0)
      n = pwritev2 (f->fd, c->iov, c->niov < IOV_MAX ? c->niov : IOV_MAX,
                    c->offset, flags);
    else {                      /* the caller's array must not change */
      rest.iov_base = (char *) c->iov[0].iov_base + c->skip;
      rest.iov_len = c->iov[0].iov_len - c->skip;
      n = pwritev2 (f->fd, &rest, 1, c->offset, flags);
    }
    if (n == -1 && errno == EINTR)
      continue;
    if (n == 0) {               /* no progress and no error: treated as a full disk */
      errno = ENOSPC;
      n = -1;
    }
    if (n == -1) {
      r = -1;
      break;
    }
    cursor_advance (c, n);
  }
  storage_raise_size (&f->s, c->offset);
  return r;
}

static int
sync_fd (struct hostfile *f)
{
  int r;

  do
    r = fdatasync (f->fd);
  while (r == -1 && errno == EINTR);
  if (r == -1)
    f->differs = true;
  return r;
}

/* What is dirty is written first, so that it can be dropped, and so that an old error is
 * reported now: it concerns data of an earlier session, which is about to be read as the
 * disk has it. */
void
hostfile_forget_cache (struct storage *s)
{
  struct hostfile *f = hostfile_of (s);

  sync_fd (f);
  f->differs = false;
  posix_fadvise (f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* Writes everything from C on, durably.  Returns 0, or -1 with errno set (not
 * reported). */
static int
write_durably_from (struct hostfile *f, struct cursor *c)
{
  int suspect = 0;

  if (!f->no_dsync) {
    if (write_from (f, c, true, RWF_DSYNC) == 0)
      return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS)
      f->no_dsync = true;
    else if (errno == ENOSPC || errno == EDQUOT)
      /* Is there no space for these bytes, or does the error concern other bytes that
       * were lost?  If the bytes can be written now, it is the latter. */
      suspect = errno;
    else if (errno == EFBIG)    /* the kernel returns it before it writes anything */
      return -1;
    else {
      storage_note_lost (&f->s, errno);
      return -1;
    }
  }

  if (write_from (f, c, true, 0) == -1)
    return -1;
  if (suspect) {
    storage_note_lost (&f->s, suspect);
    errno = suspect;
    return -1;
  }
  if (sync_fd (f) == -1) {
    storage_note_lost (&f->s, errno);
    return -1;
  }
  return 0;
}

int
hostfile_write (struct storage *s, const struct iovec *iov, int niov,
                uint64_t offset, uint64_t count, enum storage_writing how)
{
  struct hostfile *f = hostfile_of (s);
  struct cursor c = { .iov = iov, .niov = niov, .offset = offset };
  /* New clusters are rarely cached, and have one write each. */
  const bool small = f->folios && count <= FOLIOS_SMALL && how != STORAGE_UNSEEN;
  const uint64_t look =
    small ? folios_before_write (f->folios, offset, count) : FOLIOS_NOWHERE;
  int r, err;

  r = how == STORAGE_DURABLE ? write_durably_from (f, &c)
    : write_from (f, &c, how != STORAGE_UNSEEN, 0);
  if (r == 0 && look != FOLIOS_NOWHERE && how != STORAGE_DURABLE)
    folios_after_write (f->folios, look);
  if (r == 0 && f->dropcache) {
    err = dropcache_write (f->dropcache, offset, count);
    if (err)
      storage_note_lost (s, err);
  }
  return r;
}

int
hostfile_sync (struct storage *s)
{
  struct hostfile *f = hostfile_of (s);

  if (sync_fd (f) == -1) {
    if (errno == ENOMEM)        /* the kernel's, which has begun */
      errno = EIO;
    return -1;
  }
  if (f->dropcache)
    dropcache_sync (f->dropcache);
  return 0;
}
