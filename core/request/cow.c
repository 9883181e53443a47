/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a write do if clusters have to be allocated or copied?
 *
 * Claim the guest clusters, look them up again under the claim, then (R6):
 *
 *   acquire   slices and L2 tables, memory to defer the free of what will be freed, host
 *             clusters
 *   write     the data of the guest, and around it the earlier contents of the clusters:
 *             one call for each run of host clusters; zeros are not written where the
 *             host reads zeros anyway
 *   publish   the entries, in memory; this cannot fail
 *   release   host clusters to which the entries pointed before: a deferred free
 *
 * A failure before "publish" gives everything back and restores exactly the earlier
 * state.
 *
 * R3: the entries need a barrier (the data is durable first), unless the host clusters
 * are settled and the guest clusters read as zeros before: then, after a crash that keeps
 * the entry and loses the data, they read as zeros, as before the write.  (This does not
 * hold with encryption: clusters that were never written decrypt to garbage, so all of a
 * new cluster is written.)
 *
 * Such entries can be published before the data is written, so that they are written to
 * the image meanwhile: see "Ahead" in checkpoint.c.  If the data then cannot be written,
 * the clusters stay, and what was not written reads as zeros.
 *
 * A zero cluster with a host cluster of its own (ZERO_ALLOC) is written in place.  The
 * rest of it must contain zeros before its zero flag goes.
 *
 * With extended L2 entries all of this is done by subcluster (unit), except that host
 * space is allocated in clusters.  Only units that the write touches become allocated,
 * and only their edges are filled.  The other units of a new host cluster stay as they
 * were, with one exception: data in an old host cluster that has other references is
 * copied.  A unit without data in a host cluster that only this disk uses (RESERVED,
 * ZERO_ALLOC) is written there, whatever the host cluster contains; if it still contains
 * zeros (knownzero.c), that is used as in a new cluster.  A compressed cluster is
 * rewritten as a whole.
 *
 * In an external data file every unit has a fixed place, which may contain anything.  So
 * filling is left out only where the host has holes, and nothing is written beyond the
 * end of the disk.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/zeros.h"
#include "format/compress.h"
#include "format/entry.h"
#include "request/request.h"

/* Maximum number of different old mappings, and of new runs, in one call. */
#define MAX_RUNS 64

/* A fill up to this size is written together with the data; a larger one is written
 * before it, piece by piece, so that memory is bounded with 2M clusters. */
#define COPYUP_PIECE (256u << 10)

/* A range of host clusters, and the guest range that they will contain: whole clusters,
 * or units if the guest range has used the host clusters before. */
struct target {
  uint64_t guest, len;          /* bytes */
  struct alloc_run run;         /* (without clusters, if reused) */
  bool reused;                  /* the guest range has the host clusters already
                                   (ZERO_ALLOC, RESERVED), or always (in an external data
                                   file) */
  bool was_zero;                /* all touched units read as zeros before */
  bool copied;                  /* data around them was copied */
};

struct cow {
  const struct view *v;
  const char *buf;              /* data for [start, end) */
  uint64_t start, end;          /* guest bytes to write */
  uint64_t first, last_end;     /* guest bytes of the units that they touch */
  struct run old[MAX_RUNS];     /* the present mapping of these */
  unsigned nr_old;
  struct target targets[MAX_RUNS];
  unsigned nr_targets;
  bool ahead;                   /* the entries are published before the data is written */
};

static bool
reusable (const struct run *run)
{
  return (run->kind == RUN_ZERO_ALLOC || run->kind == RUN_RESERVED) &&
    run->copied;
}

/* Sets old[] and reduces [start, end) to what one call can do: up to the first unit that
 * can be written in place. */
