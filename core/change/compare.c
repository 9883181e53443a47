/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do two disks show the same, and where do they first differ?
 *
 * Several threads (chunks.c) read what clients would see of both disks, and compare it.
 * What both know to be zeros is not read; if only one of them knows that, the other one
 * is read alone.  The shorter disk goes on with zeros.
 *
 * Chunks are taken in order, so when one thread meets a difference, all that precedes it
 * is done or in work.  The others go on up to the lowest difference known, which is at
 * last the first one.  So it is with what cannot be read: a difference before it is the
 * result, one behind it is not, whichever a thread meets first.
 *
 * The result is in a report, and not in the exit status: that disks differ is no error.
 *
 * A client could do the same over NBD.  But then each byte is copied four times more,
 * through two sockets.
 *
 * Locks: comparison.lock guards what is known of the end; the exports have theirs.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "storage/reportfile.h"
#include "disk/export.h"
#include "change/compare.h"

/* Bytes that are read of each disk at a time: they fit into the cache of a processor. */
#define PIECE (UINT64_C (256) << 10)

/* Differences are reported for sectors, as qemu-img does. */
#define SECTOR UINT64_C (512)

static const struct report_kind kind = { "compare", { "{\n  \"compared-with\": " } };

/* One of the disks: an export, or a raw file. */
struct side {
  struct export *export;        /* or NULL */
  struct storage *raw;
  uint64_t size;                /* bytes */
};

struct comparison {
  struct side sides[2];
  bool far;                     /* one of them is: see chunks.h */

  pthread_mutex_t lock;
  /* The lowest offset known to differ, or where reading failed; UINT64_MAX: none.
   * Changed with the lock. */
  _Atomic uint64_t end;
  int error;                    /* errno, of reading there; 0: it differs; guarded */
  char *said;                   /* of that error: see report_take_kept; guarded */
};

/* --- what both show --- */

/* Does the disk show zeros at AT?  1; or 0, if it must be read; or -1.  May shorten *LEN
 * to the length of which that is true. */
static int
look (const struct side *s, uint64_t at, uint64_t *len)
{
  struct extent x;

  if (at >= s->size)
    return 1;
  *len = min64 (*len, s->size - at);
  if (s->raw)
    return storage_hole (s->raw, at, len);
  if (export_extents (s->export, *len, at, true, extent_keep, &x) == -1)
    return -1;
  *len = min64 (*len, x.len);
  return x.type != EXTENT_DATA;
}

static int
read_side (const struct side *s, void *buf, uint64_t count, uint64_t at)
{
  return s->raw ? storage_read (s->raw, buf, count, at)
    : export_read (s->export, buf, count, at);
}

/* --- comparing --- */

/* ERR: errno, of reading at OFFSET, which was reported; or 0: there they differ. */
static void
note_end (struct comparison *c, uint64_t offset, int err)
{
  char *said = err ? report_take_kept () : NULL;
  LOCK_FOR_BLOCK (&c->lock);

  if (offset < atomic_load (&c->end)) {
    report_taken (c->said, false);
    c->said = said;
    c->error = err;
    atomic_store (&c->end, offset);
  }
  else
    report_taken (said, false);
}

/* A is to be compared with B, or (NULL) with zeros.  They differ. */
static uint64_t
first_difference (const char *a, const char *b, uint64_t len)
{
  uint64_t i;

  for (i = 0; i < len; i++)
    if (a[i] != (b ? b[i] : 0))
      break;
  return i;
}

/* [at, at + len), at most a piece, of which side I shows zeros if ZERO[I]. */
static int
compare_piece (struct comparison *c, char *scratch, uint64_t at, uint64_t len,
               const bool zero[2])
{
  const char *a = NULL, *b = NULL;
  char *buf = scratch;

  for (int i = 0; i < 2; i++)
    if (!zero[i]) {
      if (read_side (&c->sides[i], buf, len, at) == -1)
        return -1;
      *(a ? &b : &a) = buf;
      buf += PIECE;
    }
  if (a && !(b ? memcmp (a, b, len) == 0 : bytes_are_zero (a, len)))
    note_end (c, round_down (at + first_difference (a, b, len), SECTOR), 0);
  return 0;
}

/* *LEN: the length of which ZERO is true. */
static int
look_at_both (struct comparison *c, uint64_t at, uint64_t *len, bool zero[2])
{
  int r;

  for (int i = 0; i < 2; i++) {
    r = look (&c->sides[i], at, len);
    if (r == -1)
      return -1;
    zero[i] = r;
  }
  return 0;
}

static int
compare_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end,
               uint64_t *copied)
{
  struct comparison *c = opaque;
  uint64_t at, stop, len;
  bool zero[2];
  int r = 0;

  (void) copied;
  for (at = start; r == 0 && at < end && at < atomic_load (&c->end);) {
    len = end - at;
    r = look_at_both (c, at, &len, zero);
    if (r == 0 && zero[0] && zero[1]) {
      at += len;
      continue;
    }
    for (stop = at + len; r == 0 && at < stop && at < atomic_load (&c->end);) {
      len = min64 (stop - at, PIECE - at % PIECE);
      r = compare_piece (c, scratch, at, len, zero);
      if (r == 0)
        at += len;
    }
  }
  if (r == -1)
    note_end (c, at, errno);
  return 0;
}

