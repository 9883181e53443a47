/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are whole clusters stored compressed?
 *
 * Specification: "Compressed Clusters Descriptor".
 *
 * With compress=on, the range of a write is divided into stretches:
 *
 *   whole clusters that have no host cluster    compressed, if that makes them smaller
 *   everything else                             written by cow.c
 *
 * If the disk ends inside its last cluster, that part counts as a whole cluster.  As in
 * QEMU, a cluster that has a host cluster, or is compressed, is not compressed when it is
 * overwritten.
 *
 * A stretch is compressed first, without any claim (R10).  If another writer of the same
 * clusters comes in between, it wins, and the compressed data is discarded.  Then, for
 * each run of clusters that did get smaller: claim them, look them up again, and (R6)
 *
 *   acquire   slices and L2 tables, bytes for all clusters (allocbytes.c)
 *   write     one call for all that are adjacent in the file
 *   publish   their descriptors; nothing is released, because they had no host cluster
 *
 * R3: the descriptors always need a barrier: if a stream has not been written, reading it
 * is an I/O error, and does not yield the old data.
 *
 * A cluster that contains only zeros is left alone if it already reads as zeros.
 * Otherwise it gets a zero entry (version 3), or is compressed like any other.  With
 * compress=all, each is compressed like any other.
 *
 * The cache of decompressed clusters knows clusters by their descriptor, and may know
 * this descriptor from an earlier use of the same bytes.  So it has to drop the
 * bytes before they are written.  R4 guarantees that no request is left that could bring
 * the old cluster back.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "format/compress.h"
#include "request/compressor.h"
#include "request/request.h"

/* Maximum number of bytes that one call compresses, but at least a cluster. */
#define MAX_BYTES (UINT64_C (4) << 20)

/* What happens to a cluster. */
struct fate {
  enum { KEEP, ZERO, PACK } what;
  const struct compressed *compressed;
  uint64_t descriptor;          /* PACK */
};

/* The clusters that one call of store () stores. */
struct store {
  const struct view *v;
  uint64_t start;               /* guest bytes, cluster aligned */
  unsigned n;                   /* clusters */
  const struct compressed *compressed;
  struct fate fates[COMPRESSOR_MAX];
  struct alloc_piece pieces[COMPRESSOR_MAX];
  unsigned nr_pieces;
};

static bool
has_no_host (const struct run *run)
{
  return run->kind == RUN_UNALLOCATED || run->kind == RUN_ZERO;
}

/* Does no part of the cluster at OFFSET have a host cluster?  LEN: bytes, less than a
 * cluster at the end of the disk.  Returns 1, 0, or -1 on error. */
static int
is_fresh (const struct view *v, uint64_t offset, uint64_t len)
{
  const uint64_t end = offset + len;
  struct run run;

  for (; offset < end; offset = run.start + run.len) {
    if (l2_lookup (v->w->l2, offset, end - offset, &run) == -1)
      return -1;
    if (!has_no_host (&run))
      return 0;
  }
  return 1;
}

/* Finds how much of [offset, offset+count) is of one kind: either to be compressed
 * (*FRESH; *LEN is then whole clusters) or not.  *LEN > 0. */
static int
find_stretch (const struct view *v, uint64_t offset, uint64_t count,
              uint64_t *len, bool *fresh)
{
  const uint64_t cs = v->image->header.cluster_size;
  const uint64_t end = offset + count;
  const uint64_t whole_end = end == v->size ? end : round_down (end, cs);
  struct run run;
  uint64_t at;

  *fresh = false;
  if ((offset & (cs - 1)) != 0) {
    *len = min64 (count, round_up (offset, cs) - offset);
    return 0;
  }
  for (at = offset; at < end; at = run.start + run.len) {
    bool f;

    if (l2_lookup (v->w->l2, at, end - at, &run) == -1)
      return -1;
    f = has_no_host (&run) && at < whole_end;
    if (at == offset)
      *fresh = f;
    else if (f != *fresh)
      break;
  }
  if (*fresh)
    at = at >= whole_end ? whole_end : round_down (at, cs);
  *len = at - offset;
  if (*len == 0) {              /* only a part of the first cluster */
    *fresh = false;
    *len = min64 (count, cs);
  }
  return 0;
}

