/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are bytes read from and written to an export of an NBD server?
 *
 * One kind of storage (storage-impl.h), over a pool of connections.  The size of the
 * export is fixed, like that of a block device.  Whether it has grown is asked when there
 * is no space, because that takes a new connection.
 *
 * Durability: a sync is a flush that the server has acknowledged.  The plugin does not
 * write to a server that cannot flush.
 *
 * Requests that are not multiples of the server's minimum block size are extended.  For
 * writes, this means reading the rest of the block first; no other thread may write to
 * the block in the meantime.
 *
 * What needs memory takes it before it sends anything.  So ENOMEM never means that a
 * change was lost.
 *
 * Locks: `blocks' is taken for writing by a thread that changes part of a block, and for
 * reading by other writers.  `growth' guards ask_again, and is held while the pool
 * connects; no other lock of this file is taken meanwhile.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/nbdfile.h"
#include "storage/nbdpool.h"
#include "storage/nbduri.h"
#include "storage/storage-impl.h"

/* As on a disk, a sector is written completely or not at all.  With larger blocks,
 * writing one sector may also destroy others. */
#define LARGEST_MINIMUM 4096
/* How often the server is asked whether the export has grown.  Requests wait for the
 * answer: so it is asked less often if that takes long, at most in one of PARTS parts of
 * the time. */
#define ASK_AGAIN_MS 1000
#define PARTS 5

struct nbdfile {
  struct storage s;             /* must be first */
  struct nbdpool *pool;         /* fixed after opening */
  const struct nbdlink_info *info;      /* fixed after opening */
  bool lock;                    /* fixed after opening: it was to be locked */
  pthread_rwlock_t blocks;
  pthread_mutex_t growth;
  int64_t ask_again;            /* clock_ms: not before; under growth */
};

static struct nbdfile *
nbdfile_of (const struct storage *s)
{
  return (struct nbdfile *) s;
}

static int
ask (struct nbdfile *n, enum nbdpool_kind kind, void *buf, uint64_t count,
     uint64_t offset)
{
  return nbdpool_send (n->pool, &(struct nbdpool_request) {
      .kind = kind, .buf = buf, .count = count, .offset = offset,
    });
}

/* --- reading --- */

static bool
is_aligned (const struct nbdfile *n, uint64_t count, uint64_t offset)
{
  return ((count | offset) & (n->info->minimum - 1)) == 0;
}

static int
read_aligned (struct nbdfile *n, char *buf, uint64_t count, uint64_t offset)
{
  uint64_t at, len;

  for (at = 0; at < count; at += len) {
    len = min64 (count - at, n->info->maximum);
    if (ask (n, NBDPOOL_READ, buf + at, len, offset + at) == -1)
      return -1;
  }
  return 0;
}

static int
read_range (struct nbdfile *n, char *buf, uint64_t count, uint64_t offset)
{
  const uint64_t from = round_down (offset, n->info->minimum);
  const uint64_t to = round_up (offset + count, n->info->minimum);
  CLEANUP_FREE char *whole = NULL;

  if (is_aligned (n, count, offset))
    return read_aligned (n, buf, count, offset);
  whole = malloc (to - from);
  if (whole == NULL || read_aligned (n, whole, to - from, from) == -1)
    return -1;
  memcpy (buf, whole + (offset - from), count);
  return 0;
}

static int
nbdfile_read (struct storage *s, void *buf, uint64_t count, uint64_t offset)
{
  const uint64_t size = s->size;
  const uint64_t there = offset >= size ? 0 : min64 (count, size - offset);

  memset ((char *) buf + there, 0, count - there);
  return there == 0 ? 0 : read_range (nbdfile_of (s), buf, there, offset);
}

/* --- many reads at once --- */

struct pending {
  struct nbdpool_read read;
  void *buf;                    /* the caller's */
  uint64_t count, there;        /* bytes wanted; that many of them are not past the end */
  uint64_t skip;                /* bytes of `whole' before them */
  char whole[];                 /* whole blocks, if the range is not aligned */
};

