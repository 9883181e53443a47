/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are trim and zero requests carried out?
 *
 * Specification: "Standard Cluster Descriptor" (bit 0, and unallocated clusters),
 * "Extended L2 Entries".
 *
 * Whole clusters only change metadata.  Clusters that already read as zeros are left
 * alone, so zeroing empty space costs nothing and adds no tables.  A zero request writes
 * the partial clusters at its edges; a trim leaves them alone.  A cluster that the end of
 * the disk cuts short counts as whole.
 *
 *   found                 trim, zero+unmap            zero
 *   unallocated           zero entry, if a layer      the same
 *                         below has data
 *   zero                  nothing                     nothing
 *   zero with host        zero entry, freed           nothing
 *   normal                zero entry, freed           zero flag, host kept
 *   reserved              zero entry, freed           as unallocated
 *   compressed            zero entry, freed           the same
 *
 * With extended L2 entries a zero request does this by subcluster (unit), and writes only
 * partial units at its edges, and the parts of compressed clusters that it covers.  But
 * host space is freed by cluster: if only a part of a cluster becomes zeros, its host
 * cluster is kept.  A trim works on whole clusters.
 *
 * Version 2 has no zero entries.  There a cluster becomes unallocated if the layers below
 * read as zeros.  Otherwise a zero request writes zeros, and a trim does nothing (it must
 * not bring back the data of the layers below).
 *
 * In an external data file no cluster is freed: it loses its data, and its space is
 * freed later (discards.c).  If that file is raw, datafile.c does everything.
 *
 * A partial unit is never changed as a whole just because the rest of it reads as zeros:
 * a write in flight may be about to change that.
 *
 * Locks: claims, as in cow.c.
 */

#include <config.h>

#include <errno.h>

#include "util/bytes.h"
#include "format/compress.h"
#include "format/entry.h"
#include "request/datafile.h"
#include "request/request.h"

enum mode { TRIM, ZERO_UNMAP, ZERO_KEEP };

enum action { SKIP, SET, WRITE };

struct plan {
  enum action action;
  uint64_t start, len;          /* guest bytes; whole units, except at the end of the
                                   disk */
  enum run_kind kind;           /* SET: the new kind, as entry_encode has it */
  bool discards;                 /* SET: data in an external file is discarded */
  bool frees;                   /* SET: these host clusters are freed */
  uint64_t host, host_clusters;
};

/* Do the layers below contain only zeros from START on?  Sets *LEN to how far the answer
 * holds, in whole units. */
static int
zero_below (const struct view *v, uint64_t start, uint64_t *len)
{
  const uint64_t unit = entry_unit_size (&v->image->header);
  const uint64_t first = min64 (*len, unit);
  uint64_t done = 0;
  struct run run;

  while (done < *len) {
    if (layers_lookup (v->lower, start + done, *len - done, &run) == -1)
      return -1;
    if (run.kind != RUN_ZERO)
      break;
    done += run.len;
  }
  if (done == *len)
    return 1;
  if (done >= first) {
    *len = round_down (done, unit);
    return 1;
  }
  /* The first unit is not all zeros.  Find how many more are certainly not. */
  done += run.len;
  if (done < *len)
    *len = max64 (first, round_down (done, unit));
  return 0;
}

/* Finds the host clusters that have a reference from a compressed cluster. */
static void
plan_compressed (const struct header *h, const struct run *run,
                 struct plan *plan)
{
  uint64_t first, n;

  plan->frees = compress_clusters (h, run->host, &first, &n);
  if (plan->frees) {
    plan->host = first << h->cluster_bits;
    plan->host_clusters = n;
  }
}

/* The data has to go, not only to be hidden.  In version 3 a zero entry does that; in
 * version 2 it depends on the layers below. */
static int
plan_removal (const struct view *v, enum mode mode, const struct run *run,
              struct plan *plan)
{
  const struct header *h = &v->image->header;
  int zero;

  if (h->version >= 3)
    plan->kind = RUN_ZERO;
  else {
    zero = zero_below (v, plan->start, &plan->len);
    if (zero == -1)
      return -1;
    if (!zero || mode == ZERO_KEEP) {
      plan->action = mode == TRIM ? SKIP : WRITE;
      return 0;
    }
    plan->kind = RUN_UNALLOCATED;
  }
  plan->action = SET;
  if (run->kind == RUN_COMPRESSED)
    plan_compressed (h, run, plan);
  else if (v->image->data)
    plan->discards = true;
  else {
    plan->frees = true;
    plan->host = run->host;
    plan->host_clusters = div_up (plan->len, h->cluster_size);
  }
  return 0;
}

/* This layer has no data here, but a layer below may have some. */
static int
plan_cover (const struct view *v, enum mode mode, struct plan *plan)
{
  const int zero = zero_below (v, plan->start, &plan->len);

  if (zero == -1)
    return -1;
  if (!zero && v->image->header.version >= 3) {
    plan->action = SET;
    plan->kind = RUN_ZERO_ALLOC;
  }
  else if (!zero && mode != TRIM)
    plan->action = WRITE;
  return 0;
}

