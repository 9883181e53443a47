/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bytes read from and written to a file of the host?
 *
 * This room wraps one file descriptor.  It knows nothing about qcow2.  All I/O is
 * positional, so any number of threads may use a file at the same time.  The only shared
 * state is a few atomics.
 *
 * Transfers are complete or fail: interrupted and short system calls are continued.
 * Beyond the end of the file, reads return zeros, as the format requires (an image may
 * end in the middle of a cluster).
 *
 * Every operation that tests may want to see or disturb passes storage_choke() first.
 * Nothing else in the program reads or writes image files.
 *
 * If there is no more space, callers get ENOSPC, whatever the limit is: the disk, a
 * quota (EDQUOT), or the maximum size of a file for this process or filesystem (EFBIG).
 * Messages name the true reason.  (EFBIG comes with a signal: see plugin.c.)
 *
 * Errors of the page cache: Linux reports a failed writeback to each descriptor once,
 * through the next call that checks for it.  Our callers expect such an error from
 * fdatasync (R9).  But an RWF_DSYNC write or sync_file_range may get, and thereby
 * consume, an error that concerns data of other requests.  Such an error is kept in
 * `lost', and every later storage_sync fails with it: data that we reported as written
 * may be lost.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "util/sparse.h"
#include "storage/storage-impl.h"

#define SPARSE_PIECE (UINT64_C (64) << 10)

/* A place in an iov array: what is before it has been written. */
struct cursor {
  const struct iovec *iov;
  int niov;
  size_t skip;                  /* bytes of iov[0] that have been written */
  uint64_t offset;              /* where the next byte goes */
};

/* --- common to all operations --- */

int
storage_choke (struct storage *f, enum storage_op op,
               const struct iovec *iov, int niov, uint64_t offset,
               uint64_t count, bool dsync)
{
  int r;

  /* The kernel's offsets are signed. */
  if (!range_within (offset, count, INT64_MAX)) {
    errno = EOVERFLOW;
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
storage_hook (struct storage *f, enum storage_op op)
{
  return storage_choke (f, op, NULL, 0, 0, 0, false);
}

int
storage_failed (const struct storage *f, const char *operation,
                uint64_t offset, uint64_t count)
{
  nbdkit_error ("%s: cannot %s %" PRIu64 " bytes at offset %" PRIu64 ": %m",
                f->path, operation, count, offset);
  storage_full ();
  return -1;
}

void
storage_full (void)
{
  if (errno == EDQUOT || errno == EFBIG)
    errno = ENOSPC;
}

/* Keeps an error that a later sync would have had to report. */
static void
note_lost (struct storage *f, int err)
{
  int none = 0;

  atomic_compare_exchange_strong (&f->lost, &none, err);
}

/* Raises the known size to END.  Only truncate lowers it, and nobody
 * truncates a file while others write beyond the new end.
 */
static void
raise_size (struct storage *f, uint64_t end)
{
  uint64_t size = f->size;

  while (size < end &&
         !atomic_compare_exchange_weak (&f->size, &size, end))
    ;
}

/* --- reading and writing --- */

int
storage_read (struct storage *f, void *buf, uint64_t count, uint64_t offset)
{
  const struct iovec iov = { .iov_base = buf, .iov_len = count };
  uint64_t done = 0;
  int r;

  if (count == 0)
    return 0;
  r = storage_choke (f, STORAGE_OP_READ, &iov, 1, offset, count, false);
  if (r == -1)
    return storage_failed (f, "read", offset, count);
  if (r > 0)
    return 0;

  while (done < count) {
    ssize_t n = pread (f->fd, (char *) buf + done, count - done, offset + done);

    if (n == -1 && errno == EINTR)
      continue;
    if (n == -1)
      return storage_failed (f, "read", offset, count);
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

int
storage_read_sparse (struct storage *f, void *buf, uint64_t count,
                     uint64_t offset)
{
  const uint64_t piece = min64 (count, SPARSE_PIECE);
  CLEANUP_FREE char *some = malloc (piece + 1);
  uint64_t at, n;

  if (some == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  for (at = 0; at < count; at += n) {
    n = min64 (count - at, piece);
    if (storage_read (f, some, n, offset + at) == -1)
      return -1;
    sparse_copy ((char *) buf + at, some, n);
  }
  return 0;
}

/* Writes all from C on, and leaves C behind what has been written.  -1 with
 * errno set; not reported.
 */
static int
write_from (struct storage *f, struct cursor *c, int flags)
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
sync_fd (struct storage *f)
{
  int r;

  do
    r = fdatasync (f->fd);
  while (r == -1 && errno == EINTR);
  return r;
}

/* Writes all from C on, durably.  -1 with errno set; not reported. */
static int
write_dsync_from (struct storage *f, struct cursor *c)
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
    else if (errno == EFBIG)    /* the kernel's answer before it writes anything */
      return -1;
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
storage_writev (struct storage *f, const struct iovec *iov, int niov,
                uint64_t offset, bool dsync)
{
  struct cursor c = { .iov = iov, .niov = niov, .offset = offset };
  uint64_t count = 0;
  int r;

  for (int i = 0; i < niov; i++)
    count += iov[i].iov_len;
  if (count == 0)
    return 0;

  r = storage_choke (f, STORAGE_OP_WRITE, iov, niov, offset, count, dsync);
  if (r == -1)
    return storage_failed (f, "write", offset, count);
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
    return storage_failed (f, "write", offset, count);
  if (f->dropcache) {
    int err = dropcache_write (f->dropcache, offset, count);

    if (err)
      note_lost (f, err);
  }
  return 0;
}

int
storage_write (struct storage *f, const void *buf, uint64_t count,
               uint64_t offset)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };

  return storage_writev (f, &iov, 1, offset, false);
}

int
storage_sync (struct storage *f)
{
  const uint64_t changes = f->changes;
  uint64_t synced = f->synced;
  int r = storage_choke (f, STORAGE_OP_SYNC, NULL, 0, 0, 0, false);

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
storage_sync_changes (struct storage *f)
{
  if (f->synced == f->changes && !f->lost)
    return 0;
  return storage_sync (f) == -1 ? -1 : 1;
}