static void *
nbdfile_read_begin (struct storage *s, void *buf, uint64_t count, uint64_t offset)
{
  struct nbdfile *n = nbdfile_of (s);
  const uint64_t size = s->size;
  const uint64_t there = offset >= size ? 0 : min64 (count, size - offset);
  const uint64_t from = round_down (offset, n->info->minimum);
  const uint64_t to = round_up (offset + there, n->info->minimum);
  const bool aligned = is_aligned (n, there, offset);
  struct pending *p;

  if (there == 0 || to - from > n->info->maximum)
    return NULL;
  p = malloc (sizeof *p + (aligned ? 0 : to - from));
  if (p == NULL)
    return NULL;
  p->buf = buf;
  p->count = count;
  p->there = there;
  p->skip = offset - from;
  if (nbdpool_read_begin (n->pool, &p->read, aligned ? buf : p->whole, to - from, from))
    return p;
  free (p);
  return NULL;
}

static int
nbdfile_read_end (struct storage *s, void *pending)
{
  struct nbdfile *n = nbdfile_of (s);
  CLEANUP_FREE struct pending *p = pending;

  if (nbdpool_read_end (n->pool, &p->read) == -1)
    return -1;
  if (!is_aligned (n, p->there, p->skip))
    memcpy (p->buf, p->whole + p->skip, p->there);
  memset ((char *) p->buf + p->there, 0, p->count - p->there);
  return 0;
}

/* --- writing --- */

static int
write_aligned (struct nbdfile *n, const char *buf, uint64_t count, uint64_t offset,
               enum nbdpool_kind kind)
{
  uint64_t at, len;

  for (at = 0; at < count; at += len) {
    len = min64 (count - at, n->info->maximum);
    if (ask (n, kind, (char *) buf + at, len, offset + at) == -1)
      return -1;
  }
  return 0;
}

/* Writes whole blocks around the range, filled with their current contents.  Takes no
 * memory for one block: a change of the header must not fail half-way for lack of it. */
static int
write_parts (struct nbdfile *n, const char *buf, uint64_t count, uint64_t offset,
             enum nbdpool_kind kind)
{
  const uint64_t block = n->info->minimum;
  const uint64_t from = round_down (offset, block), to = round_up (offset + count, block);
  char one[LARGEST_MINIMUM];
  CLEANUP_FREE char *more = to - from > sizeof one ? malloc (to - from) : NULL;
  char *const whole = to - from > sizeof one ? more : one;

  if (whole == NULL ||
      read_aligned (n, whole, block, from) == -1 ||
      (to - from > block &&
       read_aligned (n, whole + (to - from - block), block, to - block) == -1))
    return -1;
  memcpy (whole + (offset - from), buf, count);
  return write_aligned (n, whole, to - from, from, kind);
}

static int
write_range (struct nbdfile *n, const char *buf, uint64_t count, uint64_t offset,
             enum nbdpool_kind kind)
{
  const bool whole = is_aligned (n, count, offset);
  int r;

  if (n->info->minimum == 1)
    return write_aligned (n, buf, count, offset, kind);
  if (whole)
    pthread_rwlock_rdlock (&n->blocks);
  else
    pthread_rwlock_wrlock (&n->blocks);
  r = (whole ? write_aligned : write_parts) (n, buf, count, offset, kind);
  pthread_rwlock_unlock (&n->blocks);   /* keeps errno */
  return r;
}

static int
nbdfile_sync (struct storage *s)
{
  struct nbdfile *n = nbdfile_of (s);

  if (!n->info->flush)          /* writes need flush: nothing was written */
    return 0;
  return ask (n, NBDPOOL_FLUSH, NULL, 0, 0);
}

/* The failure may be that of the server's own sync, and may concern earlier writes of
 * other requests, too; no later sync reports it again.  (As in hostfile.c.) */
