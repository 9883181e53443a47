/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parts of a file of the host have allocated space?
 *
 * The host is asked to punch holes, to zero ranges and to reserve space.  If it cannot
 * do one of these, it is not asked again, and the callers do without.
 *
 * Locks: none; atomics.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/report.h"
#include "storage/hostfile-impl.h"

/* There may be holes from now on. */
static void
forget_data (struct storage *s)
{
  atomic_store (&hostfile_of (s)->data_to, 0);
}

/* Implements punch and zero.  Both modes also guarantee zeros on block devices if they
 * succeed.  (BLKDISCARD would guarantee nothing.) */
static int
erase (struct storage *s, int mode, atomic_bool *cannot, const char *what,
       uint64_t offset, uint64_t count)
{
  int r;

  do
    r = fallocate (hostfile_of (s)->fd, mode | FALLOC_FL_KEEP_SIZE, offset, count);
  while (r == -1 && errno == EINTR);
  forget_data (s);
  if (r == 0)
    return 1;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENODEV) {
    report_debug ("%s: the host cannot %s ranges: %m", s->path, what);
    *cannot = true;
    return 0;
  }
  /* The range is not a multiple of the device's blocks; the next one may be. */
  return errno == EINVAL && !s->regular ? 0 : -1;
}

int
hostfile_punch (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, FALLOC_FL_PUNCH_HOLE, &s->no_punch, "punch a hole of", offset, count);
}

int
hostfile_zero (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, FALLOC_FL_ZERO_RANGE, &s->no_zero, "zero", offset, count);
}

int
hostfile_allocate (struct storage *s, uint64_t offset, uint64_t count)
{
  int r;

  if (!s->regular)
    return 0;
  do
    r = fallocate (hostfile_of (s)->fd, FALLOC_FL_KEEP_SIZE, offset, count);
  while (r == -1 && errno == EINTR);
  if (r == -1 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    s->no_allocate = true;
    return 0;
  }
  return r;
}

int
hostfile_set_size (struct storage *s, uint64_t size)
{
  int r;

  do
    r = ftruncate (hostfile_of (s)->fd, size);
  while (r == -1 && errno == EINTR);
  forget_data (s);
  return r;
}

uint64_t
hostfile_size_now (struct storage *s, bool ask)
{
  const off_t end = lseek (hostfile_of (s)->fd, 0, SEEK_END);

  (void) ask;
  return end == -1 ? s->size : (uint64_t) end;
}

uint64_t
hostfile_allocated (const struct storage *s)
{
  struct stat st;

  if (fstat (hostfile_of (s)->fd, &st) == -1)
    return s->size;
  return (uint64_t) st.st_blocks * 512;
}

/* To find the end of data takes some hosts as long as there is data (tmpfs looks at each
 * page): so all that was found is kept for the next questions.  If threads mix two
 * answers, or a hole is punched in the meantime, holes count as data for a while; data is
 * never wrong. */
void
hostfile_parts (struct storage *s, uint64_t offset, uint64_t count,
                struct storage_parts *parts)
{
  struct hostfile *const f = hostfile_of (s);
  const uint64_t known = atomic_load (&f->data_to);
  const int fd = f->fd;
  off_t data, end;

  parts->n = 1;
  parts->lens[0] = count;
  parts->hole = false;
  if (offset < known && offset >= atomic_load (&f->data_from)) {
    parts->lens[0] = known - offset;
    return;
  }

  /* lseek moves the file offset, which all threads share and none uses: all I/O is
   * positional, so no lock is needed. */
  data = lseek (fd, offset, SEEK_DATA);
  if (data == -1) {
    /* ENXIO: there is no data from here on.  Any other error: the host does not know; if
     * there is a real problem, the read will report it. */
    parts->hole = errno == ENXIO;
    return;
  }
  if ((uint64_t) data > offset) {
    parts->hole = true;
    parts->lens[0] = data - offset;
    return;
  }
  end = lseek (fd, offset, SEEK_HOLE);
  /* They are equal if a hole was punched in the meantime. */
  if (end == -1 || (uint64_t) end <= offset)
    return;
  parts->lens[0] = end - offset;
  atomic_store (&f->data_from, offset);
  atomic_store (&f->data_to, end);
}

void
hostfile_prefetch (struct storage *s, uint64_t offset, uint64_t count)
{
  posix_fadvise (hostfile_of (s)->fd, offset, count, POSIX_FADV_WILLNEED);
}

void
hostfile_write_back (struct storage *s, uint64_t offset, uint64_t count)
{
  sync_file_range (hostfile_of (s)->fd, offset, count, SYNC_FILE_RANGE_WRITE);
}
