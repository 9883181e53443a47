/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a copy of a disk catch up with clients that write?
 *
 * Before a client changes anything, it records which pieces of the disk that will be
 * (disk_record).  The copy goes in rounds over the pieces that are marked:
 *
 *   take      the marks move to a set of this round's own
 *   drain     requests that may have marked before that, end
 *   copy      what the disk shows now; zeros stay sparse
 *
 * What changes after a piece was taken is marked again, for the next round: so no change
 * is lost, and at the end of a round the target lacks only what was marked meanwhile.
 * The first round is what the caller wants.  When so little was marked that clients can
 * wait for it, the target is ready, and follows.
 *
 *   near      what was copied is made durable, so that the target has little to do to
 *             come to rest.  If clients wrote much meanwhile, rounds go on; so they do if
 *             much is left when the gate has closed, which opens again then
 *   rest      behind the gate; a job's thread does it, so that commands are answered if
 *             the target hangs (follow_close), and the gate stays closed until the end,
 *             or until the copy is not wanted any more (follow_give_way)
 *
 * A target that is a layer of the disk (`contained') shows what was copied wherever a
 * power cut takes from the disk what hid it: writes that were not flushed.  A sector that
 * was read while a client wrote it could be neither old nor new there.  So what was
 * marked until it had been read is not written: it is for the next round.
 *
 * Memory: two sets of at most MOST_PIECES bits, and a buffer.
 *
 * Locks: none of its own; the thread that copies has all of it, but for what clients
 * record, and the counters.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "request/dirtyset.h"
#include "change/follow.h"

/* Pieces of the disk: 2 MiB of bits in each set. */
#define MOST_PIECES (UINT64_C (1) << 24)

/* Bytes of zeros that are done at a time. */
#define MOST_ZEROS (UINT64_C (1) << 30)
/* So many bytes can be copied while clients wait. */
#define CLOSE (UINT64_C (4) << 20)
/* If requests that ran as the gate closed left more than that, it is not copied there. */
#define MOST_BEHIND_GATE (4 * CLOSE)

struct follow {
  struct disk *disk;
  const char *path;
  struct copy copy;
  struct copy_end to;           /* of that, unless it is guarded */
  uint64_t size;                /* in bytes */

  unsigned granularity_bits;
  struct dirtyset *live;        /* in which clients record */
  struct dirtyset *round;       /* what this round has not copied yet */
  bool in_round;
  bool recording;
  uint64_t at;                  /* where the round is, in bytes */
  char *buf;                    /* copy_scratch bytes */
  bool target_failed;
  bool too_much;                /* was left when the gate had closed */
  atomic_bool closed;           /* the gate is, by follow_close */
  atomic_bool gives_way;        /* it is not to be */

  _Atomic uint64_t done, left;  /* bytes; what is left of this round */
};

/* --- a target that is a layer of the disk --- */

/* BUF: NULL: zeros. */
static int
put_unmarked (const struct copy_end *e, const char *buf, uint64_t count, uint64_t at)
{
  const struct follow *f = e->opaque;
  int r = 0;

  for (uint64_t end = at + count, n; r == 0 && at < end; at += n) {
    n = end - at;
    if (!dirtyset_find (f->live, at, &n))
      r = buf ? f->to.ops->write (&f->to, buf, n, at) : f->to.ops->zero (&f->to, n, at);
    buf = buf ? buf + n : NULL;
  }
  return r;
}

static int
write_unmarked (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  return put_unmarked (e, buf, count, at);
}

static int
zero_unmarked (const struct copy_end *e, uint64_t count, uint64_t at)
{
  return put_unmarked (e, NULL, count, at);
}

static struct copy_end
guarded (const struct follow *f)
{
  static const struct copy_ops ops = { .write = write_unmarked, .zero = zero_unmarked };
  struct copy_end e = f->to;

  e.ops = &ops;
  e.opaque = f;
  return e;
}

/* --- rounds --- */

static uint64_t
bytes_of (const struct follow *f, uint64_t pieces)
{
  return min64 (pieces << f->granularity_bits, f->size);
}

/* What is next: from f->at on, up to COUNT bytes, and MOST of data.  *DONE: how many were
 * done, COPIED of them as data. */
static int
copy_some (struct follow *f, uint64_t count, uint64_t most, uint64_t *done,
           uint64_t *copied)
{
  uint64_t at = f->at;
  bool reads;
  int r;

  *copied = 0;
  r = copy_range (&f->copy, f->buf, &at, at + min64 (count, MOST_ZEROS), most, copied,
                  &reads);
  f->target_failed = r == -1 && !reads;
  *done = r == 0 ? at - f->at : 0;
  return r;
}

/* The pieces before AT are done. */
static void
advance (struct follow *f, uint64_t by)
{
  const uint64_t from = f->at, left = f->left;

  f->at += by;
  if (f->at == f->size)
    dirtyset_unmark (f->round, from, by);
  else if (f->at >> f->granularity_bits > from >> f->granularity_bits)
    dirtyset_unmark (f->round, from,
                     round_down (f->at, UINT64_C (1) << f->granularity_bits) - from);
  f->left = left - min64 (by, left);
  f->done += by;
}

/* Goes to the next place that is marked.  Returns how many bytes are, from there on; 0:
 * the round is over. */
static uint64_t
next_marked (struct follow *f)
{
  uint64_t len;

  for (; f->at < f->size; f->at += len) {
    len = f->size - f->at;
    if (dirtyset_find (f->round, f->at, &len))
      return len;
  }
  return 0;
}

/* Takes what clients have recorded. */
static void
take (struct follow *f)
{
  dirtyset_take (f->live, f->round);
  f->at = 0;
  f->left = bytes_of (f, dirtyset_count (f->round));
}

static int
check_size (const struct follow *f)
{
  DISK_SECTION_FOR_BLOCK now = disk_enter (f->disk);

  if (now.view->size == f->size)
    return 0;
  return report_refusal (EINVAL, "%s: the disk has another size now", f->path);
}

/* Returns 1, 0: there is nothing to do, or -1. */
static int
begin_round (struct follow *f)
{
  if (check_size (f) == -1)
    return -1;
  take (f);
  f->in_round = f->left > 0;
  if (f->in_round)
    disk_drain (f->disk);
  return f->in_round;
}

/* Is so much left that clients should not wait for it? */
static bool
is_remote (const struct follow *f)
{
  return f->in_round || bytes_of (f, dirtyset_count (f->live)) > CLOSE;
}

int
follow_step (struct follow *f, uint64_t most, uint64_t *copied)
{
  uint64_t len, done = 0;
  int r;

  *copied = 0;
  if (!f->in_round) {
    r = begin_round (f);
    if (r < 1)
      return r;
  }
  len = next_marked (f);
  if (len > 0 && copy_some (f, len, most, &done, copied) == -1)
    return -1;
  if (len > 0)
    advance (f, done);
  f->in_round = next_marked (f) > 0;
  return is_remote (f);
}

int
follow_near (struct follow *f)
{
  f->target_failed = f->to.ops->sync (&f->to) == -1;
  return f->target_failed ? -1 : is_remote (f);
}

bool
follow_target_failed (const struct follow *f)
{
  return f->target_failed;
}

void
follow_progress (struct follow *f, uint64_t *done, uint64_t *left)
{
  *left = min64 (f->left + bytes_of (f, dirtyset_count (f->live)), f->size);
  *done = f->done;
}

/* --- the end --- */

/* Clients have written too much since follow_near. */
static int
refuse_remote (void)
{
  errno = EAGAIN;
  return -1;
}

int
follow_begin_end (struct follow *f)
{
  f->too_much = false;
  return is_remote (f) ? refuse_remote () : 0;
}

/* No client changes the disk any more. */
int
follow_rest (struct follow *f)
{
  uint64_t len, done, copied;

  if (check_size (f) == -1)
    return -1;
  take (f);
  f->too_much = f->in_round = f->left > MOST_BEHIND_GATE;
  if (f->too_much)
    return -1;
  /* (Otherwise requests may run whose marks were just taken, as before a drain.) */
  while (!f->gives_way && (len = next_marked (f)) > 0) {
    if (copy_some (f, len, UINT64_MAX, &done, &copied) == -1)
      return -1;
    advance (f, done);
  }
  return 0;
}

int
follow_close (struct follow *f)
{
  disk_close_gate (f->disk);
  f->closed = true;
  if (f->gives_way)
    follow_open (f);
  if (follow_rest (f) == 0) {
    f->target_failed = f->to.ops->sync (&f->to) == -1;
    if (!f->target_failed)
      return 0;
  }
  follow_open (f);
  return f->too_much ? 1 : -1;
}

void
follow_open (struct follow *f)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (atomic_exchange (&f->closed, false))
    disk_open_gate (f->disk);
}

void
follow_give_way (struct follow *f)
{
  f->gives_way = true;
  follow_open (f);
}

int
follow_why (const struct follow *f)
{
  return f->too_much ? refuse_remote () : -1;
}

void
follow_free (struct follow *f)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (f == NULL)
    return;
  follow_open (f);
  if (f->recording)
    disk_record (f->disk, NULL);
  dirtyset_free (f->live);
  dirtyset_free (f->round);
  free (f->buf);
  free (f);
}

/* --- the beginning --- */

static unsigned
choose_granularity (uint64_t wanted, uint64_t size)
{
  unsigned bits = __builtin_ctzll (wanted);

  while (size >> bits > MOST_PIECES)
    bits++;
  return bits;
}

static int
open_record (struct follow *f)
{
  const uint64_t pieces =
    max64 (div_up (f->size, UINT64_C (1) << f->granularity_bits), 1);

  f->live = dirtyset_new (pieces, f->granularity_bits);
  f->round = dirtyset_new (pieces, f->granularity_bits);
  f->buf = memory_pages (copy_scratch (&f->copy));
  if (f->live == NULL || f->round == NULL)
    report_error ("%s: no memory for the record of changes: %m", f->path);
  f->recording = f->live && f->round && f->buf && disk_record (f->disk, f->live) == 0;
  return f->recording ? 0 : -1;
}

struct follow *
follow_new (const struct follow_options *o)
{
  struct follow *f = memory_new (1, sizeof *f);

  if (f == NULL)
    return NULL;
  f->disk = o->disk;
  f->path = o->path;
  f->copy = o->copy;
  f->to = o->copy.to;
  f->size = o->copy.from.size;
  f->granularity_bits = choose_granularity (o->granularity, f->size);
  /* Pieces of zeros stay sparse, whatever is beside them. */
  f->copy.sparse = UINT64_C (1) << f->granularity_bits;
  if (f->copy.contained)
    f->copy.to = guarded (f);
  if (open_record (f) == 0)
    return f;
  follow_free (f);
  return NULL;
}

int
follow_add (struct follow *f, const struct copy_end *e)
{
  struct storage_holes known;
  struct extent x;

  storage_holes_begin (&known, false);
  for (uint64_t at = 0; at < f->size; at += x.len) {
    x = (struct extent) { f->size - at, EXTENT_DATA };
    if (e && e->ops->extent (e, at, &x, &known) == -1)
      return -1;
    x.len = min64 (x.len, f->size - at);
    if (x.type != EXTENT_HOLE)
      dirtyset_record (f->round, at, x.len);
  }
  f->left = bytes_of (f, dirtyset_count (f->round));
  f->in_round = f->left > 0;
  return 0;
}