static int
look_up_old (struct cow *c)
{
  const uint64_t cs = c->v->image->header.cluster_size;
  const uint64_t unit = entry_unit_size (&c->v->image->header);
  uint64_t at = round_down (c->start, unit);
  uint64_t end = round_up (c->end, unit);
  struct run *run;

  c->first = at;
  end = min64 (end, at + l2_edit_limit (c->v->w->l2, at));
  /* The last unit may extend beyond the disk; lookups may not. */
  for (c->nr_old = 0; at < end && c->nr_old < MAX_RUNS; c->nr_old++) {
    run = &c->old[c->nr_old];
    if (l2_lookup (c->v->w->l2, at, min64 (end, c->v->size) - at, run) == -1)
      return -1;
    if (run_in_place (run))
      break;
    at = round_up (run->start + run->len, unit);
    if (run->kind == RUN_COMPRESSED) {
      run->start = round_down (run->start, cs);
      at = round_up (at, cs);
    }
  }
  if (c->nr_old > 0)
    c->first = c->old[0].start;
  c->last_end = at;
  c->end = min64 (c->end, at);
  return 0;
}

/* The host clusters of a target. */
static void
host_clusters (const struct cow *c, const struct target *t, uint64_t *first,
               uint64_t *n)
{
  const unsigned bits = c->v->image->header.cluster_bits;

  *first = t->run.host >> bits;
  *n = ((t->run.host + t->len - 1) >> bits) - *first + 1;
}

static void
give_back (struct cow *c)
{
  uint64_t first, n;

  while (c->nr_targets > 0) {
    struct target *t = &c->targets[--c->nr_targets];

    if (!t->reused)
      alloc_abort (c->v->w->alloc, &t->run);
    else if (t->run.zeroed) {
      host_clusters (c, t, &first, &n);
      knownzero_remove (c->v->w->knownzero, first, n);
    }
  }
}

/* Returns the end of old[I], which is the beginning of the next run. */
static uint64_t
old_end (const struct cow *c, unsigned i)
{
  return i + 1 < c->nr_old ? min64 (c->old[i + 1].start, c->last_end)
                           : c->last_end;
}

/* Do the units from AT on, in old[I], that target T touches read as zeros? */
static int
reads_zero_before (struct cow *c, const struct target *t, uint64_t at,
                   unsigned i)
{
  const uint64_t end = min64 (t->guest + t->len, c->last_end);

  if (end <= old_end (c, i))
    switch (c->old[i].kind) {
    case RUN_ZERO: case RUN_ZERO_ALLOC: return 1;
    case RUN_UNALLOCATED: case RUN_RESERVED: break;
    default: return 0;
    }
  return request_reads_zero (c->v, at, min64 (end, c->v->size) - at);
}

/* Makes a target in the host cluster of old[I], or in an external data file. */
static void
reuse (struct cow *c, unsigned i, uint64_t at, struct target *t)
{
  const struct run *run = &c->old[i];
  uint64_t first, n;

  *t = (struct target) {
    .guest = at, .len = old_end (c, i) - at, .reused = true,
    .run.host = c->v->image->data ? at : run->host + (at - run->start),
  };
  if (run->kind == RUN_RESERVED && c->v->image->data == NULL) {
    host_clusters (c, t, &first, &n);
    t->run.zeroed = t->run.settled = knownzero_has (c->v->w->knownzero, first, n);
  }
}

/* Makes a target in new host clusters. */
static int
reserve (struct cow *c, unsigned i, uint64_t at, struct target *t)
{
  const struct header *h = &c->v->image->header;
  uint64_t clusters;

  *t = (struct target) { .guest = round_down (at, h->cluster_size) };
  clusters = div_up (old_end (c, i) - t->guest, h->cluster_size);
  if (alloc_reserve (c->v->w->alloc, clusters, &t->run) == -1)
    return -1;
  t->len = t->run.clusters << h->cluster_bits;
  if (guestdata_is_encrypted (c->v->image->guestdata))
    t->run.zeroed = t->run.settled = false;
  return 0;
}

/* Adds a target: host space for old[I] from AT on, or for its beginning. */
static int
acquire_target (struct cow *c, unsigned i, uint64_t at)
{
  struct target *t = &c->targets[c->nr_targets];
  int r;

  if (reusable (&c->old[i]) || c->v->image->data)
    reuse (c, i, at, t);
  else if (reserve (c, i, at, t) == -1)
    return -1;
  c->nr_targets++;
  /* (Without a lookup in the layers below if the answer makes no difference.) */
  r = t->reused && !t->run.settled
    ? c->old[i].kind == RUN_ZERO_ALLOC || c->old[i].kind == RUN_ZERO
    : reads_zero_before (c, t, at, i);
  t->was_zero = r == 1;
  return r == -1 ? -1 : 0;
}

