/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a raw file, device or export an end of a copy?
 *
 * A hole is zeros that are there: a raw disk contains all of its bytes.  What is a hole
 * already need not become zeros.
 *
 * Locks: none.
 */

#include <config.h>

#include "util/bytes.h"
#include "copy/copyend.h"

/* They fit into the cache of a processor. */
#define PIECE (UINT64_C (256) << 10)

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  x->type = storage_hole_ahead (e->storage, known, at, at + x->len, &x->len)
    ? EXTENT_ZERO : EXTENT_DATA;
  return 0;
}

/* Is it a hole is not the same question as does it read as zeros. */
static int
extent_of_changes (const struct copy_end *e, uint64_t at, struct extent *x,
                   struct storage_holes *known)
{
  bool hole;

  if (storage_what_is_hole (e->storage, known, at, at + x->len, &x->len, &hole) == -1)
    return -1;
  x->type = hole ? EXTENT_HOLE : EXTENT_DATA;
  return 0;
}

static int
read_storage (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  return storage_read (e->storage, buf, count, at);
}

static int
write_storage (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  return storage_write (e->storage, buf, count, at);
}

static int
zero_storage (const struct copy_end *e, uint64_t count, uint64_t at)
{
  uint64_t len;

  for (; count > 0; at += len, count -= len) {
    len = count;
    if (!storage_hole (e->storage, at, &len) &&
        storage_make_zeros (e->storage, e->frees, at, len) == -1)
      return -1;
  }
  return 0;
}

static int
sync_storage (const struct copy_end *e)
{
  return storage_sync (e->storage);
}

struct copy_end
copy_changes (struct storage *s)
{
  static const struct copy_ops ops = { .extent = extent_of_changes, .read = read_storage };
  struct copy_end e = copy_storage (s, false);

  e.ops = &ops;
  return e;
}

struct copy_end
copy_storage (struct storage *s, bool frees)
{
  static const struct copy_ops ops = {
    .extent = extent, .read = read_storage, .write = write_storage, .zero = zero_storage,
    .sync = sync_storage,
  };

  return (struct copy_end) {
    .ops = &ops, .storage = s, .size = storage_size (s), .piece = PIECE,
    .remote = storage_is_remote (s), .frees = frees,
  };
}
