/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a view an end of a copy?
 *
 * It is read as it is, outside of read sections: for layers that are no export of their
 * own.
 *
 * Locks: none.
 */

#include <config.h>

#include "copy/copyend.h"

#define PIECE (UINT64_C (256) << 10)

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  const struct extents_query query = {
    .emit = extent_keep, .opaque = x, .one = true, .end = at + x->len, .known = known,
  };

  return request_extents (e->view, x->len, at, &query);
}

static int
read_view (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  return request_read (e->view, buf, count, at);
}

struct copy_end
copy_view (const struct view *v)
{
  static const struct copy_ops ops = { .extent = extent, .read = read_view };

  return (struct copy_end) {
    .ops = &ops, .view = v, .size = v->size, .piece = PIECE,
    .remote = layers_are_remote (v->layers),
  };
}
