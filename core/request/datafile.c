/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are zeros stored in a raw external data file?
 *
 * Specification: "Header" (autoclear bit 1).
 *
 * Programs that know nothing about the image use such a file as the disk.  So zeros go
 * into the file, and the mapping does not change at all: if it said "zeros", a write that
 * is in flight, or one that a crash interrupts, would make the two differ.  Extents finds
 * out about these zeros from the holes that the host makes for them (read.c).
 *
 * Encrypted zeros have to be written, like any other data, and a trim does nothing: a
 * hole would decrypt to noise.
 *
 * (In an ordinary data file zeros are an L2 entry, as always: zero.c, discards.c.)
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>

#include "util/bytes.h"
#include "util/zeros.h"
#include "request/datafile.h"
#include "request/request.h"

/* The mapping may say already that parts of the range are zeros.  The mapping of the
 * other parts changes if it must. */
static int
write_encrypted (const struct view *v, uint64_t count, uint64_t offset,
                 unsigned flags)
{
  int r;

  if (!(flags & REQUEST_FAST))
    return write_missing_zeros (v, count, offset);
  r = request_reads_zero (v, offset, count);
  if (r == 0)
    errno = ENOTSUP;
  return r == 1 ? 0 : -1;
}

/* Writes zeros to the file only: clusters without data have zeros there already. */
static int
write_plain (const struct view *v, uint64_t count, uint64_t offset)
{
  struct iovec iov = { .iov_base = (void *) zero_bytes };

  for (; count > 0; offset += iov.iov_len, count -= iov.iov_len) {
    iov.iov_len = min64 (count, ZEROS_SIZE);
    if (guestdata_write (v->image->guestdata, &iov, 1, offset, offset,
                         STORAGE_IN_PLACE) == -1)
      return -1;
  }
  return 0;
}

int
datafile_zero (const struct view *v, uint64_t count, uint64_t offset,
               unsigned flags)
{
  int r;

  if (guestdata_is_encrypted (v->image->guestdata))
    return write_encrypted (v, count, offset, flags);
  r = (flags & REQUEST_MAY_TRIM) && v->w->discard
    ? storage_punch (v->image->data, offset, count)
    : storage_zero (v->image->data, offset, count);
  if (r != 0)
    return r;
  if (flags & REQUEST_FAST) {
    errno = ENOTSUP;
    return -1;
  }
  return write_plain (v, count, offset) == -1 ? -1 : 1;
}

int
datafile_trim (const struct view *v, uint64_t count, uint64_t offset)
{
  if (guestdata_is_encrypted (v->image->guestdata))
    return 0;
  return storage_punch (v->image->data, offset, count);
}
