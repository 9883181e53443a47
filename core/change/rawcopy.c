/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk get into a raw file?
 *
 * Several threads (copy.c) read what a client would see, and write it to a new file, in
 * which zeros are holes.  The file appears when it is complete (newfile.c).
 *
 * A client could do the same over NBD.  But then each byte is copied twice more, through
 * a socket, and that takes as long as all else.
 *
 * Locks: none; the file and the export have theirs.
 */

#include <config.h>

#include <errno.h>

#include "storage/newfile.h"
#include "disk/export.h"
#include "copy/copy.h"
#include "change/rawcopy.h"

/* Bytes of zeros that become a hole. */
#define BLOCK 4096

static int
copy (struct disk *d, struct export *from, struct storage *to, const char *path,
      const struct chunks_watch *watch, uint64_t *copied)
{
  const struct chunks_words words = { .path = path, .what = "copying the disk" };
  struct copy c = {
    .from = copy_export (d, from), .to = copy_storage (to, false),
    .zeros = COPY_ZEROS_SKIP, .sparse = BLOCK,
  };

  return chunks_may_begin (&words, c.from.size, watch) == -1 ||
    storage_truncate (to, c.from.size) == -1 ? -1
    : copy_all (&c, &words, false, watch, copied);
}

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
  struct newfile *file;
  struct export *from;
  int r, err;

  *copied = 0;
  if (newfile_begin (path, &options, &file) == -1)
    return -1;
  from = export_open (d, "", false);
  r = from ? copy (d, from, newfile_file (file), path, watch, copied) : -1;
  err = errno;
  if (from && export_close (from) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  errno = err;
  if (r == 0)
    r = newfile_publish (file);
  newfile_end (file);
  return r;
}