/* Decides what happens to each cluster, under the claim.  Reduces s->n to the clusters
 * before the first one that has got a host cluster meanwhile. */
static int
decide (struct store *s)
{
  const struct view *v = s->v;
  const struct header *h = &v->image->header;
  uint64_t at = s->start, len;
  unsigned i;
  int r;

  for (i = 0; i < s->n; i++, at += h->cluster_size) {
    struct fate *f = &s->fates[i];

    len = min64 (h->cluster_size, v->size - at);
    r = is_fresh (v, at, len);
    if (r == -1)
      return -1;
    if (r == 0)
      break;
    *f = (struct fate) { .what = PACK, .compressed = &s->compressed[i] };
    if (!s->compressed[i].zeros) {
      s->pieces[s->nr_pieces++].bytes = s->compressed[i].bytes;
      continue;
    }
    r = request_reads_zero (v, at, len);
    if (r == -1)
      return -1;
    f->what = r ? KEEP : ZERO;
  }
  s->n = i;
  return 0;
}

/* Encodes the descriptors.  False: a piece is too far back in the file for one. */
static bool
encode (struct store *s)
{
  const struct alloc_piece *piece = s->pieces;
  unsigned i;

  for (i = 0; i < s->n; i++)
    if (s->fates[i].what == PACK) {
      if (!compress_encode (&s->v->image->header, piece->host, piece->bytes,
                            &s->fates[i].descriptor))
        return false;
      piece++;
    }
  return true;
}

static int
write_pieces (struct store *s)
{
  struct iovec iov[COMPRESSOR_MAX];
  uint64_t host = 0, end = 0;
  unsigned i, piece = 0;
  int n = 0;

  for (i = 0; i <= s->n; i++) {
    const struct compressed *d = i < s->n ? s->fates[i].compressed : NULL;

    if (d && s->fates[i].what != PACK)
      continue;
    if (n > 0 && (d == NULL || s->pieces[piece].host != end)) {
      cluster_cache_forget (s->v->cluster_cache, 0, host, end);
      if (storage_writev (s->v->image->file, iov, n, host, STORAGE_IN_PLACE) == -1)
        return -1;
      n = 0;
    }
    if (d == NULL)
      break;
    if (n == 0)
      host = end = s->pieces[piece].host;
    iov[n].iov_base = (void *) d->data;
    iov[n++].iov_len = d->bytes;
    end += d->bytes;
    piece++;
  }
  return 0;
}

/* With the slices pinned.  0, -1, or 1: the clusters cannot be stored compressed. */
static int
pack_and_write (struct store *s, struct l2_edit *edit)
{
  const uint64_t cs = s->v->image->header.cluster_size;
  unsigned i;

  if (alloc_bytes (s->v->w->alloc, s->pieces, s->nr_pieces) == -1)
    return -1;
  if (!encode (s)) {
    alloc_abort_bytes (s->v->w->alloc, s->pieces, s->nr_pieces);
    return 1;
  }
  if (write_pieces (s) == -1) {
    alloc_abort_bytes (s->v->w->alloc, s->pieces, s->nr_pieces);
    return -1;
  }
  /* Nothing can fail from here. */
  for (i = 0; i < s->n; i++) {
    const struct fate *f = &s->fates[i];
    const uint64_t at = s->start + i * cs;

    if (f->what == PACK)
      l2_set (edit, at, cs, RUN_COMPRESSED, f->descriptor, true);
    else if (f->what == ZERO)
      l2_set (edit, at, cs, RUN_ZERO, 0, false);
  }
  return 0;
}

/* Under the claim.  Returns the same. */
static int
store_claimed (struct store *s)
{
  const unsigned bits = s->v->image->header.cluster_bits;
  struct l2_edit edit;
  unsigned i;
  int r;

  if (decide (s) == -1)
    return -1;
  for (i = 0; i < s->n && s->fates[i].what == KEEP; i++)
    ;
  if (i == s->n)
    return 0;                   /* everything reads as zeros: no tables are needed */
  if (l2_edit_begin (s->v->w->l2, s->start, (uint64_t) s->n << bits,
                     &edit) == -1)
    return -1;
  r = pack_and_write (s, &edit);
  l2_edit_end (&edit);
  return r;
}