/* Host clusters are freed if their whole cluster becomes zeros: does [start, end) begin
 * with a whole cluster?  If so, sets *LEN, which is the length of the run there, to whole
 * clusters.  Otherwise cuts it at the end of the cluster. */
static bool
begins_whole (const struct view *v, uint64_t start, uint64_t end,
              uint64_t *len)
{
  const uint64_t cs = v->image->header.cluster_size;
  const uint64_t next = round_down (start, cs) + cs;

  if ((start & (cs - 1)) != 0 || (next > end && end != v->size)) {
    *len = min64 (*len, next - start);
    return false;
  }
  if (start + *len != v->size)
    *len = min64 (end, max64 (next, round_down (start + *len, cs))) - start;
  return true;
}

/* Decides what happens to the beginning of [start, end). */
static int
make_plan (const struct view *v, uint64_t start, uint64_t end,
           enum mode mode, struct plan *plan)
{
  const bool v3 = v->image->header.version >= 3;
  struct run run;
  bool whole;

  if (l2_lookup (v->w->l2, start, end - start, &run) == -1)
    return -1;
  *plan = (struct plan) {
    .action = SKIP, .start = start, .len = run.len,
  };
  if (run.kind == RUN_ZERO)
    return 0;
  if (run.kind == RUN_UNALLOCATED)
    return plan_cover (v, mode, plan);

  whole = begins_whole (v, start, end, &plan->len);
  if (run.kind == RUN_COMPRESSED) {
    if (whole)
      return plan_removal (v, mode, &run, plan);
    plan->action = mode == TRIM ? SKIP : WRITE;
    return 0;
  }
  if (whole && (mode != ZERO_KEEP || !v3))
    return plan_removal (v, mode, &run, plan);

  /* The host cluster is kept. */
  plan->len = min64 (plan->len, run.len);
  switch (run.kind) {
  case RUN_ZERO_ALLOC:
    return 0;
  case RUN_RESERVED:
    return plan_cover (v, mode, plan);
  case RUN_NORMAL:
    plan->action = SET;
    plan->kind = RUN_ZERO_ALLOC;
    return 0;
  default:
    /* l2_lookup returns no other kinds. */
    errno = EIO;
    return -1;
  }
}

/* How much of the beginning of [start, end) can be SET at once?  Up to the first WRITE,
 * and not across an L2 table in which nothing changes: the table may not exist, and
 * zeroing must not create it.  Sets *SET_END to the end of the last SET (START: there is
 * none), *DONE to the number of bytes that are then finished, and *FREES to the number of
 * plans that free host clusters. */
static int
plan_stretch (const struct view *v, uint64_t start, uint64_t end, enum mode mode,
              uint64_t *set_end, uint64_t *done, unsigned *frees)
{
  const unsigned table_bits = v->image->header.cluster_bits + v->image->header.l2_bits;
  struct plan plan;
  uint64_t at;

  *set_end = start;
  *frees = 0;
  for (at = start; at < end; at += plan.len) {
    if (make_plan (v, at, end, mode, &plan) == -1)
      return -1;
    if (plan.action == WRITE)
      break;
    if (plan.action == SET) {
      *set_end = at + plan.len;
      *frees += plan.frees;
    }
    else if (*set_end == start) {       /* another request has done it */
      *done = plan.len;
      return 0;
    }
    else if ((at + plan.len - 1) >> table_bits != (*set_end - 1) >> table_bits)
      break;
  }
  *done = *set_end - start;
  return 0;
}

/* Does every SET at the beginning of [start, end).  Under the claim, so plans stay valid.
 * Sets *DONE, in bytes. */
static int
set_entries (const struct view *v, uint64_t start, uint64_t end,
             enum mode mode, uint64_t *done)
{
  struct l2_edit edit;
  struct plan plan;
  uint64_t at, set_end;
  unsigned frees, freed = 0;

  if (plan_stretch (v, start, end, mode, &set_end, done, &frees) == -1)
    return -1;
  if (set_end == start)
    return 0;
  end = set_end;

  if (l2_edit_begin (v->w->l2, start, end - start, &edit) == -1)
    return -1;
  if (alloc_free_begin (v->w->alloc, frees) == -1) {
    l2_edit_end (&edit);
    return -1;
  }
  for (at = start; at < end; at += plan.len) {
    /* plan_stretch has made this plan before, and the slices are pinned.  So this does no
     * I/O, unless the map had to drop slices of the layers below.  A range that cannot be
     * planned is left. */
    if (make_plan (v, at, end, mode, &plan) == -1)
      break;
    if (plan.action != SET)
      continue;
    /* Runs may be shorter now: packed slices yield longer runs than raw ones. */
    if (plan.frees && freed == frees) {
      if (alloc_free_begin (v->w->alloc, 1) == -1)
        break;
      frees++;
    }
    l2_set (&edit, plan.start, plan.len, plan.kind, 0, false);
    if (plan.frees) {
      alloc_free_run (v->w->alloc, plan.host, plan.host_clusters);
      freed++;
    }
    if (plan.discards)
      discards_add (v->w->discards, plan.start >> v->image->header.cluster_bits,
                    div_up (plan.len, v->image->header.cluster_size));
  }
  alloc_free_end (v->w->alloc, frees - freed);
  l2_edit_end (&edit);
  return at < end ? -1 : 0;
}

