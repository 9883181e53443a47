/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parts of a file of the host have space?  The third part of hostfile.
 *
 * The host is asked to punch holes, to zero ranges and to reserve space.  If it cannot
 * do one of these, it is not asked again, and the callers do without.
 *
 * Locks: none; the atomics of storage-impl.h.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/report.h"
#include "storage/storage-impl.h"

/* What punch and zero share.  On block devices, too, both modes mean zeros if they
 * succeed.  (BLKDISCARD would promise nothing.) */
static int
erase (struct storage *f, int mode, atomic_bool *cannot, const char *what,
       uint64_t offset, uint64_t count)
{
  int r;

  if (count == 0)
    return 1;
  r = storage_choke (f, STORAGE_OP_PUNCH, NULL, 0, offset, count, false);
  if (r == -1)
    return storage_failed (f, what, offset, count);
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
  return storage_failed (f, what, offset, count);
}

int
storage_punch (struct storage *f, uint64_t offset, uint64_t count)
{
  return erase (f, FALLOC_FL_PUNCH_HOLE, &f->no_punch, "punch a hole of",
                offset, count);
}

/* A hole with its space set aside again is as good as what FALLOC_FL_ZERO_RANGE makes.
 * (Can the host do that?  One byte tells, before anything is changed.) */
static int
zero_by_hole (struct storage *f, uint64_t offset, uint64_t count)
{
  int r;

  if (!f->regular || f->no_punch || f->no_allocate)
    return 0;
  if (storage_allocate (f, offset, 1) == -1)
    return -1;
  if (f->no_allocate)
    return 0;
  r = storage_punch (f, offset, count);
  return r == 1 && storage_allocate (f, offset, count) == -1 ? -1 : r;
}

int
storage_zero (struct storage *f, uint64_t offset, uint64_t count)
{
  const int r = erase (f, FALLOC_FL_ZERO_RANGE, &f->no_zero, "zero", offset, count);

  return r == 0 ? zero_by_hole (f, offset, count) : r;
}

/* Reports nothing. */
static int
allocate (struct storage *f, uint64_t offset, uint64_t count)
{
  int r;

  r = storage_choke (f, STORAGE_OP_ALLOCATE, NULL, 0, offset, count, false);
  if (r == -1)
    return -1;
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
  return -1;
}

int
storage_allocate (struct storage *f, uint64_t offset, uint64_t count)
{
  if (allocate (f, offset, count) == -1)
    return storage_failed (f, "allocate", offset, count);
  return 0;
}

bool
storage_cannot_allocate (const struct storage *f)
{
  return f->no_allocate;
}

/* Reports nothing. */
static int
set_size (struct storage *f, uint64_t size)
{
  int r = storage_choke (f, STORAGE_OP_TRUNCATE, NULL, 0, size, 0, false);

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
  if (r == -1)
    return -1;
  f->changes++;
  if (f->regular)
    f->size = size;
  return 0;
}

static int
cannot_set_size (const struct storage *f, uint64_t size)
{
  nbdkit_error ("%s: cannot set the size to %" PRIu64 " bytes: %m", f->path, size);
  storage_full ();
  return -1;
}

int
storage_truncate (struct storage *f, uint64_t size)
{
  return set_size (f, size) == -1 ? cannot_set_size (f, size) : 0;
}

int
storage_extend (struct storage *f, uint64_t size, uint64_t offset, uint64_t count)
{
  const bool longer = size > f->size;
  const bool sized = !longer || set_size (f, size) == 0;

  if (sized && (count == 0 || allocate (f, offset, count) == 0))
    return 0;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    nbdkit_debug ("%s: no space for %" PRIu64 " bytes: %m", f->path, size);
    storage_full ();
    return -1;
  }
  return sized ? storage_failed (f, "allocate", offset, count)
    : cannot_set_size (f, size);
}

int
storage_hole (struct storage *f, uint64_t offset, uint64_t *len, bool *hole)
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
storage_prefetch (struct storage *f, uint64_t offset, uint64_t count)
{
  if (count > 0 && range_within (offset, count, INT64_MAX))
    posix_fadvise (f->fd, offset, count, POSIX_FADV_WILLNEED);
}

void
storage_write_back (struct storage *f, uint64_t offset, uint64_t count)
{
  if (count > 0 && range_within (offset, count, INT64_MAX))
    sync_file_range (f->fd, offset, count, SYNC_FILE_RANGE_WRITE);
}
