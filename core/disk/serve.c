/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a request served, however long it takes?
 *
 * Each request runs in a read section (epoch), and works on the view that its export has
 * at that time (exportkind.h).  Requests that change the disk wait while it changes as a
 * whole (steps.c).
 *
 * A request of a few bytes on the wire may cover 4G: millions of clusters.  Requests that
 * trim, zero, fill the cache or ask for extents are served in pieces, each like a request
 * of its own:
 *
 *   section  so that a request does not delay the reuse of what it has freed itself
 *   serve    a bounded number of slices; no piece is only a part of a cluster, unless
 *            the request is
 *   relieve  a checkpoint, if enough is waiting for one: this bounds changed metadata and
 *            freed clusters while one request runs
 *   ask      is the client still connected?  If not, the request continues for a while,
 *            because a client that has only said that it will send no more requests still
 *            gets its answers.  Then the request ends with ESHUTDOWN.  What it has done
 *            stays: a request for only that much would have done the same
 *
 * No claim and no section is held between pieces, so other requests can run there.
 * Requests that overlap have no defined order anyway.
 *
 * Reads and writes carry their data, so they are small enough to be served at once.
 *
 * With on-enospc=wait, and while the disk is changed as a whole, writes, pieces and
 * flushes are done again if there was no space (spacewait.c).
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/report.h"
#include "disk/exportkind.h"

/* Maximum size of a piece, a multiple of any cluster size.  To write so many zeros takes
 * about a second on a slow disk. */
#define MOST_PIECE (UINT64_C (64) << 20)

/* --- pieces --- */

/* The part of a request that is served at once. */
struct piece {
  uint64_t offset, count;       /* bytes */
  uint64_t end;                 /* of the request */
  uint64_t alone_since;         /* clock_ms; 0: not alone */
};

/* Should the request end because its client has been gone for long enough?  A client that
 * has gone does not come back: client_waits is not called again (and reports it once). */
static bool
is_orphan (const struct disk *d, struct piece *p)
{
  if (p->alone_since == 0) {
    if (d->options.client_waits == NULL || d->options.client_waits ())
      return false;
    p->alone_since = max64 (clock_ms (), 1);
  }
  return clock_ms () - p->alone_since >= d->options.linger_ms;
}

/* The largest number of bytes that can be changed at once from *START on, the first
 * cluster that begins at guest OFFSET or later.  *CS: the size of a cluster, in bytes. */
static uint64_t
edit_limit (const struct disk *d, uint64_t offset, uint64_t *start, uint64_t *cs)
{
  const struct epoch_section section = epoch_enter (d->epoch);
  const struct view *v = atomic_load (&d->current);
  uint64_t limit;

  *cs = v->image->header.cluster_size;
  *start = round_up (offset, *cs);
  limit = v->w ? l2_edit_limit (v->w->l2, *start) : UINT64_MAX;
  epoch_leave (d->epoch, section);
  return limit;
}

/* Finds the first piece, or the one after *P.  Returns 1, 0 (everything is done), or -1
 * with ESHUTDOWN (client_waits has reported it): the client has been gone for linger_ms.
 * Call it outside of sections. */
static int
next_piece (const struct disk *d, struct piece *p)
{
  uint64_t start, most, cs;

  p->offset += p->count;
  if (p->offset >= p->end)
    return 0;
  if (p->count > 0 && is_orphan (d, p)) {
    errno = ESHUTDOWN;
    return -1;
  }
  most = edit_limit (d, p->offset, &start, &cs);
  most = min64 (MOST_PIECE - (start & (MOST_PIECE - 1)), most);
  most += start - p->offset;
  p->count = p->end - p->offset;
  if (p->count >= most + cs)
    p->count = most;
  return 1;
}

/* --- serving --- */

/* The view that the export has now.  In a section: then it stays valid. */
static inline const struct view *
view_of (const struct export *e, struct view *made)
{
  const struct view *v = atomic_load (&e->disk->current);

  return e->kind->view ? e->kind->view (e, v, made) : v;
}

/* The disk became smaller after the client had come. */
static void
refuse_beyond (const struct view *v, uint64_t end)
{
  report_error ("%s: a client's request ends at %" PRIu64 ", but the disk has only %" PRIu64
                " bytes now", storage_path (v->image->file), end, v->size);
  errno = EINVAL;
}

/* Begins a request up to END, in bytes.  NULL: an error, outside of a section
 * (reported). */
static inline const struct view *
begin_request (const struct export *e, uint64_t end, struct epoch_section *section,
               struct view *made)
{
  const struct view *v;

  *section = epoch_enter (e->disk->epoch);
  v = view_of (e, made);
  if (end <= v->size)
    return v;
  refuse_beyond (v, end);
  epoch_leave (e->disk->epoch, *section);
  return NULL;
}