static int
set_under_claim (const struct view *v, uint64_t start, uint64_t end,
                 enum mode mode, uint64_t *done)
{
  const unsigned bits = v->image->header.cluster_bits;
  struct rangelock_claim claim;
  int r;

  end = min64 (end, start + l2_edit_limit (v->w->l2, start));
  rangelock_claim (v->w->rangelock, &claim, start >> bits, (end - 1) >> bits);
  r = set_entries (v, start, end, mode, done);
  rangelock_release (v->w->rangelock, &claim);
  if (r == -1 && errno == EUCLEAN)
    health_corrupt (v->image->health, "found while zeroing clusters");
  return r;
}

static int
zero_clusters (const struct view *v, uint64_t start, uint64_t end,
               enum mode mode)
{
  struct plan plan;
  uint64_t done;
  bool waits = false;
  int r;

  while (start < end) {
    if (make_plan (v, start, end, mode, &plan) == -1)
      return -1;
    done = plan.len;
    if (plan.action == SET) {
      if (set_under_claim (v, start, end, mode, &done) == -1)
        return -1;
      waits = true;
      /* done == 0: another request has changed the range, and it has to be written. */
    }
    else if (plan.action == WRITE) {
      r = write_missing_zeros (v, plan.len, start);
      if (r == -1)
        return -1;
      waits |= r;
    }
    start += done;
  }
  return waits;
}

/* Finds the whole units of SIZE bytes in [offset, offset+count): [*start, *end), which is
 * empty if *start >= *end. */
static void
whole_units (const struct view *v, uint64_t size, uint64_t offset,
             uint64_t count, uint64_t *start, uint64_t *end)
{
  *start = round_up (offset, size);
  *end = offset + count == v->size ? v->size
                                   : round_down (offset + count, size);
}

int
request_trim (const struct view *v, uint64_t count, uint64_t offset)
{
  uint64_t start, end;

  if (health_check (v->image->health) == -1)
    return -1;
  if (!v->w->discard)
    return 0;
  whole_units (v, v->image->header.cluster_size, offset, count, &start, &end);
  if (start >= end)
    return 0;
  if (bitmap_record (v->w->bitmaps, start, end - start) == -1)
    return -1;
  if (v->w->data_is_raw)
    return datafile_trim (v, end - start, start);
  return zero_clusters (v, start, end, TRIM);
}

/* Would this request have to write zeros?  If it has whole units, the edges do not count:
 * they are less than two units. */
static int
needs_writes (const struct view *v, uint64_t offset, uint64_t count,
              uint64_t start, uint64_t end, enum mode mode)
{
  struct plan plan;
  int r;

  if (start >= end) {
    r = request_reads_zero (v, offset, count);
    return r == -1 ? -1 : !r;
  }
  for (; start < end; start += plan.len) {
    if (make_plan (v, start, end, mode, &plan) == -1)
      return -1;
    if (plan.action == WRITE)
      return 1;
  }
  return 0;
}

static enum mode
zero_mode (const struct view *v, unsigned flags)
{
  return (flags & REQUEST_MAY_TRIM) && v->w->discard ? ZERO_UNMAP : ZERO_KEEP;
}

int
request_can_zero_fast (const struct view *v, uint64_t count, uint64_t offset,
                       unsigned flags)
{
  uint64_t start, end;
  int r;

  if (health_check (v->image->health) == -1)
    return -1;
  if (v->w->data_is_raw)
    return 0;                   /* the file will show it before anything has changed */
  whole_units (v, entry_unit_size (&v->image->header), offset, count, &start, &end);
  r = needs_writes (v, offset, count, start, end, zero_mode (v, flags));
  if (r == 1)
    errno = ENOTSUP;
  return r == 0 ? 0 : -1;
}

int
request_zero (const struct view *v, uint64_t count, uint64_t offset,
              unsigned flags)
{
  const enum mode mode = zero_mode (v, flags);
  uint64_t start, end;
  int head, middle, tail;

  if (health_check (v->image->health) == -1 ||
      bitmap_record (v->w->bitmaps, offset, count) == -1)
    return -1;
  if (v->w->data_is_raw)
    return datafile_zero (v, count, offset, flags);
  whole_units (v, entry_unit_size (&v->image->header), offset, count, &start, &end);
  if (start >= end)
    return write_missing_zeros (v, count, offset);
  head = write_missing_zeros (v, start - offset, offset);
  middle = head == -1 ? -1 : zero_clusters (v, start, end, mode);
  tail = middle == -1 ? -1 : write_missing_zeros (v, offset + count - end, end);
  return tail == -1 ? -1 : head | middle | tail;
}
