/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is in a raw file, a device, or the export of an NBD server?
 *
 * Locks: none.
 */

#include <config.h>

#include "util/bytes.h"
#include "img/rawdisk.h"

#define SECTOR 512

struct storage *
rawdisk_open (const struct imagefile *f)
{
  const struct storage_options options = {
    .lock = f->options.lock, .cache = f->options.cache, .link = &f->options.link
  };
  struct storage *s;

  return storage_open (f->path, &options, &s) == 0 ? s : NULL;
}

int
rawdisk_each (struct storage *s, int (*fn) (void *, const struct map_entry *),
              void *opaque)
{
  const uint64_t size = storage_size (s), end = round_up (size, SECTOR);
  struct map_entry e = { .present = true, .has_offset = true };
  struct storage_holes known;
  uint64_t len;
  bool hole;

  storage_holes_begin (&known, false);
  for (uint64_t at = 0; at < end; at += len) {
    /* What is behind the end of the file reads as zeros. */
    len = at < size ? size - at : end - at;
    hole = at >= size || storage_hole_ahead (s, &known, at, size, &len);
    if (e.length > 0 && hole != e.zero) {
      if (fn (opaque, &e) == -1)
        return -1;
      e.start = e.offset = at;
      e.length = 0;
    }
    e.length += len;
    e.zero = hole;
    e.data = !hole;
  }
  return e.length > 0 ? fn (opaque, &e) : 0;
}
