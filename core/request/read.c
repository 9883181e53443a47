/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the requests carried out that change nothing: read, extents, cache?
 *
 * Look up the mapping, then do the I/O with no lock held (R10).  The read section of the
 * caller keeps every host cluster that the lookup named from being reused until the
 * request ends (R4).
 *
 * Runs that are adjacent in the same host file are read with one call, and those behind a
 * link all at the same time.  Compressed clusters are read through the cache of
 * decompressed clusters; those that come next may be decompressed ahead (readahead).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "util/report.h"
#include "request/readahead.h"
#include "request/request.h"

/* A client asked for a range whose L1 or L2 entry in some layer is invalid. */
static int
refuse_run (const struct view *v, const struct run *run)
{
  const char *path = storage_path (layers_file (v->layers, run->layer));

  if (run->layer == 0)
    health_corrupt (v->image->health, "L1 or L2 entry 0x%" PRIx64
                    " for guest offset %" PRIu64 " is invalid",
                    run->host, run->start);
  else
    report_error ("%s: image is corrupt: L1 or L2 entry 0x%" PRIx64
                  " for guest offset %" PRIu64 " is invalid",
                  path, run->host, run->start);
  errno = EIO;
  return -1;
}

/* Finds the run at OFFSET, at most LEN bytes, through all layers.  It is never RESERVED,
 * and UNALLOCATED only if the view is of one layer alone.  run->layer is the layer that
 * has it. */
static int
lookup (const struct view *v, uint64_t offset, uint64_t len, struct run *run)
{
  bool unsettled = false;

  if (v->w) {
    if (__builtin_expect (v->remote, 0) && !v->single &&
        l2_lookup_reads (v->w->l2, offset))
      layers_lookup_soon (v->lower, offset);
    if (l2_lookup (v->w->l2, offset, len, run) == -1)
      return -1;
    if (run->kind != RUN_UNALLOCATED && run->kind != RUN_RESERVED)
      return 0;
    if (v->single) {
      run->kind = RUN_UNALLOCATED;
      return 0;
    }
    len = run->len;
    unsettled = run->unsettled;
  }
  if (layers_lookup (v->lower, offset, len, run) == -1)
    return -1;
  run->unsettled = unsettled;
  return 0;
}

/* A contiguous piece of a host file that is read into a buffer. */
struct piece {
  struct guestdata *guestdata;
  char *buf;
  uint64_t len, host, guest;
};

/* Pieces that are read together. */
struct remote_pieces {
  unsigned n;
  struct storage_range ranges[32];
};
#define MOST_REMOTE_PIECES (sizeof ((struct remote_pieces *) NULL)->ranges / \
                            sizeof (struct storage_range))

static int
read_remote (struct remote_pieces *remote)
{
  const unsigned n = remote->n;

  remote->n = 0;
  return n > 0 ? storage_read_many (remote->ranges, n) : 0;
}

/* Reads the piece, or leaves it to read_remote. */
static int
read_piece (struct piece *p, struct remote_pieces *remote)
{
  struct storage *file;

  if (p->len == 0)
    return 0;
  file = guestdata_remote_file (p->guestdata);
  if (__builtin_expect (file == NULL, 1)) {
    if (guestdata_read (p->guestdata, p->buf, p->len, p->host, p->guest) == -1)
      return -1;
  }
  else {
    if (remote->n == MOST_REMOTE_PIECES && read_remote (remote) == -1)
      return -1;
    remote->ranges[remote->n++] = (struct storage_range) {
      .storage = file, .buf = p->buf, .count = p->len, .offset = p->host,
    };
  }
  p->len = 0;
  return 0;
}

/* Reads from one compressed cluster; cuts the run at the end of the cluster.  END: of the
 * request. */
static int
read_compressed (const struct view *v, void *buf, struct run *run, uint64_t end,
                 struct readahead_request *request)
{
  const struct header *h = layers_header (v->layers, run->layer);
  const uint64_t within = run->start & (h->cluster_size - 1);

  run->len = min64 (run->len, h->cluster_size - within);
  readahead_touch (request, v, run->start, end, h->cluster_size);
  if (request->ordered &&
      cluster_cache_is_late (v->cluster_cache, h, run->layer, run->host))
    readahead_help (request, v, run->layer);
  return cluster_cache_read (v->cluster_cache, layers_file (v->layers, run->layer), h,
                             run->layer, run->host, within, run->len, buf);
}

static int
read_runs (const struct view *v, char *buf, uint64_t count, uint64_t offset,
           struct readahead_request *request)
{
  struct piece piece = { 0 };
  struct remote_pieces remote;
  struct run run;

  remote.n = 0;
  while (count > 0) {
    if (lookup (v, offset, count, &run) == -1)
      return -1;

    switch (run.kind) {
    case RUN_NORMAL:
    {
      struct guestdata *guestdata = layers_guestdata (v->layers, run.layer);

      if (piece.len > 0 && piece.guestdata == guestdata &&
          piece.host + piece.len == run.host &&
          piece.buf + piece.len == buf) {
        piece.len += run.len;
        break;
      }
      if (read_piece (&piece, &remote) == -1)
        return -1;
      piece = (struct piece) { guestdata, buf, run.len, run.host, offset };
      break;
    }
    case RUN_ZERO:
    case RUN_ZERO_ALLOC:
    case RUN_UNALLOCATED:
      memset (buf, 0, run.len);
      break;
    case RUN_COMPRESSED:
      if (read_compressed (v, buf, &run, offset + count, request) == -1)
        return -1;
      break;
    default:
      return refuse_run (v, &run);
    }

    buf += run.len;
    offset += run.len;
    count -= run.len;
  }
  return read_piece (&piece, &remote) == -1 ? -1 : read_remote (&remote);
}

