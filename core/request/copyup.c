/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is data from the layers below copied into the top image?
 *
 * Specification: "Cluster mapping" (unallocated clusters read from the backing file).
 *
 * For copy-on-read, when a read finds something to store; and to have the top image lie
 * over other layers, or over none (copyup_store).  (Overlay filesystems say copy up, too,
 * whatever the occasion.)  Ranges that the top image contains, and ranges that read as
 * zeros below, are left alone; over other layers, those are that have the range in the
 * same place.  The rest is stored, in whole clusters:
 *
 *   claim     the guest clusters (rangelock); look them up again: from now on they stay
 *             unallocated
 *   read      the data of the layers below, which never changes; the reader has it now,
 *             whatever happens next
 *   acquire   slices and tables, host clusters
 *   write     the data
 *   publish   the entries, in memory; this cannot fail
 *
 * So a write, zero or trim of the same clusters by the guest either comes before all of
 * this, and is seen and left alone, or comes after it and finds allocated clusters.  No
 * change by the guest can be lost.
 *
 * With extended L2 entries the top image may contain a part of a cluster.  Then the
 * missing subclusters are stored in its host cluster, if nothing else uses that cluster.
 *
 * R3: the entries always need a barrier, because the clusters did not read as zeros
 * before.
 *
 * R6: each run of host clusters is published on its own.  A failure keeps the earlier
 * runs, which are as valid as if they had been requested alone.
 *
 * The contents of the disk do not change, so bitmaps record nothing.
 *
 * Data that is all zeros needs no host clusters.  It is turned into zero clusters
 * (version 3), so that the next read does not look at the layers below again.  If other
 * layers may show something there later, version 2 needs host clusters for them.
 *
 * Locks: the claim, as in cow.c.  `retry_at' is atomic: a thread that reads an older
 * value makes one attempt too many or too few.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/entry.h"
#include "request/copyup.h"
#include "request/knownzero.h"
#include "request/request.h"

/* Maximum number of bytes that are copied at once; a whole number of clusters. */
#define PIECE (UINT64_C (2) << 20)

/* After storing has failed, readers do not try again for this long. */
#define PAUSE_SECONDS 10

struct copyup {
  _Atomic int64_t retry_at;     /* clock_ms; 0: no pause */
};

struct copyup *
copyup_new (void)
{
  return memory_new (1, sizeof (struct copyup));
}

void
copyup_free (struct copyup *f)
{
  free (f);
}

/* --- what has to be stored? --- */

/* Who wants something to be stored. */
struct wish {
  const struct view *v;
  const struct places *over;    /* the layers over which the image comes to lie; NULL:
                                   none, or the same ones */
};

/* A view of the disk as if the top image were empty. */
static struct view
below (const struct view *v)
{
  struct view b = *v;

  b.w = NULL;
  b.is_active = false;          /* it never changes */
  return b;
}

static bool
shows_below (const struct run *run)
{
  return run->kind == RUN_UNALLOCATED || run->kind == RUN_RESERVED;
}

/* Looks at [at, end), which begins and ends with a unit of the top image (or ends with
 * the disk).  *LEN is the length of its beginning that has to be stored (returns 1) or
 * left alone (0).  Returns -1 on error. */
static int
look_below (const struct wish *w, uint64_t at, uint64_t end, uint64_t *len)
{
  const struct view *const v = w->v;
  const uint64_t unit = entry_unit_size (&v->image->header);
  const struct places present = { v->layers, v->lower };
  const struct view b = below (v);
  struct extent first;
  const struct extents_query x = {
    .emit = extent_keep, .opaque = &first, .one = true,
  };
  struct run run;

  if (l2_lookup (v->w->l2, at, end - at, &run) == -1)
    return -1;
  *len = run.len;
  if (!shows_below (&run))
    return 0;
  if (w->over)
    return places_differ (&present, w->over, unit, at, len);
  if (request_extents (&b, run.len, at, &x) == -1)
    return -1;
  if (first.type == EXTENT_DATA) {
    *len = min64 (run.len, round_up (first.len, unit));
    return 1;
  }
  if (first.len < run.len)
    first.len = round_down (first.len, unit);
  if (first.len > 0) {
    *len = first.len;
    return 0;
  }
  /* Only a part of this unit is zeros. */
  *len = min64 (run.len, unit);
  return 1;
}

/* The same, but a stretch to be stored is extended until it fills a piece: its data may
 * come from many layers. */
static int
stretch (const struct wish *w, uint64_t at, uint64_t end, uint64_t *len)
{
  uint64_t more;
  int r = look_below (w, at, end, len);

  if (r != 1)
    return r;
  while (*len < PIECE && *len < end - at) {
    r = look_below (w, at + *len, end, &more);
    if (r == -1)
      return -1;
    if (r == 0)
      break;
    *len += more;
  }
  return 1;
}

/* --- storing --- */

/* Data to be stored, under the claim. */
struct store {
  const struct view *v;
  const char *data;             /* of [start, end), padded with zeros to a whole cluster
                                   or unit */
  uint64_t start, end;
  bool hides;                   /* zeros have to be stored, too */
  struct l2_edit *edit;
};

static int
write_data_at (struct store *s, uint64_t from, uint64_t len, uint64_t host)
{
  struct iovec iov = {
    .iov_base = (void *) (s->data + (from - s->start)), .iov_len = len,
  };

  return guestdata_write (s->v->image->guestdata, &iov, 1, host, from, STORAGE_IN_PLACE);
}

/* Stores whole clusters. */
static int
store_data (struct store *s, uint64_t from, uint64_t to)
{
  const struct writable *w = s->v->w;
  const unsigned bits = s->v->image->header.cluster_bits;
  struct alloc_run run;
  uint64_t len;

  for (; from < to; from += len) {
    if (alloc_reserve (w->alloc, (to - from) >> bits, &run) == -1)
      return -1;
    len = run.clusters << bits;
    if (write_data_at (s, from, len, run.host) == -1) {
      alloc_abort (w->alloc, &run);
      return -1;
    }
    l2_set (s->edit, from, len, RUN_NORMAL, run.host, true);
  }
  return 0;
}

/* Is the cluster at AT to be stored without data? */
static bool
is_zero_cluster (const struct store *s, uint64_t at)
{
  const struct header *h = &s->v->image->header;

  return (h->version >= 3 || !s->hides) &&
    bytes_are_zero (s->data + (at - s->start), h->cluster_size);
}

static int
store_clusters (struct store *s)
{
  const struct header *h = &s->v->image->header;
  const uint64_t cs = h->cluster_size;
  const uint64_t end = round_up (s->end, cs);
  uint64_t at, next;
  bool zero;

  for (at = s->start; at < end; at = next) {
    zero = is_zero_cluster (s, at);
    for (next = at + cs; next < end; next += cs)
      if (is_zero_cluster (s, next) != zero)
        break;
    if (!zero) {
      if (store_data (s, at, next) == -1)
        return -1;
    }
    else if (h->version >= 3)
      l2_set (s->edit, at, next - at, RUN_ZERO, 0, false);
  }
  return 0;
}

/* Stores subclusters of one cluster.  HAS_HOST: the top image has a host cluster for
 * them, which nothing else uses; HOST is the offset of the first subcluster in it. */
static int
store_part (struct store *s, bool has_host, uint64_t host)
{
  const struct writable *w = s->v->w;
  const struct header *h = &s->v->image->header;
  /* Beyond the end of the disk, the data is zeros. */
  const uint64_t len = round_up (s->end, entry_unit_size (h)) - s->start;
  const uint64_t within = s->start & (h->cluster_size - 1);
  struct alloc_run run;

  if (bytes_are_zero (s->data, len)) {
    if (has_host || s->hides)
      l2_set (s->edit, s->start, s->end - s->start, RUN_ZERO_ALLOC, 0, false);
    return 0;
  }
  if (!has_host) {
    if (alloc_reserve (w->alloc, 1, &run) == -1)
      return -1;
    host = run.host + within;
  }
  /* From now on the host cluster may contain something where no data is mapped. */
  if (w->knownzero)
    knownzero_remove (w->knownzero, host >> h->cluster_bits, 1);
  if (write_data_at (s, s->start, len, host) == -1) {
    if (!has_host)
      alloc_abort (w->alloc, &run);
    return -1;
  }
  l2_set (s->edit, s->start, s->end - s->start, RUN_NORMAL, host, true);
  return 0;
}

/* The result of a copy. */
struct copy {
  uint64_t len;         /* of the guest range that was handled, bytes */
  bool known;           /* the buffer contains the data of the range */
  bool left;            /* it was not stored: its host cluster has other references */
};

/* The top image does not contain the run at START.  Is it whole clusters (false) or, with
 * extended L2 entries, subclusters of a cluster that the top image has in part (true)?
 * Sets *LEN to the length that can be stored at once. */
static bool
is_partial (const struct view *v, const struct run *run, uint64_t start,
            uint64_t *len)
{
  const uint64_t cs = v->image->header.cluster_size;
  const uint64_t within = start & (cs - 1);

  *len = run->len;
  if (within == 0 && run->kind == RUN_UNALLOCATED &&
      (run->len >= cs || start + run->len == v->size)) {
    if (start + run->len < v->size)
      *len = round_down (run->len, cs);
    return false;
  }
  *len = min64 (run->len, cs - within);
  return true;
}

/* Under the claim. */
static int
copy_claimed (const struct wish *w, void *buf, uint64_t start, uint64_t end,
              struct copy *c)
{
  const struct view *const v = w->v;
  const struct view b = below (v);
  struct store s = { .v = v, .data = buf, .start = start, .hides = w->over };
  struct l2_edit edit;
  struct run run;
  bool partial;
  int r;

  if (l2_lookup (v->w->l2, start, end - start, &run) == -1)
    return -1;
  c->len = run.len;
  if (!shows_below (&run))
    return 0;                   /* another thread was faster */
  partial = is_partial (v, &run, start, &c->len);
  if (request_read (&b, buf, c->len, start) == -1)
    return -1;
  c->known = true;
  c->left = run.kind == RUN_RESERVED && !run.copied;
  if (c->left)
    return 0;

  s.end = start + c->len;
  if (health_check (v->image->health) == -1 ||
      l2_edit_begin (v->w->l2, start, c->len, &edit) == -1)
    return -1;
  s.edit = &edit;
  memset ((char *) buf + c->len, 0,
          round_up (s.end, partial ? entry_unit_size (&v->image->header)
                    : v->image->header.cluster_size) - s.end);
  /* R5: a forged entry may point to where a table has just been allocated. */
  r = run.kind == RUN_RESERVED ? l2_lookup (v->w->l2, start, c->len, &run) : 0;
  if (r == 0)
    r = partial ? store_part (&s, run.kind == RUN_RESERVED, run.host)
      : store_clusters (&s);
  l2_edit_end (&edit);
  return r;
}

/* Stores the beginning of [start, end), which `stretch' has found.  BUF has room for it,
 * in whole clusters.  -1 (reported): it could not be read or, if c->known, not stored. */