/* Finds host space for all touched units.  If the table of targets is full, ends early
 * and reduces last_end. */
static int
acquire_targets (struct cow *c)
{
  const struct target *t;
  uint64_t at = c->first;
  unsigned i;

  c->nr_targets = 0;
  for (i = 0; i < c->nr_old; i++)
    /* (Clusters of the last target may extend into this run.) */
    while (at < old_end (c, i)) {
      if (c->nr_targets == MAX_RUNS) {
        c->last_end = at;
        c->end = min64 (c->end, at);
        return 0;
      }
      if (acquire_target (c, i, at) == -1)
        return -1;
      t = &c->targets[c->nr_targets - 1];
      at = t->guest + t->len;
    }
  return 0;
}

/* Writes to target T, at that guest offset. */
static int
write_iov (struct cow *c, const struct target *t, const struct iovec *iov, int n,
           uint64_t guest)
{
  return guestdata_write (c->v->image->guestdata, iov, n, t->run.host + (guest - t->guest),
                          guest, t->reused || c->ahead ? STORAGE_IN_PLACE : STORAGE_UNSEEN);
}

/* Copies the old contents of guest range [from, to) to target T. */
static int
copy_old (struct cow *c, const struct target *t, uint64_t from, uint64_t to)
{
  CLEANUP_FREE char *buf = memory_get (COPYUP_PIECE);
  uint64_t n;

  if (buf == NULL)
    return -1;
  for (; from < to; from += n) {
    n = min64 (to - from, COPYUP_PIECE);
    memset (buf, 0, n);
    if (from < c->v->size &&
        request_read (c->v, buf, min64 (n, c->v->size - from), from) == -1)
      return -1;
    if (write_iov (c, t, &(struct iovec) { buf, n }, 1, from) == -1)
      return -1;
  }
  return 0;
}

static int
write_zeros (struct cow *c, const struct target *t, uint64_t len, uint64_t guest)
{
  struct iovec iov[16];
  uint64_t n;
  int i;

  for (; len > 0; guest += n) {
    for (i = 0, n = 0; i < 16 && n < len; i++) {
      iov[i].iov_base = (void *) zero_bytes;
      iov[i].iov_len = min64 (len - n, ZEROS_SIZE);
      n += iov[i].iov_len;
    }
    len -= n;
    if (write_iov (c, t, iov, i, guest) == -1)
      return -1;
  }
  return 0;
}

/* Does the external data file have a hole there?  (One whose server was just restarted
 * may have lost it by the time of the write.) */
static bool
is_hole (struct cow *c, uint64_t host, uint64_t len)
{
  const struct image *image = c->v->image;
  uint64_t n = len;

  return image->data != NULL && !storage_is_remote (image->data) &&
    !guestdata_is_encrypted (image->guestdata) &&
    storage_hole (image->data, host, &n) && n == len;
}

/* Prepares the fill [from, to) of a target.  It either becomes an element of the write
 * (in IOV, with a buffer in *BUF that the caller frees), or is written here, or is not
 * needed. */
static int
prepare_fill (struct cow *c, const struct target *t, uint64_t from,
              uint64_t to, struct iovec *iov, void **buf)
{
  const uint64_t len = to - from;
  const uint64_t host = t->run.host + (from - t->guest);
  int zero = 1;

  *buf = NULL;
  iov->iov_len = 0;
  if (len == 0)
    return 0;
  if (!t->was_zero && from < c->v->size) {
    zero = request_reads_zero (c->v, from, min64 (to, c->v->size) - from);
    if (zero == -1)
      return -1;
  }
  if (zero) {
    if (t->run.zeroed || is_hole (c, host, len))
      return 0;
    if (len > ZEROS_SIZE)
      return write_zeros (c, t, len, from);
    iov->iov_base = (void *) zero_bytes;
    iov->iov_len = len;
    return 0;
  }
  if (len > COPYUP_PIECE)
    return copy_old (c, t, from, to);
  *buf = memory_new (1, len);
  if (*buf == NULL)
    return -1;
  iov->iov_base = *buf;
  iov->iov_len = len;
  return request_read (c->v, *buf, min64 (to, c->v->size) - from, from);
}