static int
write_durably (struct nbdfile *n, const char *buf, uint64_t count, uint64_t offset)
{
  int err;

  if (!n->info->fua) {
    if (write_range (n, buf, count, offset, NBDPOOL_WRITE) == -1)
      return -1;
    if (nbdfile_sync (&n->s) == 0)
      return 0;
    if (errno != ENOMEM)
      storage_note_lost (&n->s, errno);
    return -1;
  }
  if (write_range (n, buf, count, offset, NBDPOOL_WRITE_FUA) == 0)
    return 0;
  err = errno;
  if (err == ENOMEM ||
      (err == ENOSPC && write_range (n, buf, count, offset, NBDPOOL_WRITE) == -1))
    return -1;
  storage_note_lost (&n->s, err);
  errno = err;
  return -1;
}

static char *
gather (const struct iovec *iov, int niov, uint64_t count)
{
  char *all = malloc (count), *p = all;

  for (int i = 0; all && i < niov; i++)
    p = mempcpy (p, iov[i].iov_base, iov[i].iov_len);
  return all;
}

static int
nbdfile_write (struct storage *s, const struct iovec *iov, int niov, uint64_t offset,
               uint64_t count, enum storage_writing how)
{
  struct nbdfile *n = nbdfile_of (s);
  CLEANUP_FREE char *all = NULL;
  const char *buf;

  if (!range_within (offset, count, s->size) &&
      !range_within (offset, count, storage_size_now (s, true))) {
    errno = ENOSPC;
    return -1;
  }
  if (niov > 1 && (all = gather (iov, niov, count)) == NULL)
    return -1;
  buf = all ? all : iov[0].iov_base;
  return how == STORAGE_DURABLE ? write_durably (n, buf, count, offset)
    : write_range (n, buf, count, offset, NBDPOOL_WRITE);
}

/* --- space --- */

static int
erase (struct storage *s, atomic_bool *cannot, enum nbdpool_kind kind, uint64_t offset,
       uint64_t count)
{
  struct nbdfile *n = nbdfile_of (s);
  uint64_t at, len;
  int r = 1;

  if (!is_aligned (n, count, offset) || !range_within (offset, count, s->size))
    return 0;
  pthread_rwlock_rdlock (&n->blocks);
  for (at = 0; r == 1 && at < count; at += len) {
    len = min64 (count - at, NBDLINK_MAX_COUNT);
    if (ask (n, kind, NULL, len, offset + at) == -1)
      r = -1;
  }
  pthread_rwlock_unlock (&n->blocks);   /* keeps errno */
  if (r == -1 && at == len && (errno == ENOTSUP || errno == EOPNOTSUPP)) {
    *cannot = true;             /* and nothing has changed */
    return 0;
  }
  return r;
}

static int
nbdfile_punch (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, &s->no_punch, NBDPOOL_PUNCH, offset, count);
}

/* The server may lose what no flush follows, when it is restarted: so the zeros are not
 * certain, and nothing else is expected there. */
static int
nbdfile_discard (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, &s->no_punch, NBDPOOL_DISCARD, offset, count) == -1 ? -1 : 0;
}

static int
nbdfile_zero (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, &s->no_zero, NBDPOOL_ZERO, offset, count);
}

static int
nbdfile_zero_at_once (struct storage *s, uint64_t offset, uint64_t count)
{
  return erase (s, &s->no_zero_at_once, NBDPOOL_ZERO_FAST, offset, count);
}

/* What one answer says. */
static uint64_t
nbdfile_find_zeros (struct storage *s, uint64_t offset, uint64_t count)
{
  struct nbdfile *n = nbdfile_of (s);
  uint64_t len = 0;
  struct storage_parts parts = { .room = 1, .lens = &len };

  return n->info->block_status && is_aligned (n, count, offset) &&
    range_within (offset, count, s->size) &&
    nbdpool_send (n->pool, &(struct nbdpool_request) {
        .kind = NBDPOOL_ZEROS, .count = count, .offset = offset, .parts = &parts,
      }) == 0 && parts.hole ? min64 (len, count) : 0;
}