static int
copy (const struct wish *w, void *buf, uint64_t start, uint64_t end, struct copy *c)
{
  const struct view *const v = w->v;
  const unsigned bits = v->image->header.cluster_bits;
  struct rangelock_claim claim;
  int r;

  *c = (struct copy) { 0 };
  end = min64 (end, start + l2_edit_limit (v->w->l2, start));
  rangelock_claim (v->w->rangelock, &claim, start >> bits, (end - 1) >> bits);
  r = copy_claimed (w, buf, start, end, c);
  rangelock_release (v->w->rangelock, &claim);
  if (r == -1 && errno == EUCLEAN)
    health_corrupt (v->image->health,
                    "found while copying clusters from the backing file");
  return r;
}

/* --- copy-on-read --- */

/* A read, parts of which may be stored. */
struct copyup_read {
  const struct view *v;
  char *buf;                    /* for [offset, end); NULL: the data is not wanted */
  uint64_t offset, end;
  uint64_t at;                  /* everything before it is done */
  bool stored;                  /* something was stored */
};

static int
read_plainly (struct copyup_read *r, uint64_t to)
{
  const uint64_t from = r->at;

  r->at = to;
  return r->buf == NULL || from == to ? 0 :
    request_read (r->v, r->buf + (from - r->offset), to - from, from);
}