/* Stores N clusters from START on, or fewer; *DONE is their number.  0, -1, or 1: they
 * cannot be stored compressed. */
static int
store (const struct view *v, const struct compressed *compressed, uint64_t start,
       unsigned n, unsigned *done)
{
  const unsigned bits = v->image->header.cluster_bits;
  CLEANUP_FREE struct store *s = memory_get (sizeof *s);
  struct rangelock_claim claim;
  int r;

  if (s == NULL)
    return -1;
  s->v = v;
  s->start = start;
  s->n = n;
  s->compressed = compressed;
  s->nr_pieces = 0;
  rangelock_claim (v->w->rangelock, &claim, start >> bits,
                   (start >> bits) + n - 1);
  r = store_claimed (s);
  if (r == -1 && errno == EUCLEAN)
    health_corrupt (v->image->health,
                    "found while allocating bytes for compressed clusters");
  rangelock_release (v->w->rangelock, &claim);
  *done = s->n;
  return r;
}

/* Writes clusters that do not get smaller. */
static int
write_plain (const struct view *v, const char *buf, uint64_t len,
             uint64_t offset, uint64_t *done)
{
  uint64_t n;

  for (*done = 0; *done < len; *done += n) {
    if (cow_write (v, buf + *done, len - *done, offset + *done, &n) == -1)
      return -1;
    if (n == 0)
      break;
  }
  return 0;
}

/* Writes a stretch of whole clusters that have no host clusters. */
static int
write_stretch (const struct view *v, const char *buf, uint64_t len,
               uint64_t offset, uint64_t *done)
{
  const struct header *h = &v->image->header;
  const unsigned n = div_up (len, h->cluster_size);
  struct compressed compressed[COMPRESSOR_MAX];
  CLEANUP_FREE void *room = NULL;
  unsigned i, j, stored;
  uint64_t bytes, written;
  int find_zeros = !v->w->compress_zeros, r;

  /* Version 2 has no zero entries. */
  if (find_zeros && h->version < 3) {
    find_zeros = request_reads_zero (v, offset, len);
    if (find_zeros == -1)
      return -1;
  }
  if (compressor_run (v->w->compressor, buf, len, find_zeros, compressed,
                      &room) == -1)
    return -1;

  *done = 0;
  for (i = 0; i < n; i = j) {
    const uint64_t from = (uint64_t) i << h->cluster_bits;
    const bool plain = !compressed[i].zeros && compressed[i].bytes == 0;

    for (j = i + 1; j < n; j++)
      if ((!compressed[j].zeros && compressed[j].bytes == 0) != plain)
        break;
    bytes = min64 (len, (uint64_t) j << h->cluster_bits) - from;
    r = plain ? 1 : store (v, &compressed[i], offset + from, j - i, &stored);
    if (r == 0)
      written = min64 (bytes, (uint64_t) stored << h->cluster_bits);
    else if (r == -1 ||
             write_plain (v, buf + from, bytes, offset + from, &written) == -1)
      return -1;
    *done += written;
    if (written < bytes)
      break;                    /* another writer was here: look again */
  }
  return 0;
}

int
compressed_write (const struct view *v, const void *buf, uint64_t count,
                  uint64_t offset, uint64_t *done)
{
  const uint64_t cs = v->image->header.cluster_size;
  const uint64_t most = max64 (cs, min64 (MAX_BYTES, COMPRESSOR_MAX * cs));
  uint64_t len;
  bool fresh;

  if (find_stretch (v, offset, count, &len, &fresh) == -1)
    return -1;
  if (!fresh)
    return cow_write (v, buf, len, offset, done);
  len = min64 (len, min64 (most, l2_edit_limit (v->w->l2, offset)));
  return write_stretch (v, buf, len, offset, done);
}
