/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are several disks, or a part of one, the source of a copy?
 *
 * Parts are few, so they are looked for one after the other.  Behind the end of a disk,
 * its part goes on with zeros.
 *
 * Locks: none.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "copy/copyend.h"

/* That which contains AT. */
static const struct copy_part *
find (const struct copy_end *e, uint64_t at)
{
  const struct copy_part *p = e->parts;

  while (at - p->at >= p->len)
    p++;
  return p;
}

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  const struct copy_part *const p = find (e, at);
  const uint64_t from = p->from + (at - p->at), left = p->len - (at - p->at);

  x->len = min64 (x->len, left);
  if (from >= p->end.size) {
    x->type = EXTENT_ZERO;
    return 0;
  }
  x->len = min64 (x->len, p->end.size - from);
  if (p->end.ops->extent (&p->end, from, x, known) == -1)
    return -1;
  x->len = min64 (x->len, left);
  return 0;
}

static int
read_part (const struct copy_part *p, char *buf, uint64_t count, uint64_t from)
{
  const uint64_t there = from < p->end.size ? min64 (count, p->end.size - from) : 0;

  memset (buf + there, 0, count - there);
  return there == 0 ? 0 : p->end.ops->read (&p->end, buf, there, from);
}

static int
read_join (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  const struct copy_part *p;
  uint64_t n;

  for (char *to = buf; count > 0; to += n, at += n, count -= n) {
    p = find (e, at);
    n = min64 (count, p->len - (at - p->at));
    if (read_part (p, to, n, p->from + (at - p->at)) == -1)
      return -1;
  }
  return 0;
}

struct copy_end
copy_join (const struct copy_part *parts, unsigned n)
{
  static const struct copy_ops ops = { .extent = extent, .read = read_join };
  struct copy_end e = {
    .ops = &ops, .parts = parts, .size = parts[n - 1].at + parts[n - 1].len,
  };

  for (unsigned i = 0; i < n; i++) {
    e.piece = max64 (e.piece, parts[i].end.piece);
    e.remote |= parts[i].end.remote;
    e.in_order |= parts[i].end.in_order;
  }
  return e;
}