/* BUF contains the data of [start, end): gives the reader its part. */
static void
hand_over (struct copyup_read *r, const char *buf, uint64_t start, uint64_t end)
{
  const uint64_t from = max64 (start, r->at);
  const uint64_t to = min64 (end, r->end);

  if (r->buf && buf + (from - start) != r->buf + (from - r->offset))
    memcpy (r->buf + (from - r->offset), buf + (from - start), to - from);
  r->at = to;
}

/* [start, end) has to be stored; it contains the next byte to read. */
static int
read_and_store (struct copyup_read *r, uint64_t start, uint64_t end)
{
  CLEANUP_FREE char *scratch = NULL;
  const struct wish w = { .v = r->v };
  const uint64_t cs = r->v->image->header.cluster_size;
  char *buf;
  struct copy c;

  /* Whole clusters go through the buffer of the reader, other ranges through SCRATCH. */
  if (r->buf && start == r->at && r->end - start >= cs) {
    end = min64 (end, round_down (min64 (r->end, start + PIECE), cs));
    buf = r->buf + (start - r->offset);
  }
  else {
    end = min64 (end, start + (r->buf ? cs : PIECE));
    buf = scratch = malloc (round_up (end - start, cs));
    if (buf == NULL)
      return read_plainly (r, min64 (end, r->end));
  }

  if (copy (&w, buf, start, end, &c) == -1) {
    if (!c.known)
      return -1;                /* it cannot be read without storing either */
    report_error ("%s: copy-on-read: cannot store data in the image: %m",
                  storage_path (r->v->image->file));
    atomic_store (&r->v->w->copyup->retry_at, clock_ms () + PAUSE_SECONDS * 1000);
  }
  if (start + c.len <= r->at)
    return 0;                   /* it ends before the wanted data: look again */
  if (!c.known)
    return read_plainly (r, min64 (start + c.len, r->end));
  hand_over (r, buf, start, start + c.len);
  r->stored = true;
  return 0;
}