/* Of a request that changes the disk. */
struct sections { struct epoch_section all, change; };

static inline void
leave_change (const struct disk *d, const struct sections *sections)
{
  epoch_leave (d->changes, sections->change);
  epoch_leave (d->epoch, sections->all);
}

/* In a section: as for the gate, a caller that starts a record either finds that this
 * request has seen it, or waits for the request. */
static inline void
record (const struct disk *d, uint64_t offset, uint64_t end)
{
  struct dirtyset *set = atomic_load (&d->record);

  if (__builtin_expect (set != NULL, false))
    dirtyset_record (set, offset, end - offset);
}

/* The sections of a request that changes the disk: behind the gate it waits. */
static inline struct sections
pass_gate (struct disk *d)
{
  struct sections sections;

  for (;;) {
    sections.all = epoch_enter (d->epoch);
    sections.change = epoch_enter (d->changes);
    if (gate_is_open (d))
      return sections;
    leave_change (d, &sections);
    disk_wait_at_gate (d);
  }
}

/* The same as `begin_request' for such a request.  (The view comes last: when the gate
 * has opened, the one before it must not be changed any more.)  NULL: EIO, outside of
 * sections; the disk could not go on after a change, which was reported (R9). */
static inline const struct view *
begin_change (const struct export *e, uint64_t offset, uint64_t end,
              struct sections *sections, struct view *made)
{
  const struct view *v;

  *sections = pass_gate (e->disk);
  v = view_of (e, made);
  if (v->w && end <= v->size) {
    record (e->disk, offset, end);
    return v;
  }
  if (v->w)
    refuse_beyond (v, end);
  else
    errno = EIO;
  leave_change (e->disk, sections);
  return NULL;
}

/* Call it after a change, or one that failed halfway, outside of the section: runs a
 * checkpoint if enough is waiting for one.  Keeps errno. */
static void
relieve (const struct disk *d)
{
  const struct epoch_section section = epoch_enter (d->flushes);
  const struct view *v = atomic_load (&d->current);
  KEEP_ERRNO_FOR_BLOCK;

  if (v->w)
    checkpoint_relieve (v->w->checkpoint);
  epoch_leave (d->flushes, section);
}

/* What to do with each piece of a request, and the parameters of the request. */
struct work {
  /* Returns 1 if its change waits for a checkpoint; see request.h. */
  int (*serve) (const struct export *, const struct work *, const struct view *,
                uint64_t count, uint64_t offset);
  bool changes;                 /* the disk, which may need space */
  bool fua;
  unsigned flags;               /* REQUEST_* */
  const struct extents_query *extents;
};

static int
read_piece (struct export *e, const struct work *work, uint64_t count, uint64_t offset)
{
  struct view made;
  struct epoch_section section;
  const struct view *v = begin_request (e, offset + count, &section, &made);
  int r;

  if (v == NULL)
    return -1;
  r = work->serve (e, work, v, count, offset);
  epoch_leave (e->disk->epoch, section);
  if (r == -1)
    relieve (e->disk);
  return r;
}

static int
change_piece (struct export *e, const struct work *work, uint64_t count, uint64_t offset)
{
  struct view made;
  struct sections sections;
  const struct view *v = begin_change (e, offset, offset + count, &sections, &made);
  int r;

  if (v == NULL)
    return -1;
  r = work->serve (e, work, v, count, offset);
  leave_change (e->disk, &sections);
  if (r == -1)
    relieve (e->disk);
  return r;
}

static int
serve_piece (struct export *e, const struct work *work, uint64_t count, uint64_t offset)
{
  struct spacewait *const wait = &e->disk->spacewait;
  struct spacewait_request request = { 0 };
  int r;

  if (!work->changes)
    return read_piece (e, work, count, offset);
  do {
    spacewait_begin (wait, &request);
    r = change_piece (e, work, count, offset);
  } while (spacewait_again (wait, &request, r));
  return r;
}

/* With FUA this ends with a flush, even if nothing has changed. */
static int
serve_pieces (struct export *e, const struct work *work, uint64_t count, uint64_t offset)
{
  struct piece p = { .offset = offset, .end = offset + count };
  int r, served;

  while ((r = next_piece (e->disk, &p)) == 1) {
    served = serve_piece (e, work, p.count, p.offset);
    if (served == -1)
      return -1;
    if (served == 1 && !(work->fua && p.offset + p.count == p.end))
      relieve (e->disk);
  }
  return r == 0 && work->fua ? export_flush (e) : r;
}

/* --- reading --- */

int
export_read (struct export *e, void *buf, uint64_t count, uint64_t offset)
{
  struct view made;
  struct epoch_section section;
  const struct view *v = begin_request (e, offset + count, &section, &made);
  int r;

  if (v == NULL)
    return -1;
  r = e->kind->read ? e->kind->read (e, v, buf, count, offset)
    : request_read (v, buf, count, offset);
  epoch_leave (e->disk->epoch, section);
  if (r != 0)
    relieve (e->disk);
  return r == -1 ? -1 : 0;
}

