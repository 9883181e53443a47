/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can the data of a disk stay out of the host's memory (cache=none), without the
 * alignment rules of O_DIRECT?
 *
 * The data goes through the page cache as always.  Data that was read is dropped at
 * once.  For data that was written, writeback starts at once; the data is dropped when as
 * many other writes have followed as the ring has places.  By then it is usually on the
 * disk, so waiting for it costs little.
 *
 * All of this is advice to the kernel and does not change which bytes are written, or
 * what a sync promises.  Dropping never loses data, because the kernel keeps dirty
 * pages.  But there is a trap: waiting for a writeback with sync_file_range consumes its
 * error, which fdatasync would then not report.  So dropcache_write returns it to its
 * caller.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "storage/dropcache.h"

/* Writes in progress before the next one waits for the oldest. */
#define RING_SIZE 16

struct window {
  uint64_t offset, count;       /* count 0: none */
};

struct dropcache {
  int fd;                       /* fixed; belongs to the caller */
  uint64_t page_size;           /* fixed */

  pthread_mutex_t lock;         /* guards the fields below; not held during I/O */
  struct window ring[RING_SIZE];
  unsigned next;
};

struct dropcache *
dropcache_new (int fd)
{
  struct dropcache *dc = calloc (1, sizeof *dc);

  if (dc == NULL)
    return NULL;
  dc->fd = fd;
  dc->page_size = sysconf (_SC_PAGESIZE);
  pthread_mutex_init (&dc->lock, NULL);
  return dc;
}

void
dropcache_free (struct dropcache *dc)
{
  if (dc == NULL)
    return;
  pthread_mutex_destroy (&dc->lock);
  free (dc);
}

/* Drops the clean pages of a range. */
static void
drop (struct dropcache *dc, uint64_t offset, uint64_t count)
{
  /* The kernel ignores pages that are only partly within the range. */
  uint64_t start = round_down (offset, dc->page_size);
  uint64_t end = round_up (offset + count, dc->page_size);

  posix_fadvise (dc->fd, start, end - start, POSIX_FADV_DONTNEED);
}

void
dropcache_read (struct dropcache *dc, uint64_t offset, uint64_t count)
{
  drop (dc, offset, count);
}

int
dropcache_write (struct dropcache *dc, uint64_t offset, uint64_t count)
{
  struct window old;
  int err = 0;

  /* Starts writeback.  Does not look at errors, so it consumes none. */
  sync_file_range (dc->fd, offset, count, SYNC_FILE_RANGE_WRITE);
  {
    LOCK_FOR_BLOCK (&dc->lock);

    old = dc->ring[dc->next];
    dc->ring[dc->next] = (struct window) { offset, count };
    dc->next = (dc->next + 1) % RING_SIZE;
  }
  if (old.count == 0)
    return 0;

  /* Not every error means a lost write: with ESPIPE, a block device or filesystem says
   * that it does not support this. */
  if (sync_file_range (dc->fd, old.offset, old.count,
                       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                       SYNC_FILE_RANGE_WAIT_AFTER) == -1 &&
      (errno == EIO || errno == ENOSPC || errno == EDQUOT))
    err = errno;
  drop (dc, old.offset, old.count);
  return err;
}

/* After a sync, no write in the ring needs to be waited for. */
void
dropcache_sync (struct dropcache *dc)
{
  struct window ring[RING_SIZE];

  {
    LOCK_FOR_BLOCK (&dc->lock);

    memcpy (ring, dc->ring, sizeof ring);
    memset (dc->ring, 0, sizeof dc->ring);
  }
  for (unsigned i = 0; i < RING_SIZE; i++)
    if (ring[i].count > 0)
      drop (dc, ring[i].offset, ring[i].count);
}
