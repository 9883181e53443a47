/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bytes read from and written to what an image is stored in?
 *
 * This is the gate.  Everything that reads or writes images passes it, whatever kind of
 * storage is behind it (struct storage_ops: hostopen.c, nbdfile.c).  It knows nothing
 * about qcow2.  All I/O is positional, so any number of threads may use a storage at the
 * same time.  The only shared state is a few atomics.
 *
 * Transfers are complete or fail.  Beyond the end of the storage, reads return zeros, as
 * the format requires (an image may end in the middle of a cluster).
 *
 * Every operation that tests may want to see or disturb passes before_io() first.
 *
 * If there is no more space, callers get ENOSPC, whatever the limit is: the disk, a
 * quota (EDQUOT), or the maximum size of a file for this process or filesystem (EFBIG).
 * Messages name the true reason.  (EFBIG comes with a signal: see plugin.c.)
 *
 * Callers never get ESHUTDOWN, which CephFS has for a host that it shuts out: requests
 * that are given up end with it (disk/serve.c).
 *
 * A write that was reported as done may be lost later, and another operation than a sync
 * may be the first to learn of it.  Such an error is kept in `lost', and every later
 * storage_sync fails with it, and so does every durable write (R9).
 *
 * Whether there are changes that no sync covers is known from numbers of syncs, not from
 * a count of changes: all threads that write would share its cache line.
 *
 * Locks: none; the atomics of storage-impl.h.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "util/zeros.h"
#include "storage/storage-impl.h"

#define SPARSE_PIECE (UINT64_C (64) << 10)

/* --- common to all operations --- */

int
storage_init (struct storage *s, const struct storage_ops *ops, const char *path,
              const struct storage_options *options)
{
  s->ops = ops;
  s->hooks = options->hooks;
  s->unsafe = options->cache == STORAGE_CACHE_UNSAFE;
  s->path = strdup (path);
  return s->path ? 0 : -1;
}

void
storage_close (struct storage *s)
{
  KEEP_ERRNO_FOR_BLOCK;
  char *path;

  if (s == NULL)
    return;
  path = s->path;
  s->ops->close (s);
  free (path);
}

/* Called before each operation: calls the hook of tests.  Returns 0 if the operation
 * shall take place, 1 if a hook has done it, or -1 with errno set (not reported). */
static int
before_io (struct storage *s, enum storage_op op, const struct iovec *iov, int niov,
           uint64_t offset, uint64_t count, bool durable)
{
  int r;

  /* The kernel's offsets are signed. */
  if (!range_within (offset, count, INT64_MAX)) {
    errno = EOVERFLOW;
    return -1;
  }
  if (s->hooks == NULL || s->hooks->before == NULL)
    return 0;
  r = s->hooks->before (s->hooks->opaque, s->path, op, iov, niov, offset, count,
                        durable);
  if (r > 0) {
    if (!s->diverted)
      s->diverted = true;
    return 1;
  }
  return r;
}

int
storage_hook (struct storage *s, enum storage_op op)
{
  return before_io (s, op, NULL, 0, 0, 0, false);
}

/* Call it when a change has ended that is not durable yet.  The next sync to begin covers
 * it.  (If one begins between the two lines, that sync covers the change, too, and has
 * the number that is noted.)  Only the first change after a sync began writes
 *                             anything. */
static void
changed (struct storage *s)
{
  const uint64_t next = s->syncs + 1;

  storage_raise (&s->awaited, next);
}

/* Turns errno into what callers get. */
static void
translate (void)
{
  if (errno == EDQUOT || errno == EFBIG)
    errno = ENOSPC;
  else if (errno == ESHUTDOWN)
    errno = EIO;
}

/* Reports that OPERATION failed with errno.  Returns -1. */
static int
failed (const struct storage *s, const char *operation, uint64_t offset,
        uint64_t count)
{
  report_error ("%s: cannot %s %" PRIu64 " bytes at offset %" PRIu64 ": %m",
                s->path, operation, count, offset);
  translate ();
  return -1;
}

/* --- properties --- */

const char *
storage_path (const struct storage *s)
{
  return s->path;
}

bool
storage_is_writable (const struct storage *s)
{
  return s->writable;
}

int
storage_become_writable (struct storage *s)
{
  return s->writable ? 0 : s->ops->become_writable (s);
}

const char *
storage_why_readonly (const struct storage *s)
{
  return s->why_readonly;
}

bool
storage_is_regular (const struct storage *s)
{
  return s->regular;
}

bool
storage_same (const struct storage *a, const struct storage *b)
{
  return a->ops == b->ops && a->ops->same (a, b);
}

uint64_t
storage_size (const struct storage *s)
{
  return s->size;
}

uint64_t
storage_size_now (struct storage *s, bool ask)
{
  const uint64_t before = s->size;
  uint64_t now;

  /* Nobody else changes a file that we may write.  A device knows nothing about a size
   * that a hook has taken over. */
  if (s->regular ? s->writable : s->diverted)
    return before;
  now = storage_seen_size (s, s->ops->size_now (s, ask));
  if (now > before) {
    report_debug ("%s: has grown from %" PRIu64 " to %" PRIu64 " bytes", s->path, before,
                  now);
    storage_raise_size (s, now);
  }
  return s->size;
}

uint64_t
storage_allocated (const struct storage *s)
{
  return s->regular ? s->ops->allocated (s) : s->size;
}

int
storage_lock (struct storage *s, enum storage_lock role)
{
  return s->ops->lock ? s->ops->lock (s, role) : 0;
}

/* --- reading and writing --- */

int
storage_read (struct storage *s, void *buf, uint64_t count, uint64_t offset)
{
  const struct iovec iov = { .iov_base = buf, .iov_len = count };
  int r;

  if (count == 0)
    return 0;
  r = before_io (s, STORAGE_OP_READ, &iov, 1, offset, count, false);
  if (r == 0)
    r = s->ops->read (s, buf, count, offset);
  return r == -1 ? failed (s, "read", offset, count) : 0;
}

bool
storage_is_remote (const struct storage *s)
{
  return s->ops->read_begin != NULL;
}

/* Begins a read, if it can be begun without waiting. */
static void
begin_range (struct storage_range *g)
{
  const struct iovec iov = { .iov_base = g->buf, .iov_len = g->count };
  struct storage *s = g->storage;
  int r;

  g->pending = NULL;
  g->err = 0;
  g->done = g->count == 0;
  if (g->done || s->ops->read_begin == NULL)
    return;
  r = before_io (s, STORAGE_OP_READ, &iov, 1, g->offset, g->count, false);
  if (r == 0)
    g->pending = s->ops->read_begin (s, g->buf, g->count, g->offset);
  else if (r == -1)
    g->err = errno;
  else
    g->done = true;
}

static void
end_range (struct storage_range *g)
{
  if (g->pending == NULL)
    return;
  g->done = g->storage->ops->read_end (g->storage, g->pending) == 0;
  if (!g->done && errno != ENOTCONN)
    g->err = errno;
}

void
storage_try_many (struct storage_range *ranges, size_t n)
{
  size_t i;

  for (i = 0; i < n; i++)
    begin_range (&ranges[i]);
  for (i = 0; i < n; i++)
    end_range (&ranges[i]);
}

int
storage_read_many (struct storage_range *ranges, size_t n)
{
  struct storage_range *g;

  storage_try_many (ranges, n);
  for (g = ranges; g < ranges + n; g++)
    if (g->err) {
      errno = g->err;
      return failed (g->storage, "read", g->offset, g->count);
    }
    else if (!g->done && storage_read (g->storage, g->buf, g->count, g->offset) == -1)
      return -1;
  return 0;
}

int
storage_read_sparse (struct storage *s, void *buf, uint64_t count, uint64_t offset)
{
  const uint64_t piece = min64 (count, SPARSE_PIECE);
  CLEANUP_FREE char *some = memory_get (piece + 1);
  uint64_t at, n;

  if (some == NULL)
    return -1;
  for (at = 0; at < count; at += n) {
    n = min64 (count - at, piece);
    if (storage_read (s, some, n, offset + at) == -1)
      return -1;
    sparse_copy ((char *) buf + at, some, n);
  }
  return 0;
}

int
storage_writev (struct storage *s, const struct iovec *iov, int niov,
                uint64_t offset, enum storage_writing how)
{
  uint64_t count = 0;
  int r;

  for (int i = 0; i < niov; i++)
    count += iov[i].iov_len;
  if (count == 0)
    return 0;
  /* A durable write is a sync, too. */
  if (how == STORAGE_DURABLE && s->lost) {
    errno = EIO;
    return failed (s, "write", offset, count);
  }

  if (how == STORAGE_DURABLE && s->unsafe)
    how = STORAGE_IN_PLACE;
  r = before_io (s, STORAGE_OP_WRITE, iov, niov, offset, count, how == STORAGE_DURABLE);
  if (r == -1)
    return failed (s, "write", offset, count);
  if (r > 0)
    storage_raise_size (s, offset + count);
  else
    r = s->ops->write (s, iov, niov, offset, count, how);
  if (how != STORAGE_DURABLE || r == -1)
    changed (s);
  return r == -1 ? failed (s, "write", offset, count) : 0;
}

int
storage_write (struct storage *s, const void *buf, uint64_t count, uint64_t offset)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };

  return storage_writev (s, &iov, 1, offset, STORAGE_IN_PLACE);
}

int
storage_write_zeros (struct storage *s, uint64_t offset, uint64_t count)
{
  uint64_t n;

  for (; count > 0; offset += n, count -= n) {
    n = min64 (count, ZEROS_SIZE - offset % ZEROS_SIZE);
    if (storage_write (s, zero_bytes, n, offset) == -1)
      return -1;
  }
  return 0;
}

int
storage_sync (struct storage *s)
{
  const uint64_t number = atomic_fetch_add (&s->syncs, 1) + 1;
  int r = s->unsafe ? 1 : before_io (s, STORAGE_OP_SYNC, NULL, 0, 0, 0, false);

  if (r == 0)
    r = s->ops->sync (s);
  if (r >= 0 && s->lost) {
    errno = s->lost;
    r = -1;
  }
  if (r == -1) {
    report_error ("%s: cannot make writes durable: %s: %m", s->path,
                  s->ops->sync_name);
    if (errno != ENOMEM)
      errno = EIO;
    return -1;
  }
  /* Another sync may have begun later and ended earlier. */
  storage_raise (&s->synced, number);
  return 0;
}

void
storage_forget_cache (struct storage *s)
{
  if (s->ops->forget_cache && !s->unsafe)
    s->ops->forget_cache (s);
}

int
storage_sync_changes (struct storage *s)
{
  if (!storage_has_changes (s))
    return 0;
  return storage_sync (s) == -1 ? -1 : 1;
}

bool
storage_has_changes (const struct storage *s)
{
  return s->synced < s->awaited || s->lost;
}

/* --- space --- */

/* Implements punch, zero and zero_at_once. */
static int
erase (struct storage *s, int (*op) (struct storage *, uint64_t, uint64_t),
       const atomic_bool *cannot, const char *what, uint64_t offset, uint64_t count)
{
  int r;

  if (count == 0)
    return 1;
  r = before_io (s, STORAGE_OP_PUNCH, NULL, 0, offset, count, false);
  if (r == 0 && *cannot)
    return 0;
  if (r == 0) {
    r = op (s, offset, count);
    if (r == 0)
      return 0;
  }
  else if (r == -1)
    return failed (s, what, offset, count);
  changed (s);
  return r == -1 ? failed (s, what, offset, count) : 1;
}

int
storage_punch (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, s->ops->punch, &s->no_punch, "punch a hole of", offset, count);
}

int
storage_discard (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, s->ops->discard ? s->ops->discard : s->ops->punch, &s->no_punch,
                "punch a hole of", offset, count);
}

/* A hole whose space is allocated again serves the same purpose.  (One byte shows whether
 * the storage can allocate, before anything is changed.) */
static int
zero_by_hole (struct storage *s, uint64_t offset, uint64_t count)
{
  int r;

  if (!s->regular || s->no_punch || s->no_allocate)
    return 0;
  if (storage_allocate (s, offset, 1) == -1)
    return -1;
  if (s->no_allocate)
    return 0;
  r = storage_punch (s, offset, count);
  return r == 1 && storage_allocate (s, offset, count) == -1 ? -1 : r;
}

int
storage_zero (struct storage *s, uint64_t offset, uint64_t count)
{
  const int r = erase (s, s->ops->zero, &s->no_zero, "zero", offset, count);

  return r == 0 ? zero_by_hole (s, offset, count) : r;
}

int
storage_make_zeros (struct storage *s, bool frees, uint64_t offset, uint64_t count)
{
  const int r = (frees ? storage_punch : storage_zero) (s, offset, count);

  return r == 0 ? storage_write_zeros (s, offset, count) : r == 1 ? 0 : -1;
}

/* Zeros that were found are relied on from now on: as good as a change. */
uint64_t
storage_find_zeros (struct storage *s, uint64_t offset, uint64_t count)
{
  uint64_t n;

  if (s->ops->find_zeros == NULL || s->diverted ||
      !range_within (offset, count, INT64_MAX))
    return 0;
  n = s->ops->find_zeros (s, offset, count);
  if (n > 0)
    changed (s);
  return n;
}

int
storage_zero_at_once (struct storage *s, uint64_t offset, uint64_t count)
{
  return s->ops->zero_at_once == NULL ? 0
    : erase (s, s->ops->zero_at_once, &s->no_zero_at_once, "zero", offset, count);
}

/* Does not report errors. */
static int
allocate (struct storage *s, uint64_t offset, uint64_t count)
{
  const int r = before_io (s, STORAGE_OP_ALLOCATE, NULL, 0, offset, count, false);

  if (r != 0)
    return r > 0 ? 0 : -1;
  return s->ops->allocate && count > 0 ? s->ops->allocate (s, offset, count) : 0;
}

int
storage_allocate (struct storage *s, uint64_t offset, uint64_t count)
{
  if (allocate (s, offset, count) == -1)
    return failed (s, "allocate", offset, count);
  return 0;
}

bool
storage_cannot_allocate (const struct storage *s)
{
  return s->no_allocate;
}

/* ASK: see storage_size_now.  Does not report errors. */
static int
set_size (struct storage *s, uint64_t size, bool ask)
{
  int r = before_io (s, STORAGE_OP_TRUNCATE, NULL, 0, size, 0, false);

  if (r == 0 && s->ops->set_size && s->regular)
    r = s->ops->set_size (s, size);
  else if (r == 0) {
    if (size <= s->size || size <= storage_size_now (s, ask))
      return 0;
    errno = ENOSPC;
    r = -1;
  }
  if (r == -1)
    return -1;
  changed (s);
  if (s->regular)
    s->size = size;
  return 0;
}

static int
cannot_set_size (const struct storage *s, uint64_t size)
{
  report_error ("%s: cannot set the size to %" PRIu64 " bytes: %m", s->path, size);
  translate ();
  return -1;
}

int
storage_truncate (struct storage *s, uint64_t size)
{
  return set_size (s, size, true) == -1 ? cannot_set_size (s, size) : 0;
}

int
storage_extend (struct storage *s, uint64_t size, uint64_t offset, uint64_t count)
{
  const bool longer = size > s->size;
  const bool sized = !longer || set_size (s, size, false) == 0;

  if (sized && (count == 0 || allocate (s, offset, count) == 0))
    return 0;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    report_debug ("%s: no space for %" PRIu64 " bytes: %m", s->path, size);
    translate ();
    return -1;
  }
  return sized ? failed (s, "allocate", offset, count) : cannot_set_size (s, size);
}

/* --- holes --- */

/* What is known without asking the storage: it knows nothing about contents that a hook
 * has taken over. */
static bool
needs_no_answer (const struct storage *s, uint64_t offset, bool *hole)
{
  *hole = offset >= INT64_MAX || (s->diverted && offset >= s->size);
  return *hole || s->diverted;
}

bool
storage_hole (struct storage *s, uint64_t offset, uint64_t *len)
{
  uint64_t first;
  struct storage_parts parts = { .room = 1, .lens = &first };
  bool hole;

  if (needs_no_answer (s, offset, &hole))
    return hole;
  s->ops->parts (s, offset, *len, &parts);
  if (parts.n == 0)
    return false;
  *len = min64 (*len, first);
  return parts.hole;
}

void
storage_holes_begin (struct storage_holes *known, bool one)
{
  known->storage = NULL;
  known->parts.room = one ? 1 : sizeof known->room / sizeof known->room[0];
  known->span = UINT64_MAX;
}

/* Forgets what is before OFFSET.  Is something known about OFFSET itself? */
static bool
go_on (struct storage_holes *known, const struct storage *s, uint64_t offset)
{
  struct storage_parts *const p = &known->parts;

  if (known->storage != s || offset < known->offset)
    return false;
  for (; p->n > 0 && offset - known->offset >= p->lens[0]; p->n--) {
    known->offset += *p->lens++;
    p->hole = !p->hole;
  }
  return p->n > 0;
}

/* An answer of which not all could be kept is followed by questions about less: of many
 * small parts, the server should not look for all each time.  WHAT: holes are what the
 * server calls so; only then it can fail (not reported). */
static int
ask_ahead (struct storage *s, struct storage_holes *known, uint64_t offset,
           uint64_t count, bool what)
{
  struct storage_parts *const p = &known->parts;
  uint64_t all = 0;

  count = min64 (count, known->span);
  known->storage = NULL;
  p->n = 0;
  p->more = false;
  p->lens = known->room;
  if (!what)
    s->ops->parts (s, offset, count, p);
  else if (s->ops->holes (s, offset, count, p) == -1)
    return -1;
  known->storage = s;
  known->offset = offset;
  if (p->more) {
    for (unsigned i = 0; i < p->n; i++)
      all += min64 (p->lens[i], UINT64_MAX - all);
    known->span = all;
  }
  else
    known->span += min64 (known->span, UINT64_MAX - known->span);
  return 0;
}

bool
storage_hole_ahead (struct storage *s, struct storage_holes *known, uint64_t offset,
                    uint64_t end, uint64_t *len)
{
  const struct storage_parts *const p = &known->parts;
  bool hole;

  /* A host tells of one part at a time, at once. */
  if (!storage_is_remote (s))
    return storage_hole (s, offset, len);
  if (needs_no_answer (s, offset, &hole))
    return hole;
  if (!go_on (known, s, offset))
    ask_ahead (s, known, offset, max64 (end - offset, *len), false);
  if (p->n == 0)
    return false;
  *len = min64 (*len, p->lens[0] - (offset - known->offset));
  return p->hole;
}

int
storage_what_is_hole (struct storage *s, struct storage_holes *known, uint64_t offset,
                      uint64_t end, uint64_t *len, bool *hole)
{
  const struct storage_parts *const p = &known->parts;

  if (s->ops->holes == NULL) {
    errno = ENOTSUP;
    return failed (s, "find holes of", offset, end - offset);
  }
  if (!go_on (known, s, offset) &&
      ask_ahead (s, known, offset, max64 (end - offset, *len), true) == -1)
    return failed (s, "find holes of", offset, end - offset);
  *len = min64 (*len, p->lens[0] - (offset - known->offset));
  *hole = p->hole;
  return 0;
}

/* --- hints --- */

void
storage_prefetch (struct storage *s, uint64_t offset, uint64_t count)
{
  if (s->ops->prefetch && count > 0 && range_within (offset, count, INT64_MAX))
    s->ops->prefetch (s, offset, count);
}

void
storage_disconnect (struct storage *s)
{
  if (s->ops->disconnect)
    s->ops->disconnect (s);
}

void
storage_write_back (struct storage *s, uint64_t offset, uint64_t count)
{
  if (s->ops->write_back && !s->unsafe && count > 0 &&
      range_within (offset, count, INT64_MAX))
    s->ops->write_back (s, offset, count);
}
