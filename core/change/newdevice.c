/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a new image replace what a device contains?
 *
 * A device cannot appear at once and complete, as a file can (newfile.c).  The first
 * sector takes the place of the name: it decides whether there is an image.
 *
 *   check     the whole device must read as zeros, or the user has allowed to overwrite
 *             it.  Where the storage knows of holes, these are not read
 *   erase     the first sector becomes zeros, durably: there is no old image any more
 *   write     everything but the first sector (create.c), then a sync
 *   publish   the first sector, then a sync
 *
 * So a crash leaves the old contents, or no image, or the whole new one, but never a
 * header with tables of another image.  A sector is written completely or not at all.
 *
 * Old data behind the metadata does no harm: nothing refers to it, and the allocator does
 * not take clusters of a device for zeros.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "change/newdevice.h"

/* The largest piece that is zeroed, or skipped, at a time. */
#define LONGEST (UINT64_C (64) << 20)
/* After a failure, what was allocated behind the image is searched for.  It ends where
 * as many zeros follow. */
#define GAP (UINT64_C (64) << 20)
#define CHUNK (UINT64_C (1) << 20)

bool
newdevice_is (const char *path)
{
  struct stat st;

  return nbduri_is (path) || (stat (path, &st) == 0 && S_ISBLK (st.st_mode));
}

int
newdevice_open (const char *path, const struct storage_options *options,
                struct storage **result)
{
  const struct storage_options mine = {
    .try_writable = true, .claim = true, .lock = options->lock, .link = options->link,
    .hooks = options->hooks,
    .cache = STORAGE_CACHE_NONE,  /* all of it may be read, once */
  };
  struct storage *s;
  const char *why;

  if (storage_open (path, &mine, &s) == -1)
    return -1;
  why = storage_why_readonly (s);
  if (!storage_is_writable (s)) {
    report_error ("%s: cannot create: %s", storage_path (s),
                  why ? why : "the device is not writable");
    errno = EROFS;
  }
  else if (!options->lock || storage_lock (s, STORAGE_WRITER) == 0) {
    *result = s;
    return 0;
  }
  storage_close (s);
  return -1;
}

/* --- reading --- */

/* Looks at the next bytes from *AT on, at most CHUNK of those that may be data.  Sets
 * *LEN to how many.  Returns 1 if they contain data, 0 if they read as zeros, or -1. */
static int
look_at_chunk (struct storage *s, struct storage_holes *known, uint64_t at, void *buf,
               uint64_t chunk, uint64_t *len)
{
  *len = min64 (storage_size (s) - at, LONGEST);
  if (storage_hole_ahead (s, known, at, storage_size (s), len))
    return 0;
  *len = min64 (*len, chunk - at % chunk);
  if (storage_read (s, buf, *len, at) == -1)
    return -1;
  return !bytes_are_zero (buf, *len);
}

int
newdevice_check_zeros (struct storage *s, void *buf, uint64_t chunk,
                       const struct newdevice_watch *watch)
{
  const uint8_t *const bytes = buf;
  struct storage_holes known;
  uint64_t at, len, i;
  int r;

  storage_holes_begin (&known, false);
  for (at = 0; at < storage_size (s); at += len) {
    r = look_at_chunk (s, &known, at, buf, chunk, &len);
    if (r == -1)
      return -1;
    if (r == 1) {
      for (i = 0; bytes[i] == 0; i++)
        ;
      return report_refusal (EEXIST, "%s: cannot create: there is data at offset %" PRIu64
                             "; %s", storage_path (s), at + i, remedy (REMEDY_OVERWRITE));
    }
    if (watch->advance (watch->opaque, len) == -1)
      return -1;
  }
  return 0;
}

/* --- zeroing --- */

int
newdevice_zero (struct storage *s, uint64_t offset, uint64_t end,
                enum newdevice_zeros how, const struct newdevice_watch *watch)
{
  const uint64_t longest = how == NEWDEVICE_WRITE ? CHUNK : LONGEST;
  uint64_t len;
  int r;

  for (; offset < end; offset += len) {
    len = min64 (end - offset, longest - offset % longest);
    r = how == NEWDEVICE_WRITE ? storage_write_zeros (s, offset, len)
      : storage_make_zeros (s, how == NEWDEVICE_FREE, offset, len);
    if (r == -1 || watch->advance (watch->opaque, len) == -1)
      return -1;
  }
  return 0;
}

/* --- the first sector --- */

static int
write_first (struct storage *s, const void *first)
{
  return storage_write (s, first, NEWDEVICE_FIRST, 0) == -1 ? -1 : storage_sync (s);
}

int
newdevice_erase (struct storage *s)
{
  static const uint8_t zeros[NEWDEVICE_FIRST];

  return write_first (s, zeros);
}

int
newdevice_publish (struct storage *s, const void *first)
{
  return storage_sync (s) == -1 ? -1 : write_first (s, first);
}

/* --- removing --- */

static int
go_on (void *opaque, uint64_t bytes)
{
  (void) opaque, (void) bytes;
  return 0;
}

/* Zeros what was written behind END: a few tables, of changes before serving. */
static int
zero_behind (struct storage *s, uint64_t end, void *buf)
{
  static const struct newdevice_watch watch = { go_on, NULL };
  struct storage_holes known;
  uint64_t at, len, last = end;
  int r;

  storage_holes_begin (&known, false);
  for (at = end; at < storage_size (s) && at - last < GAP; at += len) {
    r = look_at_chunk (s, &known, at, buf, CHUNK, &len);
    if (r == 1) {
      r = newdevice_zero (s, at, at + len, NEWDEVICE_FREE, &watch);
      last = at + len;
    }
    if (r == -1)
      return -1;
  }
  return 0;
}

void
newdevice_withdraw (struct storage *s, uint64_t end, bool was_zeros)
{
  static const struct newdevice_watch watch = { go_on, NULL };
  KEEP_ERRNO_FOR_BLOCK;
  CLEANUP_FREE void *buf = malloc (CHUNK);

  if (buf == NULL || newdevice_erase (s) == -1 || !was_zeros)
    return;
  end = min64 (end, storage_size (s));
  if (newdevice_zero (s, 0, end, NEWDEVICE_FREE, &watch) == 0 &&
      zero_behind (s, end, buf) == 0)
    storage_sync (s);
}
