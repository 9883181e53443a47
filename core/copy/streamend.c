/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a pipe an end of a copy?
 *
 * Its bytes come in order.  The copy takes care of that (in_order); here, a read or
 * write simply goes on where the last one ended.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/report.h"
#include "util/zeros.h"
#include "copy/copyend.h"

#define PIECE (UINT64_C (1) << 20)

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  (void) e, (void) at, (void) known;
  x->type = EXTENT_DATA;
  return 0;
}

/* Returns -1. */
static int
failed (const struct copy_end *e, const char *what, uint64_t at)
{
  report_error ("%s: %s at offset %" PRIu64 ": %m", e->stream->path, what, at);
  return -1;
}

static int
read_stream (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  ssize_t n;

  for (uint64_t done = 0; done < count; done += n) {
    do
      n = read (e->stream->fd, (char *) buf + done, count - done);
    while (n == -1 && errno == EINTR);
    if (n == 0)
      errno = ENODATA;
    if (n <= 0)
      return failed (e, n == 0 ? "the end comes too early" : "cannot read", at + done);
  }
  return 0;
}

static int
write_stream (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  ssize_t n;

  for (uint64_t done = 0; done < count; done += n) {
    do
      n = write (e->stream->fd, (const char *) buf + done, count - done);
    while (n == -1 && errno == EINTR);
    if (n == -1)
      return failed (e, "cannot write", at + done);
  }
  return 0;
}

static int
zero_stream (const struct copy_end *e, uint64_t count, uint64_t at)
{
  uint64_t n;

  for (; count > 0; at += n, count -= n) {
    n = min64 (count, ZEROS_SIZE);
    if (write_stream (e, zero_bytes, n, at) == -1)
      return -1;
  }
  return 0;
}

static int
sync_stream (const struct copy_end *e)
{
  (void) e;
  return 0;
}

struct copy_end
copy_stream (const struct copy_stream *s, uint64_t size)
{
  static const struct copy_ops ops = {
    .extent = extent, .read = read_stream, .write = write_stream, .zero = zero_stream,
    .sync = sync_stream,
  };

  return (struct copy_end) {
    .ops = &ops, .stream = s, .size = size, .piece = PIECE, .in_order = true,
  };
}