/* ERR: errno.  Returns -1. */
static int
cut_short (const struct disk_options *o, int err, uint64_t done, uint64_t size)
{
  report_error ("%s: comparing %s after %" PRIu64 " of %" PRIu64 " bytes", o->path,
                err == EINTR ? "was stopped" : "failed", done, size);
  errno = err;
  return -1;
}

static int
compare_all (struct comparison *c, const struct disk_options *o,
             const struct chunks_watch *watch)
{
  const struct chunks_job job = {
    .size = max64 (c->sides[0].size, c->sides[1].size), .scratch = 2 * PIECE,
    .far = c->far, .opaque = c, .work = compare_chunk,
  };
  uint64_t done, copied;

  if (!chunks_tell (watch, 0, job.size, 0))
    return cut_short (o, EINTR, 0, job.size);
  if (chunks_run (&job, watch, &done, &copied) == -1)
    return cut_short (o, errno, done, job.size);
  if (c->error == 0)
    return 0;
  report_taken (c->said, true);
  c->said = NULL;
  return cut_short (o, c->error, c->end, job.size);
}

/* --- the report --- */

struct result {
  const struct comparison *c;
  const char *with;
};

static int
print (FILE *fp, const void *opaque)
{
  const struct result *r = opaque;
  const uint64_t first = r->c->end;

  return jsontext_write (jsontext_object (
      { "compared-with", jsontext_string (r->with) },
      { "virtual-size", jsontext_number (r->c->sides[0].size) },
      { "other-virtual-size", jsontext_number (r->c->sides[1].size) },
      { "difference", first == UINT64_MAX ? json_null () : jsontext_number (first) }),
    fp);
}

/* --- the other image --- */

/* Of the disk's options, those for how files are used, and the passphrase. */
static struct disk_options
options_for_other (const struct disk_options *o, const char *path)
{
  struct disk_options other = *o;

  other.path = path;
  other.in_dir = (struct dirfile) { .name = NULL };
  other.backing = BACKING_FOLLOW;
  other.backing_path = other.backing_format = NULL;
  other.data_file = DATA_FILE_FOLLOW;
  other.data_file_path = NULL;
  other.snapshot = NULL;
  other.copy_on_read = false;
  return other;
}

/* *DISK: of a qcow2 image. */
static int
open_other (const struct disk_options *o, const struct compare *compare, struct side *s,
            struct disk **disk)
{
  struct storage_options file = disk_chain_options (o).image.file;

  if (compare->raw) {
    file.try_writable = false;
    if (storage_open (o->path, &file, &s->raw) == -1)
      return -1;
    s->size = storage_size (s->raw);
    return 0;
  }
  if (disk_open (o, disk) == -1)
    return -1;
  s->export = export_open (*disk, "", false);
  if (s->export == NULL)
    return -1;
  s->size = export_size (s->export);
  return 0;
}

/* Keeps errno. */
static void
close_side (struct side *s)
{
  KEEP_ERRNO_FOR_BLOCK;

  storage_close (s->raw);
  if (s->export)
    export_close (s->export);   /* nothing was written */
}

/* --- both --- */

static bool
is_far (struct disk *d)
{
  return layers_are_far (disk_inside (d).view->layers);
}

int
compare_check (const struct compare *compare)
{
  return reportfile_check (&kind, compare->report, false);
}

static int
compare_sides (struct comparison *c, const struct disk_options *o,
               const struct compare *compare, const struct chunks_watch *watch)
{
  const struct result result = { c, compare->with };

  return compare_all (c, o, watch) == -1 ? -1
    : reportfile_write (&kind, compare->report, true, print, &result);
}

int
compare_disk (struct disk *d, const struct disk_options *o, const struct compare *compare,
              const struct chunks_watch *watch, uint64_t *difference)
{
  const struct disk_options other = options_for_other (o, compare->with);
  struct comparison c = { .end = UINT64_MAX, .lock = PTHREAD_MUTEX_INITIALIZER };
  struct disk *disk = NULL;
  int r = -1;

  c.sides[0].export = export_open (d, "", false);
  if (c.sides[0].export) {
    c.sides[0].size = export_size (c.sides[0].export);
    if (open_other (&other, compare, &c.sides[1], &disk) == 0) {
      c.far = is_far (d) || (disk ? is_far (disk) : storage_is_far (c.sides[1].raw));
      r = compare_sides (&c, o, compare, watch);
    }
  }
  close_side (&c.sides[0]);
  close_side (&c.sides[1]);
  if (disk) {
    KEEP_ERRNO_FOR_BLOCK;
    disk_close (disk);
  }
  report_taken (c.said, false);
  *difference = c.end;
  return r;
}
