/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do zero clusters go, which version 2 cannot express?
 *
 * Part of amend.c.  They are replaced in copies of their L2 tables: by unallocated
 * clusters if there is no backing file, otherwise by clusters that contain zeros.
 *
 * The L1 tables of the snapshots come first, one after the other, then the active one.
 * Each has a reference to each of its L2 tables, and to each cluster that these point to;
 * each gives up the references of the old table and takes those of the copy.  Snapshots
 * that follow each other share most tables, so for each L1 index the last copy is
 * remembered, and the next L1 table with the same old table at that index gets the same
 * copy.  A table that two L1 tables share otherwise has two copies then, which costs only
 * space.
 *
 * A zero cluster may keep a host cluster that another table uses for data.  When the zero
 * cluster has given it up, it may belong to the active disk alone.  So the active tables
 * get their COPIED flags by the refcounts (R7) if there are snapshots.
 *
 * Memory: an L1 table, and twice as much for the copies.  Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/format.h"
#include "change/amend-impl.h"

/* The place of an L2 table, and of its copy.  FROM is 0 if there is none, TO if the copy
 * would be empty. */
struct moved {
  uint64_t from, to;
};

/* The copy gets its place with the L1 table. */
#define NOT_YET UINT64_MAX

struct removal {
  struct shadow *s;
  const struct image *image;
  bool hides;
  bool active;                  /* in the tables of the active disk now */
  struct be64 *l2;
  struct moved *moved;          /* by L1 index; NULL if there are no snapshots */
};

static bool
is_zero_cluster (struct be64 entry)
{
  return !(get64 (entry) & QCOW2_OFLAG_COMPRESSED) && (get64 (entry) & QCOW2_OFLAG_ZERO);
}

static uint64_t
table_of (struct be64 l1_entry)
{
  return get64 (l1_entry) & QCOW2_L1_OFFSET_MASK;
}

static uint64_t
nr_entries (const struct removal *r)
{
  return UINT64_C (1) << r->image->header.l2_bits;
}

/* Sets entries [FROM, TO) of r->l2, all of which are zero clusters. */
static int
replace_entries (struct removal *r, uint64_t from, uint64_t to)
{
  const unsigned bits = r->image->header.cluster_bits;
  const uint64_t copied = r->active ? QCOW2_OFLAG_COPIED : 0;
  uint64_t host = 0;

  if (shadow_drop_l2 (r->s, r->l2, from, to) == -1)
    return -1;
  if (r->hides && r->image->cipher)
    return report_refusal (EPERM, "%s: the image cannot be changed to version 2: it is "
                           "encrypted, and has zero clusters over a backing file",
                           storage_path (r->image->file));
  if (r->hides && shadow_take_zeros (r->s, to - from, &host) == -1)
    return -1;
  for (; from < to; from++) {
    r->l2[from] = put64 (r->hides ? host | copied : 0);
    host += UINT64_C (1) << bits;
  }
  return 0;
}

/* Returns 1 if r->l2 has changed, else 0, or -1. */
static int
replace_in_table (struct removal *r)
{
  const uint64_t n = nr_entries (r);
  bool changed = false;
  uint64_t from, to;
  int flags = 0;

  for (from = 0; from < n; from = to) {
    for (to = from; to < n && is_zero_cluster (r->l2[to]); to++)
      ;
    if (to > from && replace_entries (r, from, to) == -1)
      return -1;
    changed |= to > from;
    to += to == from;
  }
  if (r->active && r->moved)
    flags = shadow_correct_l2 (r->s, r->l2, r->image->header.cluster_size, true);
  return flags == -1 ? -1 : changed | flags;
}