/* For a range that begins within the export. */
static int
ask_parts (struct storage *s, enum nbdpool_kind kind, uint64_t offset, uint64_t count,
           struct storage_parts *parts)
{
  struct nbdfile *n = nbdfile_of (s);
  const uint64_t from = round_down (offset, n->info->minimum), size = s->size;
  const uint64_t to = offset + min64 (count, size - offset);

  if (!n->info->block_status) {
    errno = ENOTSUP;
    return -1;
  }
  if (nbdpool_send (n->pool, &(struct nbdpool_request) {
        .kind = kind, .count = min64 (round_up (to, n->info->minimum), size) - from,
        .offset = from, .parts = parts,
      }) == -1)
    return -1;
  if (parts->n == 0 || parts->lens[0] <= offset - from) {
    errno = EIO;
    return -1;
  }
  parts->lens[0] -= offset - from;
  return 0;
}

static void
nbdfile_parts (struct storage *s, uint64_t offset, uint64_t count,
               struct storage_parts *parts)
{
  if (offset >= s->size) {
    parts->hole = true;
    parts->n = 1;
    parts->lens[0] = count;
    return;
  }
  /* If there is a real problem, the read will report it. */
  if (ask_parts (s, NBDPOOL_STATUS, offset, count, parts) == -1)
    parts->n = 0;
}

static int
nbdfile_holes (struct storage *s, uint64_t offset, uint64_t count,
               struct storage_parts *parts)
{
  return ask_parts (s, NBDPOOL_HOLES, offset, count, parts);
}

static void
nbdfile_prefetch (struct storage *s, uint64_t offset, uint64_t count)
{
  struct nbdfile *n = nbdfile_of (s);
  const uint64_t from = round_down (offset, n->info->minimum);
  const uint64_t to = min64 (round_up (offset + count, n->info->minimum), s->size);

  if (n->info->cache && from < to)
    nbdpool_cache (n->pool, min64 (to - from, NBDLINK_MAX_COUNT), from);
}

/* Requests that find no space come in numbers, and each would connect. */
static uint64_t
nbdfile_size_now (struct storage *s, bool ask)
{
  struct nbdfile *n = nbdfile_of (s);
  uint64_t size;
  int64_t began, now;

  if (!ask)
    return s->size;
  LOCK_FOR_BLOCK (&n->growth);
  began = clock_ms ();
  if (began < n->ask_again)
    return s->size;
  if (nbdpool_grow (n->pool, &size) == -1 && errno != ENOMEM)
    storage_note_lost (s, errno);
  size = round_down (size, n->info->minimum);
  now = clock_ms ();
  n->ask_again = size > s->size ? 0
    : now + max64 (ASK_AGAIN_MS, (PARTS - 1) * (now - began));
  return size;
}

/* --- properties --- */

static bool
same_export (const struct storage *a, const struct storage *b)
{
  return nbduri_same (nbdpool_uri (nbdfile_of (a)->pool),
                      nbdpool_uri (nbdfile_of (b)->pool));
}

static void
nbdfile_disconnect (struct storage *s)
{
  if (nbdpool_disconnect (nbdfile_of (s)->pool) == -1 && errno != ENOMEM)
    storage_note_lost (s, errno);
}

static void
close_export (struct storage *s)
{
  struct nbdfile *n = nbdfile_of (s);

  if (n->pool)
    nbdpool_close (n->pool);
  pthread_rwlock_destroy (&n->blocks);
  pthread_mutex_destroy (&n->growth);
  free (n);
}

static const char *
find_why_readonly (const struct nbdfile *n, bool try_writable)
{
  const struct nbdlink_info *i = n->info;

  if (!try_writable)
    return "it was not to be written";
  if (i->read_only)
    return "the NBD server does not allow it to be written";
  if (!i->flush)
    return "the NBD server has no flush, so that nothing could be made durable";
  if (i->minimum > LARGEST_MINIMUM)
    return "the NBD server's smallest block is larger than 4096 bytes";
  if (n->lock)
    return remedy (REMEDY_WRITE_NBD);
  return NULL;
}