/* Copies the data that the untouched units in [from, to) have in an old host cluster to
 * its place in target T. */
static int
copy_untouched (struct cow *c, struct target *t, uint64_t from, uint64_t to)
{
  struct run run;

  for (to = min64 (to, c->v->size); from < to; from += run.len) {
    if (l2_lookup (c->v->w->l2, from, to - from, &run) == -1)
      return -1;
    if (run.kind != RUN_NORMAL)
      continue;
    t->copied = true;
    if (copy_old (c, t, from, from + run.len) == -1)
      return -1;
  }
  return 0;
}

/* The units of a target that the write touches. */
static void
touched (const struct cow *c, const struct target *t, uint64_t *from,
         uint64_t *to)
{
  *from = max64 (t->guest, c->first);
  *to = min64 (t->guest + t->len, c->last_end);
}

static int
write_target (struct cow *c, struct target *t)
{
  CLEANUP_FREE void *head = NULL;
  CLEANUP_FREE void *tail = NULL;
  struct iovec fill[2], iov[3];
  uint64_t t_start, t_end, from, to, at;
  int n = 0;

  touched (c, t, &t_start, &t_end);
  if (c->v->image->data)
    t_end = min64 (t_end, c->v->size);
  at = from = max64 (t_start, c->start);
  to = min64 (t_end, c->end);
  if (copy_untouched (c, t, t->guest, t_start) == -1 ||
      copy_untouched (c, t, t_end, t->guest + t->len) == -1 ||
      prepare_fill (c, t, t_start, from, &fill[0], &head) == -1 ||
      prepare_fill (c, t, to, t_end, &fill[1], &tail) == -1)
    return -1;

  if (fill[0].iov_len > 0) {
    iov[n++] = fill[0];
    at = t_start;
  }
  iov[n].iov_base = (void *) (c->buf + (from - c->start));
  iov[n++].iov_len = to - from;
  if (fill[1].iov_len > 0)
    iov[n++] = fill[1];
  return write_iov (c, t, iov, n, at);
}

/* Does this old mapping point to host clusters of which no part is kept? */
static bool
frees (const struct run *run)
{
  return run->kind == RUN_COMPRESSED ||
    (run_host_advances (run->kind) && !reusable (run));
}

/* The mapping old[I] is replaced: frees the host clusters to which it pointed.  Returns
 * the number of runs freed (0 or 1). */
static unsigned
free_old (struct cow *c, unsigned i)
{
  const struct header *h = &c->v->image->header;
  const struct run *run = &c->old[i];
  /* A cluster that two runs share belongs to the first one. */
  const uint64_t start = i == 0 ? round_down (run->start, h->cluster_size)
                                : round_up (run->start, h->cluster_size);
  const uint64_t end = round_up (old_end (c, i), h->cluster_size);
  uint64_t first, n;

  if (!frees (run) || start >= end)
    return 0;
  if (run->kind == RUN_COMPRESSED) {
    if (!compress_clusters (h, run->host, &first, &n))
      return 0;
  }
  else {
    first = (run->host + (start - run->start)) >> h->cluster_bits;
    n = (end - start) >> h->cluster_bits;
  }
  alloc_free_run (c->v->w->alloc, first << h->cluster_bits, n);
  return 1;
}

/* Remembers what the parts of a new target contain that were not written. */
static void
remember (struct cow *c, const struct target *t, uint64_t from, uint64_t to)
{
  struct knownzero *knownzero = c->v->w->knownzero;
  uint64_t first, n;

  host_clusters (c, t, &first, &n);
  if (!t->run.settled)
    knownzero_remove (knownzero, first, n);
  else {
    if (from > t->guest)
      knownzero_add (knownzero, first);
    if (to < t->guest + t->len)
      knownzero_add (knownzero, first + n - 1);
  }
}