/* Finds the range [*start, *start + *len) around the byte at AT that has to be stored
 * (returns 1) or only read (0). */
static int
decide (const struct copyup_read *r, uint64_t at, uint64_t *start, uint64_t *len)
{
  const struct view *v = r->v;
  const struct wish w = { .v = v };
  const uint64_t cs = v->image->header.cluster_size;
  const uint64_t end = min64 (round_up (r->end, cs), v->size);
  const int64_t retry_at = atomic_load (&v->w->copyup->retry_at);
  int must;

  *start = round_down (at, cs);
  *len = end - *start;
  if (health_check (v->image->health) == -1 || (retry_at != 0 && clock_ms () < retry_at))
    return 0;
  for (;;) {
    must = stretch (&w, *start, end, len);
    if (must == -1 || *start + *len > at)
      return must;
    *start += *len;
  }
}

int
copyup_read (const struct view *v, void *buf, uint64_t count, uint64_t offset)
{
  struct copyup_read r = {
    .v = v, .buf = buf, .offset = offset, .end = offset + count, .at = offset,
  };
  uint64_t next, start, len;
  int must;

  while (r.at < r.end) {
    /* Data that need not be stored is read in as few calls as possible. */
    for (next = r.at; next < r.end; next = start + len) {
      must = decide (&r, next, &start, &len);
      if (must == -1)
        return -1;
      if (must)
        break;
    }
    if (read_plainly (&r, min64 (next, r.end)) == -1)
      return -1;
    if (r.at < r.end && read_and_store (&r, start, start + len) == -1)
      return -1;
  }
  return r.stored;
}

/* --- for other layers below --- */

int
copyup_store (const struct view *v, struct copyup_store *s, uint64_t end)
{
  const struct wish w = { .v = v, .over = s->over };
  const uint64_t most = max64 (COPYUP_STORE_PIECE, v->image->header.cluster_size);
  uint64_t len;
  struct copy c;
  int r;

  s->reads = true;
  r = stretch (&w, s->at, end, &len);
  if (r != 1) {
    s->at += r == 0 ? len : 0;
    return r;
  }
  r = copy (&w, s->buf, s->at, s->at + min64 (len, most), &c);
  s->reads = !c.known;
  if (r == -1)
    return -1;
  if (c.left)
    return report_refusal (ENOTSUP, "%s: the cluster of the guest offset %" PRIu64 " "
                           "contains only some of its subclusters, and has other "
                           "references: cannot store the others",
                           storage_path (v->image->file), s->at);
  s->at += c.len;
  s->copied += c.known ? c.len : 0;
  return c.known;
}
