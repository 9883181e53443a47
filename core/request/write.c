/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a write request of a client carried out?
 *
 * Bitmaps record it, and its data is written (writing.c).  With detect-zeroes, a request
 * of zeros is carried out as a zero request.
 */

#include <config.h>

#include "util/bytes.h"
#include "request/request.h"

int
request_write (const struct view *v, const void *buf, uint64_t count,
               uint64_t offset, bool fua)
{
  const enum detect_zeroes detect = v->w->detect_zeroes;
  int r;

  if (detect != DETECT_ZEROES_OFF && bytes_are_zero (buf, count)) {
    r = request_zero (v, count, offset,
                      detect == DETECT_ZEROES_UNMAP ? REQUEST_MAY_TRIM : 0);
    /* Zeros that were there already may wait for a checkpoint. */
    return r == 0 && fua ? 1 : r;
  }
  if (bitmap_record (v->w->bitmaps, offset, count) == -1)
    return -1;
  return write_data (v, buf, count, offset, fua);
}