static int
cache_piece (const struct export *e, const struct work *work, const struct view *v,
             uint64_t count, uint64_t offset)
{
  (void) work;
  return e->kind->cache ? e->kind->cache (e, v, count, offset)
    : request_cache (v, count, offset);
}

int
export_cache (struct export *e, uint64_t count, uint64_t offset)
{
  static const struct work cache = { .serve = cache_piece };

  return serve_pieces (e, &cache, count, offset);
}

static int
extents_piece (const struct export *e, const struct work *work, const struct view *v,
               uint64_t count, uint64_t offset)
{
  return e->kind->extents
    ? e->kind->extents (e, v, count, offset, work->extents)
    : request_extents (v, count, offset, work->extents);
}

int
export_extents (struct export *e, uint64_t count, uint64_t offset, bool one,
                extent_fn emit, void *opaque)
{
  struct storage_holes known;
  const struct extents_query x = {
    .emit = emit, .opaque = opaque, .one = one, .end = offset + count, .known = &known,
  };
  const struct work extents = { .serve = extents_piece, .extents = &x };

  storage_holes_begin (&known, one);
  return one ? serve_piece (e, &extents, count, offset)
    : serve_pieces (e, &extents, count, offset);
}

/* --- changes --- */

int
export_write (struct export *e, const void *buf, uint64_t count, uint64_t offset,
              bool fua)
{
  struct spacewait *const wait = &e->disk->spacewait;
  struct spacewait_request request = { 0 };
  struct view made;
  struct sections sections;
  const struct view *v;
  int r;

  do {
    spacewait_begin (wait, &request);
    v = begin_change (e, offset, offset + count, &sections, &made);
    if (v == NULL) {
      r = -1;
      continue;
    }
    r = request_write (v, buf, count, offset, fua);
    leave_change (e->disk, &sections);
    if (r == -1 || (r == 1 && !fua))
      relieve (e->disk);
  } while (spacewait_again (wait, &request, r));
  if (r == 1 && fua)
    return export_flush (e);
  return r == -1 ? -1 : 0;
}

static int
trim_piece (const struct export *e, const struct work *work, const struct view *v,
            uint64_t count, uint64_t offset)
{
  (void) e, (void) work;
  return request_trim (v, count, offset);
}

int
export_trim (struct export *e, uint64_t count, uint64_t offset, bool fua)
{
  const struct work trim = { .serve = trim_piece, .changes = true, .fua = fua };

  return serve_pieces (e, &trim, count, offset);
}

/* All of the request is checked before anything changes. */
static int
check_fast_piece (const struct export *e, const struct work *work, const struct view *v,
                  uint64_t count, uint64_t offset)
{
  (void) e;
  return request_can_zero_fast (v, count, offset, work->flags);
}

static int
zero_piece (const struct export *e, const struct work *work, const struct view *v,
            uint64_t count, uint64_t offset)
{
  (void) e;
  return request_zero (v, count, offset, work->flags);
}

int
export_zero (struct export *e, uint64_t count, uint64_t offset, unsigned flags, bool fua)
{
  /* (It changes nothing, but asks the writable image.) */
  const struct work check = {
    .serve = check_fast_piece, .changes = true, .flags = flags,
  };
  const struct work zero = {
    .serve = zero_piece, .changes = true, .flags = flags, .fua = fua,
  };

  if (flags & REQUEST_FAST && serve_pieces (e, &check, count, offset) == -1)
    return -1;
  return serve_pieces (e, &zero, count, offset);
}

int
disk_flush (struct disk *d)
{
  const struct epoch_section section = epoch_enter (d->flushes);
  const struct view *v = atomic_load (&d->current);
  const int r = v->w ? checkpoint_flush (v->w->checkpoint) : 0;

  epoch_leave (d->flushes, section);
  return r;
}

int
export_flush (struct export *e)
{
  struct spacewait *const wait = &e->disk->spacewait;
  struct spacewait_request request = { 0 };
  int r;

  do {
    spacewait_begin (wait, &request);
    r = disk_flush (e->disk);
  } while (spacewait_again (wait, &request, r));
  return r;
}

/* --- other work --- */

int
disk_piece (struct disk *d, int (*fn) (void *opaque, const struct view *), void *opaque)
{
  const struct sections sections = pass_gate (d);
  const struct view *v = atomic_load (&d->current);
  int r = -1;

  errno = EIO;
  if (v->w)
    r = fn (opaque, v);
  KEEP_ERRNO_FOR_BLOCK;
  leave_change (d, &sections);
  relieve (d);
  return r;
}