int
request_read (const struct view *v, void *buf, uint64_t count, uint64_t offset)
{
  struct readahead_request request = { 0 };
  const int r = read_runs (v, buf, count, offset, &request);

  readahead_done (&request);
  return r;
}

int
request_reads_zero (const struct view *v, uint64_t offset, uint64_t len)
{
  struct run run;

  while (len > 0) {
    if (lookup (v, offset, len, &run) == -1)
      return -1;
    if (run.kind != RUN_ZERO && run.kind != RUN_ZERO_ALLOC)
      return 0;
    offset += run.len;
    len -= run.len;
  }
  return 1;
}

/* --- extents --- */

/* A hole of this length is long enough to be told at once. */
#define LONG_HOLE (UINT64_C (1) << 30)

/* A caller that asks about extents. */
struct told {
  const struct extents_query *query;
  struct extent first;          /* if only that one is wanted */
};

/* Reports what the next LEN bytes are.  Returns 1 if that is enough, 0,
 * or -1.  If it wants one extent, a hole is not told run by run: the client would ask
 * again at once.  Data it transfers first. */
static int
tell (struct told *t, uint64_t offset, uint64_t len, enum extent_type type)
{
  if (!t->query->one)
    return t->query->emit (t->query->opaque, offset, len, type);
  if (t->first.len > 0 && type != t->first.type)
    return 1;
  t->first.type = type;
  t->first.len += len;
  return type == EXTENT_DATA || t->first.len >= LONG_HOLE;
}

/* Tells about a run of data in a file that may have holes: clusters of a preallocated
 * qcow2 image to which nothing has been written, or holes of a file that is the disk
 * itself.  With encryption a hole is data, because it does not decrypt to zeros. */
static int
tell_host_extents (const struct view *v, const struct run *run, struct told *t)
{
  const struct extents_query *q = t->query;
  struct storage *file = layers_data_file (v->layers, run->layer);
  const bool raw = layers_data_is_raw (v->layers, run->layer);
  /* (A qcow2 layer that is shown alone may hide something below.) */
  const enum extent_type zeros =
    raw && !(v->single && layers_header (v->layers, run->layer)) ? EXTENT_HOLE
    : EXTENT_ZERO;
  uint64_t done, len;
  bool hole;
  int r = 0;

  if (guestdata_is_encrypted (layers_guestdata (v->layers, run->layer)) ||
      (!raw && !layers_preallocated (v->layers, run->layer)))
    return tell (t, run->start, run->len, EXTENT_DATA);

  for (done = 0; r == 0 && done < run->len; done += len) {
    len = run->len - done;
    /* (In a raw file, each part of the disk has one place.) */
    hole = raw && q->known
      ? storage_hole_ahead (file, q->known, run->host + done,
                            run->host + (q->end - run->start), &len)
      : storage_hole (file, run->host + done, &len);
    r = tell (t, run->start + done, len, hole ? zeros : EXTENT_DATA);
  }
  return r;
}

static int
tell_extents (const struct view *v, uint64_t count, uint64_t offset, struct told *t)
{
  struct run run;
  int r = 0;

  for (; r == 0 && count > 0; offset += run.len, count -= run.len) {
    if (lookup (v, offset, count, &run) == -1)
      return -1;
    switch (run.kind) {
    case RUN_NORMAL:
      r = tell_host_extents (v, &run, t);
      break;
    case RUN_ZERO:
    case RUN_ZERO_ALLOC:
      /* Zeros that hide data of a layer below differ from a range without any data. */
      r = tell (t, run.start, run.len, v->single ? EXTENT_ZERO : EXTENT_HOLE);
      break;
    case RUN_UNALLOCATED:
      r = tell (t, run.start, run.len, EXTENT_HOLE);
      break;
    case RUN_COMPRESSED:
      r = tell (t, run.start, run.len, EXTENT_DATA);
      break;
    default:
      r = refuse_run (v, &run);
    }
  }
  return r;
}

int
request_extents (const struct view *v, uint64_t count, uint64_t offset,
                 const struct extents_query *query)
{
  struct told t = { .query = query };

  if (tell_extents (v, count, offset, &t) == -1)
    return -1;
  return query->one ? query->emit (query->opaque, offset, t.first.len, t.first.type) : 0;
}

int
extent_keep (void *extent, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) offset;
  *(struct extent *) extent = (struct extent) { len, type };
  return 0;
}

int
request_cache (const struct view *v, uint64_t count, uint64_t offset)
{
  struct run run;

  while (count > 0) {
    if (lookup (v, offset, count, &run) == -1)
      return -1;
    if (run.kind == RUN_NORMAL)
      storage_prefetch (layers_data_file (v->layers, run.layer),
                        run.host, run.len);
    offset += run.len;
    count -= run.len;
  }
  return 0;
}
