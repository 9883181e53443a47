/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a request served, however long it takes?
 *
 * Each request pins the present (grace), and works on the view that is current then.
 *
 * A request of a few bytes on the wire may be about 4G: millions of clusters.  Those that
 * trim, zero, fill the cache or ask for extents are served in pieces, each as if it
 * were a request of its own:
 *
 *   pin      so a request does not hold back what it has freed itself
 *   serve    a bounded number of slices; no piece is only a part of a cluster, unless
 *            the request is
 *   relieve  a checkpoint, if much waits for one: changed metadata and freed clusters
 *            stay bounded while one request runs
 *   ask      does the client still wait?  If not the request goes on for a while, for
 *            one that has only said that it will send no more gets its answers.  Then it
 *            ends with ESHUTDOWN, and what it has done stays: it could have been asked
 *            for that much
 *
 * No claim and no pin is held from one piece to the next, so other requests get their
 * turn in between; requests that overlap have no order anyway.
 *
 * Reads and writes carry their data: they are small enough to be served at once.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <time.h>

#include "util/bytes.h"
#include "util/report.h"
#include "request/copyup.h"
#include "disk/disk-impl.h"

/* A multiple of any cluster size; as zeros to be written, about a second on a slow
 * disk. */
#define MOST_PIECE (UINT64_C (64) << 20)

/* The pin comes first: whatever view is loaded under it stays good. */
static const struct view *
begin (struct disk *d, struct grace_pin *pin)
{
  *pin = grace_enter (d->grace);
  return atomic_load (&d->current);
}

/* --- pieces --- */

static uint64_t
now_ms (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

/* Is it over, since nobody has waited for it for long enough?  Who has left does not come
 * back: that is asked no more (and told only once). */
static bool
is_orphan (const struct disk *d, struct disk_piece *p)
{
  if (p->alone_since == 0) {
    if (d->options.client_waits == NULL || d->options.client_waits ())
      return false;
    p->alone_since = max64 (now_ms (), 1);
  }
  return now_ms () - p->alone_since >= d->options.linger_ms;
}

int
disk_next_piece (struct disk *d, struct disk_piece *p)
{
  const struct view *v = atomic_load (&d->current);
  const uint64_t cs = layers_header (d->layers, 0)->cluster_size;
  uint64_t start, most;

  p->offset += p->count;
  if (p->offset >= p->end)
    return 0;
  if (p->count > 0 && is_orphan (d, p)) {
    errno = ESHUTDOWN;
    return -1;
  }
  start = round_up (p->offset, cs);
  most = MOST_PIECE - (start & (MOST_PIECE - 1));
  if (v->w)
    most = min64 (most, l2_edit_limit (v->w->l2, start));
  most += start - p->offset;
  p->count = p->end - p->offset;
  if (p->count >= most + cs)
    p->count = most;
  return 1;
}

/* After a change, without the pin: a checkpoint if much is waiting for one.  Keeps
 * errno. */
static void
relieve (const struct view *v)
{
  const int err = errno;

  checkpoint_relieve (v->w->checkpoint);
  errno = err;
}

/* A request that may change something: what serves a piece, and its flags. */
struct change {
  /* 1: its change waits for a checkpoint; see request.h. */
  int (*serve) (const struct change *, const struct view *, uint64_t count,
                uint64_t offset);
  unsigned flags;               /* REQUEST_* */
};

/* With FUA it ends with a flush, even if there was nothing to change. */
static int
serve_change (struct disk *d, const struct change *change, uint64_t count,
              uint64_t offset, bool fua)
{
  struct disk_piece p = disk_pieces (count, offset);
  const struct view *v;
  struct grace_pin pin;
  int r, served;

  while ((r = disk_next_piece (d, &p)) == 1) {
    v = begin (d, &pin);
    served = change->serve (change, v, p.count, p.offset);
    grace_leave (d->grace, pin);
    if (served == -1 || (served == 1 && !(fua && p.offset + p.count == p.end)))
      relieve (v);
    if (served == -1)
      return -1;
  }
  return r == 0 && fua ? disk_flush (d) : r;
}

/* --- reading --- */

int
disk_read (struct disk *d, void *buf, uint64_t count, uint64_t offset)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  int r = request_read (v, buf, count, offset);

  grace_leave (d->grace, pin);
  return r;
}

