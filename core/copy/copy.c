/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk get from one end to another?
 *
 * The source is asked what it contains.  Zeros that it knows are not read; at the target
 * they become what `zeros' says.  The rest is read piece by piece, and in what was read
 * zeros are found, if they fill blocks (`sparse').  With units, what is written is whole
 * ones: zeros that fill none count as data.
 *
 * Several threads (chunks.c) do that at once, each with a part of the disk and a buffer
 * of one piece.  If an end has to be read or written in order, a part is a piece, and
 * threads take turns: as parts are taken in order, the thread whose turn it is never
 * waits for another one.  One that fails keeps its turn, so that nothing is read or
 * written behind a part that is missing; the others stop waiting once the copy is to end.
 *
 * What cannot be read is read again in halves, down to sectors, if that is wanted
 * (`lost').
 *
 * Locks: copying.lock guards the turn and the pace; the ends have theirs.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "util/unwanted.h"
#include "copy/copy.h"

/* If an end is remote, larger pieces have more bytes in flight. */
#define REMOTE_PIECE (UINT64_C (2) << 20)
#define SECTOR UINT64_C (512)

/* --- reading --- */

static uint64_t
piece_of (const struct copy *c)
{
  return max64 (c->to.piece, c->from.remote || c->to.remote ? REMOTE_PIECE : 0);
}

uint64_t
copy_scratch (const struct copy *c)
{
  return (c->beside ? 2 : 1) * piece_of (c);
}

/* A loss is reported as one range, not sector by sector. */
struct loss { uint64_t at, len; int err; };

static void
tell_loss (const struct copy *c, struct loss *l)
{
  if (l->len > 0)
    c->lost (c->opaque, l->at, l->len, l->err);
  l->len = 0;
}

/* Silently.  -1: it is no loss, but a reason to end. */
static int
salvage (const struct copy *c, char *buf, uint64_t count, uint64_t at, struct loss *l)
{
  const uint64_t half = round_up (count / 2, SECTOR);

  if (c->from.ops->read (&c->from, buf, count, at) == 0)
    return 0;
  if (errno == ENOMEM || unwanted ())
    return -1;
  if (count > SECTOR)
    return salvage (c, buf, half, at, l) == -1 ? -1
      : salvage (c, buf + half, count - half, at + half, l);
  memset (buf, 0, count);
  if (l->len > 0 && l->at + l->len == at)
    l->len += count;
  else {
    tell_loss (c, l);
    *l = (struct loss) { at, count, errno };
  }
  return 0;
}

/* BUF: a piece, and behind it another one for what is beside. */
static int
read_source (const struct copy *c, void *buf, uint64_t count, uint64_t at)
{
  struct loss l = { .len = 0 };
  bool before;
  int r;

  if (c->beside &&
      c->beside->ops->read (c->beside, (char *) buf + piece_of (c), count, at) == -1)
    return -1;
  if (c->lost == NULL || c->from.in_order)
    return c->from.ops->read (&c->from, buf, count, at);
  before = report_silence (true);
  r = salvage (c, buf, count, at, &l);
  report_silence (before);
  tell_loss (c, &l);
  if (r == -1)
    report_error ("reading at offset %" PRIu64 ": %m", at);
  return r;
}

/* What is at the beginning of [AT, END)?  Where that cannot be read, there may be data;
 * and zeros that have to be written are data. */
static int
ask_source (const struct copy *c, uint64_t at, uint64_t end, struct extent *x,
            struct storage_holes *known)
{
  bool before;
  int r;

  *x = (struct extent) { end - at, EXTENT_DATA };
  if (c->zeros == COPY_ZEROS_WRITE)
    return 0;
  if (c->lost == NULL)
    r = c->from.ops->extent (&c->from, at, x, known);
  else {
    before = report_silence (true);
    r = c->from.ops->extent (&c->from, at, x, known);
    report_silence (before);
    if (r == -1 && !unwanted ()) {
      *x = (struct extent) { end - at, EXTENT_DATA };
      r = 0;
    }
  }
  x->len = min64 (x->len, end - at);
  return r;
}

/* The same, in whole units, unless END is in one. */
static int
look_at_source (const struct copy *c, uint64_t at, uint64_t end, struct extent *x,
                struct storage_holes *known)
{
  uint64_t stop;

  if (ask_source (c, at, end, x, known) == -1)
    return -1;
  stop = at + x->len;
  if (c->unit == 0 || stop == end)
    return 0;
  if (x->type != EXTENT_DATA && round_down (stop, c->unit) > at)
    stop = round_down (stop, c->unit);
  else {
    x->type = EXTENT_DATA;
    stop = min64 (end, round_up (stop, c->unit));
  }
  x->len = stop - at;
  return 0;
}

/* --- writing --- */

static int
put_zeros (const struct copy *c, uint64_t count, uint64_t at)
{
  return c->zeros == COPY_ZEROS_SKIP ? 0 : c->to.ops->zero (&c->to, count, at);
}

enum fate { LEAVE, ZERO, WRITE };

/* OTHER: see `beside'; or NULL. */
static enum fate
fate_of (const struct copy *c, const char *buf, const char *other, uint64_t len)
{
  if (other && memcmp (buf, other, len) == 0)
    return LEAVE;
  if (c->zeros == COPY_ZEROS_WRITE || !bytes_are_zero (buf, len))
    return WRITE;
  return c->zeros == COPY_ZEROS_SKIP ? LEAVE : ZERO;
}

/* How long is the beginning of BUF, which is at AT, that has one *FATE, in blocks? */
static uint64_t
find_blocks (const struct copy *c, const char *buf, const char *other, uint64_t count,
             uint64_t at, enum fate *fate)
{
  const uint64_t block = c->sparse;
  uint64_t to;

  *fate = WRITE;
  if (block == 0)
    return count;
  to = block - (at & (block - 1));
  *fate = fate_of (c, buf, other, min64 (to, count));
  for (; to < count; to += block)
    if (fate_of (c, buf + to, other ? other + to : NULL, min64 (block, count - to)) !=
        *fate)
      return to;
  return count;
}

static int
put_data (const struct copy *c, const char *buf, uint64_t count, uint64_t at,
          uint64_t *copied)
{
  const char *other = c->beside ? buf + piece_of (c) : NULL;
  enum fate fate;
  uint64_t n;

  for (; count > 0; buf += n, at += n, count -= n) {
    n = find_blocks (c, buf, other, count, at, &fate);
    if (other)
      other += n;
    if (fate == ZERO && c->to.ops->zero (&c->to, n, at) == -1)
      return -1;
    if (fate != WRITE)
      continue;
    if (c->to.ops->write (&c->to, buf, n, at) == -1)
      return -1;
    *copied += n;
  }
  return 0;
}

/* --- copying --- */

struct copying {
  const struct copy *c;
  pthread_mutex_t lock;
  pthread_cond_t turns;
  uint64_t turn;                /* the part that is next; guarded by lock */
  int64_t due;                  /* of the next read, in ns; guarded by lock */
};

static int64_t
clock_ns (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C (1000000000) + t.tv_nsec;
}

/* Waits until COUNT more bytes may be read. */
static void
keep_pace (struct copying *g, uint64_t count)
{
  struct timespec moment = { .tv_nsec = 0 };
  int64_t due, left;

  if (g->c->rate == 0)
    return;
  pthread_mutex_lock (&g->lock);
  due = max64 (g->due, clock_ns ());
  g->due = due + count * UINT64_C (1000000000) / g->c->rate;
  pthread_mutex_unlock (&g->lock);
  while (!unwanted () && (left = due - clock_ns ()) > 0) {
    moment.tv_nsec = min64 (left, 100000000);
    nanosleep (&moment, NULL);
  }
}

/* *AT: what is before it is done. */
static int
copy_data (struct copying *g, char *buf, uint64_t *at, uint64_t end, uint64_t *copied,
           bool *reads)
{
  const struct copy *const c = g->c;
  const uint64_t piece = piece_of (c);
  uint64_t n;

  for (; *at < end; *at += n) {
    n = min64 (end - *at, piece - *at % piece);
    keep_pace (g, n);
    *reads = true;
    if (read_source (c, buf, n, *at) == -1)
      return -1;
    *reads = false;
    if (put_data (c, buf, n, *at, copied) == -1)
      return -1;
  }
  return 0;
}

/* The same, until MOST bytes of data are done. */
static int
copy_part (struct copying *g, void *buf, uint64_t *at, uint64_t end, uint64_t most,
           uint64_t *copied, bool *reads)
{
  const struct copy *const c = g->c;
  struct storage_holes known;
  struct extent x;
  int r = 0;

  storage_holes_begin (&known, false);
  while (r == 0 && *at < end && most > 0) {
    *reads = true;
    if (look_at_source (c, *at, end, &x, &known) == -1)
      return -1;
    *reads = false;
    if (x.type == EXTENT_DATA) {
      x.len = min64 (x.len, most);
      most -= x.len;
      r = copy_data (g, buf, at, *at + x.len, copied, reads);
      continue;
    }
    if (x.type != EXTENT_HOLE || !c->contained)
      r = put_zeros (c, x.len, *at);
    *at += r == 0 ? x.len : 0;
  }
  return r;
}

int
copy_range (const struct copy *c, void *buf, uint64_t *at, uint64_t end, uint64_t most,
            uint64_t *copied, bool *reads)
{
  struct copying g = { .c = c };

  return copy_part (&g, buf, at, end, most, copied, reads);
}

/* --- in order --- */

/* False: it never comes. */
static bool
take_turn (struct copying *g, uint64_t start)
{
  LOCK_FOR_BLOCK (&g->lock);

  while (g->turn != start && !unwanted ())
    pthread_cond_wait (&g->turns, &g->lock);
  return g->turn == start;
}

static void
pass_turn (struct copying *g, uint64_t end)
{
  LOCK_FOR_BLOCK (&g->lock);

  g->turn = end;
  pthread_cond_broadcast (&g->turns);
}

/* *ZERO: it is all zeros, and was not read. */
static int
read_in_turn (struct copying *g, void *buf, uint64_t start, uint64_t end, bool *zero)
{
  const struct copy *const c = g->c;
  struct storage_holes known;
  struct extent x;

  storage_holes_begin (&known, false);
  if (unwanted () || look_at_source (c, start, end, &x, &known) == -1)
    return -1;
  *zero = x.type != EXTENT_DATA && start + x.len == end;
  if (*zero)
    return 0;
  keep_pace (g, end - start);
  return read_source (c, buf, end - start, start);
}

static int
write_in_turn (struct copying *g, void *buf, uint64_t start, uint64_t end, bool zero,
               uint64_t *copied)
{
  if (unwanted ())
    return -1;
  return zero ? put_zeros (g->c, end - start, start)
    : put_data (g->c, buf, end - start, start, copied);
}

static int
copy_in_turn (struct copying *g, void *buf, uint64_t start, uint64_t end, uint64_t *copied)
{
  const bool reads = g->c->from.in_order, writes = g->c->to.in_order;
  bool zero;

  if (reads && !take_turn (g, start))
    return -1;
  if (read_in_turn (g, buf, start, end, &zero) == -1)
    return -1;
  if (!writes)
    pass_turn (g, end);
  else if (!reads && !take_turn (g, start))
    return -1;
  if (write_in_turn (g, buf, start, end, zero, copied) == -1)
    return -1;
  if (writes)
    pass_turn (g, end);
  return 0;
}

/* For threads that wait for their turn. */
static void
wake (void *opaque)
{
  struct copying *g = opaque;
  LOCK_FOR_BLOCK (&g->lock);

  pthread_cond_broadcast (&g->turns);
}

/* --- all of it --- */

static bool
is_in_order (const struct copy *c)
{
  return c->from.in_order || c->to.in_order;
}

static int
copy_chunk (void *opaque, void *scratch, uint64_t start, uint64_t end, uint64_t *copied)
{
  struct copying *g = opaque;
  bool reads;

  return is_in_order (g->c) ? copy_in_turn (g, scratch, start, end, copied)
    : copy_part (g, scratch, &start, end, UINT64_MAX, copied, &reads);
}

static int
make_durable (void *opaque, uint64_t before, uint64_t copied)
{
  const struct copying *g = opaque;

  return g->c->to.ops->sync (&g->c->to) == -1 ? -1
    : g->c->settled ? g->c->settled (g->c->opaque, before, copied) : 0;
}

int
copy_all (const struct copy *c, const struct chunks_words *words, bool durable,
          const struct chunks_watch *watch, uint64_t *copied)
{
  struct copying g = {
    .c = c, .lock = PTHREAD_MUTEX_INITIALIZER, .turns = PTHREAD_COND_INITIALIZER,
  };
  const struct chunks_job job = {
    .words = *words, .size = c->from.size, .begin = c->begin,
    .chunk = is_in_order (c) ? piece_of (c) : 0,
    .scratch = copy_scratch (c), .remote = c->from.remote || c->to.remote, .opaque = &g,
    .work = copy_chunk, .make_durable = durable ? make_durable : NULL,
    .wake = wake,
  };

  return chunks_run (&job, watch, copied);
}
