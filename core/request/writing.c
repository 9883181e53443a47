/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a write do if no clusters have to be allocated?
 *
 * A cluster that is allocated and has no other references (COPIED) is written in place:
 * no metadata changes, no claim is needed, and adjacent clusters are written with one
 * call.  The rest is done by cow.c, or with compress=on by compressed.c.
 *
 * A write in place during a trim of the same cluster may go to a host cluster that has
 * just been freed.  The read section of the caller keeps that cluster from being reused
 * until the write has ended (R4).
 */

#include <config.h>

#include "util/bytes.h"
#include "util/zeros.h"
#include "request/request.h"

/* The run at OFFSET is RUN.  Sets *LEN to the number of bytes that can be written in
 * place with one call, and *UNSETTLED if any of their mappings is unsettled. */
static int
extend_in_place (const struct view *v, uint64_t offset, uint64_t count,
                 const struct run *run, uint64_t *len, bool *unsettled)
{
  struct run next;

  *len = run->len;
  *unsettled = run->unsettled;
  while (*len < count) {
    if (l2_lookup (v->w->l2, offset + *len, count - *len, &next) == -1)
      return -1;
    if (!run_in_place (&next) || next.host != run->host + *len)
      break;
    *len += next.len;
    *unsettled |= next.unsettled;
  }
  return 0;
}

int
write_data (const struct view *v, const void *buf_, uint64_t count,
            uint64_t offset, bool fua)
{
  const struct writable *w = v->w;
  const char *buf = buf_;
  struct run run;
  uint64_t len;
  bool unsettled, waits = false;

  if (health_check (v->image->health) == -1)
    return -1;

  while (count > 0) {
    if (l2_lookup (w->l2, offset, count, &run) == -1)
      return -1;
    if (run_in_place (&run)) {
      struct iovec iov = { .iov_base = (void *) buf };

      if (extend_in_place (v, offset, count, &run, &len, &unsettled) == -1)
        return -1;
      iov.iov_len = len;
      if (guestdata_write (v->image->guestdata, &iov, 1, run.host, offset, fua && !unsettled
                           ? STORAGE_DURABLE : STORAGE_IN_PLACE) == -1)
        return -1;
      waits |= unsettled;
    }
    else {
      if ((w->compressor ? compressed_write : cow_write) (v, buf, count, offset,
                                                          &len) == -1)
        return -1;
      waits = true;
    }
    buf += len;
    offset += len;
    count -= len;
  }
  return waits;
}

int
write_missing_zeros (const struct view *v, uint64_t count, uint64_t offset)
{
  uint64_t n;
  bool waits = false;
  int r;

  for (; count > 0; offset += n, count -= n) {
    n = min64 (count, ZEROS_SIZE);
    r = request_reads_zero (v, offset, n);
    if (r == -1)
      return -1;
    if (r == 1)
      continue;
    r = write_data (v, zero_bytes, n, offset, false);
    if (r == -1)
      return -1;
    waits = true;
  }
  return waits;
}
