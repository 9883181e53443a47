/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk get into a raw file?
 *
 * Several threads (chunks.c) read what a client would see, and write it to a new file, in
 * which zeros are holes.  The file appears when it is complete (newfile.c).
 *
 * A client could do the same over NBD.  But then each byte is copied twice more, through
 * a socket, and that takes as long as all else.
 *
 * Locks: none; the file and the export have theirs.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "storage/newfile.h"
#include "disk/export.h"
#include "change/rawcopy.h"

/* Bytes that are copied at a time: they fit into the cache of a processor. */
#define PIECE (UINT64_C (256) << 10)
/* Bytes of zeros that become a hole. */
#define BLOCK UINT64_C (4096)

struct rawcopy {
  struct export *from;
  struct storage *to;
  bool far;                     /* the disk is: see chunks.h */
};

/* --- copying --- */

/* Writes the blocks of BUF that are not zeros. */
static int
write_blocks (const struct rawcopy *c, const char *buf, uint64_t count, uint64_t offset,
              uint64_t *copied)
{
  uint64_t from, to;
  bool zero;

  for (from = 0; from < count; from = to) {
    zero = bytes_are_zero (buf + from, min64 (BLOCK, count - from));
    for (to = from + BLOCK; to < count; to += BLOCK)
      if (bytes_are_zero (buf + to, min64 (BLOCK, count - to)) != zero)
        break;
    to = min64 (to, count);
    if (zero)
      continue;
    if (storage_write (c->to, buf + from, to - from, offset + from) == -1)
      return -1;
    *copied += to - from;
  }
  return 0;
}

static int
copy_data (const struct rawcopy *c, void *scratch, uint64_t start, uint64_t end,
           uint64_t *copied)
{
  uint64_t at, n;

  for (at = start; at < end; at += n) {
    n = min64 (end - at, PIECE - at % PIECE);
    if (export_read (c->from, scratch, n, at) == -1 ||
        write_blocks (c, scratch, n, at, copied) == -1)
      return -1;
  }
  return 0;
}

static int
copy_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end, uint64_t *copied)
{
  const struct rawcopy *c = opaque;
  struct extent x = { .len = 0 };
  uint64_t at;

  for (at = start; at < end; at += x.len) {
    if (export_extents (c->from, end - at, at, true, extent_keep, &x) == -1)
      return -1;
    x.len = min64 (x.len, end - at);
    if (x.type == EXTENT_DATA && copy_data (c, scratch, at, at + x.len, copied) == -1)
      return -1;
  }
  return 0;
}

/* ERR: errno.  Returns -1. */
static int
cut_short (const struct rawcopy *c, const char *path, int err, uint64_t done)
{
  report_error ("%s: copying the disk %s after %" PRIu64 " of %" PRIu64 " bytes", path,
                err == EINTR ? "was stopped" : "failed", done, export_size (c->from));
  errno = err;
  return -1;
}

static int
copy_all (struct rawcopy *c, const char *path, const struct chunks_watch *watch,
          uint64_t *copied)
{
  const struct chunks_job job = {
    .size = export_size (c->from), .scratch = PIECE, .far = c->far, .opaque = c,
    .work = copy_chunk,
  };
  uint64_t done;

  if (!chunks_tell (watch, 0, job.size, 0))
    return cut_short (c, path, EINTR, 0);
  if (storage_truncate (c->to, job.size) == -1)
    return -1;
  return chunks_run (&job, watch, &done, copied) == 0 ? 0
    : cut_short (c, path, errno, done);
}

/* --- the file --- */

int
rawcopy_check (const char *path)
{
  return newfile_check (path);
}

int
rawcopy_disk (struct disk *d, const struct disk_options *o, const char *path,
              const struct chunks_watch *watch, uint64_t *copied)
{
  const struct storage_options options = { .cache = o->cache, .hooks = o->hooks };
  struct rawcopy c = { .far = layers_are_far (disk_inside (d).view->layers) };
  struct newfile *file;
  int r, err;

  *copied = 0;
  if (newfile_begin (path, &options, &file) == -1)
    return -1;
  c.to = newfile_file (file);
  c.from = export_open (d, "", false);
  r = c.from ? copy_all (&c, path, watch, copied) : -1;
  err = errno;
  if (c.from && export_close (c.from) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  errno = err;
  if (r == 0)
    r = newfile_publish (file);
  newfile_end (file);
  return r;
}
