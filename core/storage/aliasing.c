/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bytes read to memory that the processor copies to slowly?
 *
 * On processors of AMD (seen with Zen 3), Linux copies from its page cache at a fifth of
 * the speed if the destination begins 1 to 31 bytes behind the source, modulo pages (4K
 * aliasing).  malloc places large blocks 16 bytes behind the beginning of a page, and
 * nbdkit passes on such blocks, so all large reads would be slow.
 *
 * So the bytes are read to a place that is farther behind, and then moved, which is fast
 * because they are still in the processor's cache.  The last ones, which have no space
 * there, go elsewhere, by the same system call.
 *
 * Locks: none.
 */

#include <config.h>

#include <string.h>
#include <sys/uio.h>

#include "util/bytes.h"
#include "storage/aliasing.h"

/* Of any generation: where it is not slow, to move the bytes adds a quarter to the time
 * of a read that the page cache answers. */
bool
aliasing_processor (void)
{
#ifdef __x86_64__
  return __builtin_cpu_is ("amd");
#else
  return false;
#endif
}

ssize_t
aliasing_read (int fd, void *buf, size_t count, uint64_t offset)
{
  const size_t shift = ALIASING_DISTANCE - aliasing_distance (buf, offset);
  char *const to = buf, last[ALIASING_DISTANCE];
  const struct iovec iov[] = { { to + shift, count - shift }, { last, shift } };
  const ssize_t n = preadv (fd, iov, 2, offset);
  size_t moved;

  if (n <= 0)
    return n;
  moved = min64 (n, count - shift);
  memmove (to, to + shift, moved);
  memcpy (to + moved, last, n - moved);
  return n;
}