int
disk_cache (struct disk *d, uint64_t count, uint64_t offset)
{
  struct disk_piece p = disk_pieces (count, offset);
  struct grace_pin pin;
  int r;

  while ((r = disk_next_piece (d, &p)) == 1) {
    const struct view *v = begin (d, &pin);

    r = request_cache (v, p.count, p.offset);
    grace_leave (d->grace, pin);
    if (r == -1)
      return -1;
  }
  return r;
}

int
disk_extents (struct disk *d, uint64_t count, uint64_t offset, bool one,
              extent_fn emit, void *opaque)
{
  struct disk_piece p = disk_pieces (count, offset);
  struct grace_pin pin;
  int r;

  while ((r = disk_next_piece (d, &p)) == 1) {
    const struct view *v = begin (d, &pin);

    r = request_extents (v, one ? count : p.count, p.offset, one, emit, opaque);
    grace_leave (d->grace, pin);
    if (r == -1 || one)
      return r;
  }
  return r;
}

static int
store_piece (const struct change *change, const struct view *v, uint64_t count,
             uint64_t offset)
{
  (void) change;
  return copyup_read (v, NULL, count, offset);
}

int
disk_read_fill (struct disk *d, void *buf, uint64_t count, uint64_t offset)
{
  static const struct change store = { .serve = store_piece };
  struct grace_pin pin;
  const struct view *v = atomic_load (&d->current);
  int r;

  if (v->w == NULL || v->w->copyup == NULL)
    return buf ? disk_read (d, buf, count, offset)
      : disk_cache (d, count, offset);
  if (buf == NULL)
    return serve_change (d, &store, count, offset, false);
  v = begin (d, &pin);
  r = copyup_read (v, buf, count, offset);
  grace_leave (d->grace, pin);
  if (r != 0)
    relieve (v);
  return r == -1 ? -1 : 0;
}

/* --- changes --- */

int
disk_write (struct disk *d, const void *buf, uint64_t count, uint64_t offset,
            bool fua)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  const int r = request_write (v, buf, count, offset, fua);

  grace_leave (d->grace, pin);
  if (r == 1 && fua)
    return checkpoint_flush (v->w->checkpoint);
  if (r != 0)
    relieve (v);
  return r == -1 ? -1 : 0;
}

static int
trim_piece (const struct change *change, const struct view *v, uint64_t count,
            uint64_t offset)
{
  (void) change;
  return request_trim (v, count, offset);
}

int
disk_trim (struct disk *d, uint64_t count, uint64_t offset, bool fua)
{
  static const struct change trim = { .serve = trim_piece };

  return serve_change (d, &trim, count, offset, fua);
}

static int
zero_piece (const struct change *change, const struct view *v, uint64_t count,
            uint64_t offset)
{
  return request_zero (v, count, offset, change->flags);
}

/* Before anything is changed, all of the request is looked at. */
static int
check_fast (struct disk *d, uint64_t count, uint64_t offset, unsigned flags)
{
  struct disk_piece p = disk_pieces (count, offset);
  struct grace_pin pin;
  int r;

  while ((r = disk_next_piece (d, &p)) == 1) {
    const struct view *v = begin (d, &pin);

    r = request_can_zero_fast (v, p.count, p.offset, flags);
    grace_leave (d->grace, pin);
    if (r == -1)
      return -1;
  }
  return r;
}

int
disk_zero (struct disk *d, uint64_t count, uint64_t offset, bool may_trim,
           bool fast, bool fua)
{
  const struct change zero = {
    .serve = zero_piece,
    .flags = (may_trim ? REQUEST_MAY_TRIM : 0) | (fast ? REQUEST_FAST : 0),
  };

  if (fast && check_fast (d, count, offset, zero.flags) == -1)
    return -1;
  return serve_change (d, &zero, count, offset, fua);
}

int
disk_flush (struct disk *d)
{
  const struct view *v = atomic_load (&d->current);

  return v->w ? checkpoint_flush (v->w->checkpoint) : 0;
}