static void
set_writable (struct nbdfile *n, bool try_writable)
{
  n->s.why_readonly = find_why_readonly (n, try_writable);
  n->s.writable = n->s.why_readonly == NULL;
}

static int
nbdfile_become_writable (struct storage *s)
{
  set_writable (nbdfile_of (s), true);
  return 0;
}

static const struct storage_ops nbdfile_ops = {
  .close = close_export,
  .read = nbdfile_read,
  .read_begin = nbdfile_read_begin,
  .read_end = nbdfile_read_end,
  .write = nbdfile_write,
  .sync = nbdfile_sync,
  .sync_name = "flush",
  .punch = nbdfile_punch,
  .zero = nbdfile_zero,
  .zero_at_once = nbdfile_zero_at_once,
  .find_zeros = nbdfile_find_zeros,
  .discard = nbdfile_discard,
  .size_now = nbdfile_size_now,
  .parts = nbdfile_parts,
  .holes = nbdfile_holes,
  .prefetch = nbdfile_prefetch,
  .same = same_export,
  .disconnect = nbdfile_disconnect,
  .become_writable = nbdfile_become_writable,
};

/* --- opening --- */

/* NAME with the secrets of the nearest URI that it is below, or as it is; to be freed.
 * (URIs that were given without secrets are in the list, too.  The name of a backing file
 * for the header must be one: it hides none that were given for the whole server.) */
static char *
add_secrets (const char *name, const struct storage_link_options *link)
{
  const char *nearest = NULL;

  for (size_t i = 0; i < link->nr_secrets; i++)
    if (nbduri_has_secrets (link->secrets[i]) &&
        nbduri_is_below (name, link->secrets[i]) &&
        (nearest == NULL || nbduri_is_below (link->secrets[i], nearest)))
      nearest = link->secrets[i];
  return nearest ? nbduri_add_secrets (name, nearest) : strdup (name);
}

/* A thread that changes part of a block is not kept waiting by a stream of others. */
static void
init_blocks (pthread_rwlock_t *blocks)
{
  pthread_rwlockattr_t attr;

  pthread_rwlockattr_init (&attr);
  pthread_rwlockattr_setkind_np (&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init (blocks, &attr);
  pthread_rwlockattr_destroy (&attr);
}

int
nbdfile_open (const char *uri, const struct storage_options *options,
              struct storage **result)
{
  static const struct storage_link_options defaults = STORAGE_LINK_DEFAULTS;
  struct storage_link_options link = options->link ? *options->link : defaults;
  const char *why = "no memory";
  CLEANUP_FREE char *name = nbduri_normal (uri, false, &why);
  CLEANUP_FREE char *full = name ? add_secrets (name, &link) : NULL;
  struct nbdfile *n = full ? calloc (1, sizeof *n) : NULL;

  if (n == NULL || storage_init (&n->s, &nbdfile_ops, name, options) == -1) {
    /* The message does not contain the URI: it may have secrets in unexpected places. */
    report_error ("the NBD URI cannot be used: %s", full ? "no memory" : why);
    free (n);
    return -1;
  }
  init_blocks (&n->blocks);
  pthread_mutex_init (&n->growth, NULL);
  link.only_read = !options->try_writable;
  n->pool = nbdpool_open (full, name, &link);
  if (n->pool == NULL) {
    storage_close (&n->s);
    return -1;
  }
  n->info = nbdpool_info (n->pool);
  n->s.size = round_down (n->info->size, n->info->minimum);
  n->s.no_punch = n->s.no_zero = !n->info->zero;
  n->s.no_zero_at_once = !n->info->zero_fast;
  n->lock = options->lock;
  set_writable (n, options->try_writable);
  *result = &n->s;
  return 0;
}
