/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do two disks show the same, and where do they first differ?
 *
 * Several threads (chunks.c) read both disks, and compare what they read.  What both know
 * to be zeros is not read; if only one of them knows that, the other one is read alone.
 *
 * Chunks are taken in order, so when one thread meets a difference, all that precedes it
 * is done or in work.  The others go on up to the lowest difference known, which is at
 * last the first one.  So it is with what cannot be read: a difference before it is the
 * result, one behind it is not, whichever a thread meets first.
 *
 * Locks: comparison.lock guards what is known of the end; the ends have theirs.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "copy/difference.h"

/* Bytes that are read of each disk at a time: they fit into the cache of a processor. */
#define PIECE (UINT64_C (256) << 10)
#define SECTOR UINT64_C (512)

struct comparison {
  const struct copy_end *ends[2];
  bool kinds;
  _Atomic uint64_t checked;

  pthread_mutex_t lock;
  /* The lowest offset known to differ, or where reading failed; UINT64_MAX: none.
   * Changed with the lock. */
  _Atomic uint64_t end;
  bool kind;                    /* in what it is: see struct difference; guarded */
  int error;                    /* errno, of reading there; 0: it differs; guarded */
  char *said;                   /* of that error: see report_take_kept; guarded */
};

/* What one thread knows. */
struct looks { struct storage_holes known[2]; };

/* ERR: errno, of reading at OFFSET, which was reported; or 0: there they differ. */
static void
note_end (struct comparison *c, uint64_t offset, bool kind, int err)
{
  char *said = err ? report_take_kept () : NULL;
  LOCK_FOR_BLOCK (&c->lock);

  if (offset < atomic_load (&c->end)) {
    report_taken (c->said, false);
    c->said = said;
    c->kind = kind;
    c->error = err;
    atomic_store (&c->end, offset);
  }
  else
    report_taken (said, false);
}

/* What both ends are at AT, for at most *LEN bytes, which may become fewer. */
static int
look_at_both (const struct comparison *c, struct looks *l, uint64_t at, uint64_t *len,
              enum extent_type types[2])
{
  struct extent x;

  for (int i = 0; i < 2; i++) {
    const struct copy_end *const e = c->ends[i];

    types[i] = EXTENT_ZERO;
    if (at >= e->size)
      continue;
    x.len = *len = min64 (*len, e->size - at);
    if (e->ops->extent (e, at, &x, &l->known[i]) == -1)
      return -1;
    *len = min64 (*len, x.len);
    types[i] = x.type;
  }
  return 0;
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

/* [at, at + len), at most a piece. */
static int
compare_piece (struct comparison *c, char *buf, uint64_t at, uint64_t len,
               const enum extent_type types[2])
{
  const char *a = NULL, *b = NULL;

  for (int i = 0; i < 2; i++)
    if (types[i] == EXTENT_DATA) {
      if (c->ends[i]->ops->read (c->ends[i], buf, len, at) == -1)
        return -1;
      *(a ? &b : &a) = buf;
      buf += PIECE;
    }
  if (a && !(b ? memcmp (a, b, len) == 0 : bytes_are_zero (a, len)))
    note_end (c, round_down (at + first_difference (a, b, len), SECTOR), false, 0);
  return 0;
}

static int
compare_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end,
               uint64_t *copied)
{
  struct comparison *c = opaque;
  enum extent_type types[2];
  struct looks looks;
  uint64_t at = start, stop, len;
  int r = 0;

  (void) copied;
  for (int i = 0; i < 2; i++)
    storage_holes_begin (&looks.known[i], false);
  while (r == 0 && at < end && at < atomic_load (&c->end)) {
    len = end - at;
    r = look_at_both (c, &looks, at, &len, types);
    if (r == 0 && c->kinds && types[0] != types[1])
      note_end (c, at, true, 0);
    stop = at + len;
    if (r == 0 && types[0] != EXTENT_DATA && types[1] != EXTENT_DATA)
      at = stop;
    while (r == 0 && at < stop && at < atomic_load (&c->end)) {
      len = min64 (stop - at, PIECE - at % PIECE);
      r = compare_piece (c, scratch, at, len, types);
      if (r == 0)
        at += len;
    }
  }
  atomic_fetch_add (&c->checked, at - start);
  if (r == -1)
    note_end (c, at, false, errno);
  return 0;
}

static int
find (struct comparison *c, const struct chunks_words *words,
      const struct chunks_watch *watch)
{
  const struct chunks_job job = {
    .words = *words, .size = max64 (c->ends[0]->size, c->ends[1]->size),
    .scratch = 2 * PIECE, .remote = c->ends[0]->remote || c->ends[1]->remote, .opaque = c,
    .work = compare_chunk,
  };
  uint64_t copied;

  if (chunks_may_begin (words, job.size, watch) == -1 ||
      chunks_run (&job, watch, &copied) == -1)
    return -1;
  if (c->error == 0)
    return 0;
  report_taken (c->said, true);
  c->said = NULL;
  return chunks_cut_short (words, c->error, c->end, job.size);
}

int
difference_find (const struct copy_end *a, const struct copy_end *b, bool kinds,
                 const struct chunks_words *words, const struct chunks_watch *watch,
                 struct difference *d)
{
  struct comparison c = {
    .ends = { a, b }, .kinds = kinds, .end = UINT64_MAX,
    .lock = PTHREAD_MUTEX_INITIALIZER,
  };
  const int r = find (&c, words, watch);

  report_taken (c.said, false);
  *d = (struct difference) { c.end, c.kind, c.checked };
  return r;
}