static void
publish (struct cow *c, struct l2_edit *edit, unsigned rooms)
{
  uint64_t from, to, first, n;
  unsigned i, freed = 0;

  for (i = 0; i < c->nr_targets; i++) {
    const struct target *t = &c->targets[i];

    touched (c, t, &from, &to);
    l2_set (edit, from, to - from, RUN_NORMAL,
            t->run.host + (from - t->guest),
            !(t->run.settled && t->was_zero && !t->copied));
    if (c->v->w->knownzero && !t->reused)
      remember (c, t, from, to);
    if (c->v->w->discards) {
      host_clusters (c, t, &first, &n);
      discards_remove (c->v->w->discards, first, n);
    }
  }
  for (i = 0; i < c->nr_old && c->old[i].start < c->last_end; i++)
    freed += free_old (c, i);
  alloc_free_end (c->v->w->alloc, rooms - freed);
}

/* May the entries be published first?  Then until the data is written, and if it cannot
 * be, the clusters read as zeros, as before. */
static bool
can_publish_first (const struct cow *c, unsigned rooms)
{
  const struct header *h = &c->v->image->header;

  if (!checkpoint_writes_ahead (c->v->w->checkpoint) || rooms > 0 ||
      entry_unit_size (h) != h->cluster_size)
    return false;
  for (unsigned i = 0; i < c->nr_targets; i++)
    if (!c->targets[i].was_zero || !c->targets[i].run.settled)
      return false;
  return true;
}

/* Under the claim, with the slices pinned. */
static int
allocate_and_write (struct cow *c, struct l2_edit *edit)
{
  unsigned i, rooms = 0;

  for (i = 0; i < c->nr_old; i++)
    rooms += frees (&c->old[i]);
  if (alloc_free_begin (c->v->w->alloc, rooms) == -1)
    return -1;
  if (acquire_targets (c) == -1)
    goto error;
  c->ahead = can_publish_first (c, rooms);
  if (c->ahead) {
    publish (c, edit, rooms);
    checkpoint_ahead (c->v->w->checkpoint);
  }
  for (i = 0; i < c->nr_targets; i++)
    if (write_target (c, &c->targets[i]) == -1)
      goto error;
  if (!c->ahead)
    publish (c, edit, rooms);
  return 0;

 error:
  if (c->ahead)
    return -1;
  give_back (c);
  alloc_free_end (c->v->w->alloc, rooms);
  return -1;
}

/* Marks the image corrupt if a lower module has found corruption. */
static int
translate_error (const struct view *v)
{
  if (errno == EUCLEAN)
    health_corrupt (v->image->health, "found while allocating clusters");
  return -1;
}

int
cow_write (const struct view *v, const void *buf, uint64_t count,
           uint64_t offset, uint64_t *done)
{
  const unsigned bits = v->image->header.cluster_bits;
  struct rangelock_claim claim;
  struct l2_edit edit;
  struct cow c = { .v = v, .buf = buf, .start = offset };
  int r;

  /* Without a claim: only to find out which clusters to claim. */
  c.end = offset + count;
  if (look_up_old (&c) == -1)
    return -1;
  *done = 0;
  if (c.nr_old == 0)
    return 0;

  rangelock_claim (v->w->rangelock, &claim, offset >> bits,
                   (c.last_end - 1) >> bits);
  /* Other writers may have been here meanwhile.  Now the clusters are claimed. */
  c.end = min64 (offset + count, c.last_end);
  r = look_up_old (&c);
  if (r == 0 && c.nr_old > 0) {
    r = l2_edit_begin (v->w->l2, c.first, c.last_end - c.first, &edit);
    if (r == 0) {
      /* R5: a forged entry may point to where a table has just been allocated. */
      r = look_up_old (&c);
      if (r == 0)
        r = allocate_and_write (&c, &edit);
      l2_edit_end (&edit);
    }
    if (r == 0)
      *done = c.end - c.start;
    else
      r = translate_error (v);
  }
  rangelock_release (v->w->rangelock, &claim);
  return r;
}
