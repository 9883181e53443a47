/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do zeros get into an external data file?
 *
 * Specification: "Header" (incompatible bit 2, autoclear bit 1).
 *
 * Guest data have their place there once and for all, so nothing is allocated or freed.
 * There are two sorts of such files:
 *
 * An ordinary one has meaning only together with the image: zeros are an L2 entry as
 * always, and all that is to be done here is to give space back.  No quarantine is
 * needed (R4): a write that is still under way to a trimmed cluster lands in the place of
 * its own guest offset, where nobody looks.
 *
 * A raw one is to be the disk for programs that know nothing of the image.  There zeros
 * go into the file and the mapping does not change at all: were it to say "zeros", a
 * write that is still under way would make the two disagree.
 *
 * Encrypted zeros must be written, as any other data.
 *
 * Locks: none; datafile_release is called under a claim.
 */

#include <config.h>

#include <errno.h>

#include "bytes.h"
#include "datafile.h"
#include "report.h"
#include "request.h"

static const char zeros[256u << 10];

void
datafile_release (const struct view *v, uint64_t start, uint64_t len)
{
  const uint64_t size = hostfile_size (v->w->data);

  if (start < size && v->w->discard)
    hostfile_punch (v->w->data, start, min64 (len, size - start));
}

/* The mapping may say that some of it is zeros already; that of the others is
 * changed, if it has to be. */
static int
write_encrypted (const struct view *v, uint64_t count, uint64_t offset,
                 bool fast, bool *settle)
{
  uint64_t n;
  int r;

  if (fast) {
    r = request_reads_zero (v, offset, count);
    if (r == 0)
      errno = ENOTSUP;
    return r == 1 ? 0 : -1;
  }
  for (; count > 0; offset += n, count -= n) {
    n = min64 (count, sizeof zeros);
    r = request_reads_zero (v, offset, n);
    if (r == -1 ||
        (r == 0 && write_data (v, zeros, n, offset, false, settle) == -1))
      return -1;
  }
  return 0;
}

/* Straight into the file: clusters without data have zeros there. */
static int
write_plain (const struct view *v, uint64_t count, uint64_t offset)
{
  struct iovec iov = { .iov_base = (void *) zeros };

  for (; count > 0; offset += iov.iov_len, count -= iov.iov_len) {
    iov.iov_len = min64 (count, sizeof zeros);
    if (payload_write (v->w->payload, &iov, 1, offset, offset, false) == -1)
      return -1;
  }
  return 0;
}

int
datafile_zero (const struct view *v, uint64_t count, uint64_t offset,
               bool unmap, bool fast, bool *settle)
{
  int r;

  *settle = true;
  if (payload_is_encrypted (v->w->payload))
    return write_encrypted (v, count, offset, fast, settle);
  r = unmap ? hostfile_punch (v->w->data, offset, count)
    : hostfile_zero (v->w->data, offset, count);
  if (r != 0)
    return r == -1 ? -1 : 0;
  if (fast) {
    errno = ENOTSUP;
    return -1;
  }
  return write_plain (v, count, offset);
}

int
datafile_trim (const struct view *v, uint64_t count, uint64_t offset,
               bool *settle)
{
  *settle = true;
  if (payload_is_encrypted (v->w->payload))
    return 0;
  return hostfile_punch (v->w->data, offset, count) == -1 ? -1 : 0;
}