/* Has the L1 entry point to the copy in MOVED of its table, which is r->l2. */
static int
share_copy (struct removal *r, const struct moved *moved, struct be64 *l1_entry)
{
  const struct header *h = &r->image->header;

  if (shadow_drop_l2 (r->s, r->l2, 0, nr_entries (r)) == -1 ||
      shadow_drop (r->s, moved->from >> h->cluster_bits, 1) == -1)
    return -1;
  *l1_entry = put64 (moved->to);
  if (moved->to == 0)
    return 0;
  if (storage_read (r->image->file, r->l2, h->cluster_size, moved->to) == -1 ||
      shadow_add_l2 (r->s, r->l2, 0, nr_entries (r)) == -1)
    return -1;
  return shadow_add (r->s, moved->to >> h->cluster_bits, 1);
}

/* Replaces the zero clusters of the table to which the L1 entry I points. */
static int
replace_below (struct removal *r, struct be64 *l1, uint64_t i)
{
  const struct header *h = &r->image->header;
  const uint64_t table = table_of (l1[i]);
  struct moved *const m = r->moved ? &r->moved[i] : NULL;
  bool empty;
  int changed;

  if (table == 0)
    return 0;
  if (shadow_read_l2 (r->s, table, r->l2) == -1)
    return -1;
  if (m && m->from == table)
    return share_copy (r, m, &l1[i]);
  changed = replace_in_table (r);
  if (changed <= 0)
    return changed;
  if (shadow_drop (r->s, table >> h->cluster_bits, 1) == -1)
    return -1;
  empty = bytes_are_zero (r->l2, h->cluster_size);
  if (m)
    *m = (struct moved) { table, empty ? 0 : NOT_YET };
  if (!empty)
    return shadow_replace_l2 (r->s, r->l2, &l1[i]);
  l1[i] = put64 (0);
  return 0;
}

/* Writes an L1 table of OLD entries at *PLACE anew, with N, and sets *PLACE. */
static int
replace_table (struct removal *r, uint64_t old, uint64_t n, uint64_t *place)
{
  CLEANUP_FREE struct be64 *l1 = shadow_read_l1 (r->s, *place, old, n);

  if (l1 == NULL)
    return -1;
  for (uint64_t i = 0; i < old; i++) {
    shadow_expect (r->s, l1, i, old);
    if (replace_below (r, l1, i) == -1)
      return -1;
  }
  if (shadow_drop_range (r->s, *place, old * sizeof *l1) == -1 ||
      shadow_write_l1 (r->s, l1, n, place) == -1)
    return -1;
  for (uint64_t i = 0; r->moved && i < old; i++)
    if (r->moved[i].to == NOT_YET)
      r->moved[i].to = table_of (l1[i]);
  return 0;
}

static int
replace_all (struct removal *r, struct shadow_header *sh, uint64_t *places)
{
  const struct snapshots *snapshots = &r->image->snapshots;
  const struct header *h = &r->image->header;

  for (uint32_t i = 0; i < snapshots->n; i++) {
    const uint64_t n = snapshots->list[i].l1_entries;

    if (n > 0 && replace_table (r, n, n, &places[i]) == -1)
      return -1;
  }
  r->active = true;
  sh->l1_entries = max64 (1, h->l1_entries);
  return replace_table (r, h->l1_entries, sh->l1_entries, &sh->l1_offset);
}

/* The length of the longest L1 table. */
static uint64_t
longest (const struct image *image)
{
  uint64_t n = image->header.l1_entries;

  for (uint32_t i = 0; i < image->snapshots.n; i++)
    n = max64 (n, image->snapshots.list[i].l1_entries);
  return max64 (1, n);
}

int
amend_replace_zeros (const struct image *image, bool hides, struct shadow *s,
                     struct shadow_header *sh, uint64_t *places)
{
  const size_t bytes = longest (image) * sizeof (struct moved);
  struct removal r = {
    .s = s, .image = image, .hides = hides, .l2 = malloc (image->header.cluster_size),
    .moved = image->snapshots.n > 0 ? sparse_new (bytes) : NULL,
  };
  int ret = -1;

  if (r.l2 == NULL || (image->snapshots.n > 0 && r.moved == NULL))
    report_error ("%s: L2 tables: %m", storage_path (image->file));
  else
    ret = replace_all (&r, sh, places);
  if (r.moved)
    sparse_free (r.moved, bytes);
  free (r.l2);
  return ret;
}
