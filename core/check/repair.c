/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image that was not closed properly get correct refcounts?
 *
 * The dirty bit says that refcounts may be too low, too high or out of date (lazy
 * refcounts).  L1 and L2 tables can be trusted.  So all references in them and in the
 * other metadata are counted (recount.c), and a refcount structure is written that shares
 * nothing with the old one:
 *
 *    in use, or counted by the old refcounts        | table | blocks | snapshot table |
 *                                                   ^ past the end of all that
 *
 * Nothing points to these clusters, so until the header points to the new table nothing
 * is lost, whichever writes reach the disk:
 *
 *   1  write blocks and table, correct COPIED flags (R7), sync
 *   2  write the header's references to the tables: 24 bytes of one sector, sync
 *   3  the caller clears the dirty bit
 *
 * A power cut before the end leaves the image dirty: we, or QEMU, repair it again from
 * the start.  No program relies on COPIED flags while the image is dirty, so some or all
 * of them may be corrected in place.  Afterwards the clusters of the old refcounts are
 * free space.
 *
 * New refcounts do not help if a cluster has two uses, or if a reference points to an
 * invalid place.  Then the repair refuses, before it has written anything.
 *
 * A user can also request a repair (check.c), for an image with leaks or worse.  Then the
 * caller sets the dirty bit first, so that all of the above holds.  A version 2 image has
 * no dirty bit.  There, a partial correction of flags does no harm either: a flag is
 * cleared only if the cluster really is shared, and set only if it is not, and no other
 * change is durable before the switch.
 *
 * With a new snapshot table (snapmend.c), all this is about the references of the
 * snapshots in it.  Without one, the old table stays where it is.
 *
 * No clusters are punched or cut off, not even leaked ones: data whose L2 table was lost
 * shows up as leaks, and a user who wants to save it must be able to find it.  But a
 * device or an export may end before the new structure does.  Then it begins behind
 * everything in use, where only leaked clusters can be.
 *
 * Locks: none; runs before any other thread can write.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "image/headerwrite.h"
#include "space/refblock.h"
#include "space/reflayout.h"
#include "check/recount.h"
#include "check/copiedflags.h"
#include "check/repair.h"

/* QEMU never writes a file whose clusters are spread over more windows than this.  Each
 * window costs a walk over all metadata. */
#define MAX_WINDOWS 256

#define MAX_TABLE_ENTRIES (QCOW2_MAX_REFTABLE_BYTES / sizeof (struct be64))

struct repair {
  struct storage *file;
  struct header *h;
  struct recount *recount;
  struct overlap *overlap;      /* or NULL, if a new snapshot table was made */
  unsigned block_bits;          /* log2 of the clusters that a block covers */
  uint64_t max;                 /* the largest refcount that can be stored */

  bool *needed;                 /* is a block needed?  by index in the refcount table */
  uint64_t entries;             /* one past the last index that needs a block */
  /* The place of the new structure, in clusters. */
  uint64_t place, table_clusters, blocks, snapshot_clusters;
  const struct snaptable *snapshots;    /* a new table, or NULL */

  struct be64 *table;           /* the new one */
  unsigned char *cluster;       /* a buffer */
  struct pace *pace;            /* or NULL */
  bool asked;                   /* the user asked for the repair */
  bool refused;                 /* and the reason was reported */
};

static int
refuse_repair (struct repair *r, const char *why)
{
  report_error ("%s: %s: %s%s", storage_path (r->file), r->asked ?
                "cannot repair the refcounts" :
                "the image was not closed properly and cannot be repaired, so it cannot "
                "be changed", why, r->asked ? "; nothing was changed" : "");
  r->refused = true;
  errno = EUCLEAN;
  return -1;
}

static int
take (struct repair *r, uint64_t window)
{
  const char *why;

  if (recount_window (r->recount, window) == 0)
    return 0;
  why = recount_fault (r->recount);
  return why ? refuse_repair (r, why) : -1;
}

/* --- which blocks are needed --- */

/* Marks the blocks that the last window counted needs. */
static int
mark_needed (struct repair *r, uint64_t window)
{
  const uint64_t end = min64 (window + REFWINDOW_CLUSTERS, recount_end (r->recount));
  uint64_t c, count;

  for (c = window; c < end; c++) {
    count = recount_get (r->recount, c);
    if (count == 0)
      continue;
    if (count > r->max)
      return refuse_repair (r, "a cluster has more references than its refcount can "
                            "say");
    if (count >= REFWINDOW_MAX)
      return refuse_repair (r, "a cluster has more references than can be counted");
    if (c >> r->block_bits >= MAX_TABLE_ENTRIES)
      return refuse_repair (r, "the file is larger than a refcount table can describe");
    r->needed[c >> r->block_bits] = true;
    r->entries = max64 (r->entries, (c >> r->block_bits) + 1);
  }
  return 0;
}

/* Walks all metadata once for each window that has references. */
static int
look_around (struct repair *r)
{
  uint64_t window;
  unsigned n = 0;

  for (window = 0; window != UINT64_MAX; window = recount_next (r->recount)) {
    if (++n > MAX_WINDOWS)
      return refuse_repair (r, "the clusters in use are too far apart in the file");
    if (take (r, window) == -1 || mark_needed (r, window) == -1)
      return -1;
  }
  return 0;
}

/* Sets *END to one past the last cluster of the file that the old refcounts, which may be
 * wrong, count as used. */
static int
old_end (struct repair *r, uint64_t *end)
{
  const struct walk *walk = recount_walk (r->recount);
  const uint64_t cs = r->h->cluster_size;
  const uint64_t clusters = div_up (storage_size (r->file), cs);
  uint64_t i, offset, n;

  *end = 0;
  walk_reftable (walk, &n);
  for (i = min64 (n, (clusters >> r->block_bits) + 1); i-- > 0; ) {
    offset = walk_refblock (walk, i);
    if (offset == 0)
      continue;
    if (storage_read (r->file, r->cluster, cs, offset) == -1)
      return -1;
    n = refblock_end (r->cluster, r->h->refcount_order, cs);
    if (n > 0) {
      *end = min64 (clusters, (i << r->block_bits) + n);
      return 0;
    }
  }
  return 0;
}

static bool
is_needed (const void *opaque, uint64_t index)
{
  return ((const struct repair *) opaque)->needed[index];
}

/* Computes the size of a structure at PLACE, which counts itself, and the index of its
 * LAST block. */
static int
lay_out_at (struct repair *r, uint64_t place, uint64_t *last)
{
  struct reflayout_size size;
  struct reflayout layout = {
    .cluster_bits = r->h->cluster_bits, .block_bits = r->block_bits, .first = place,
    .n = r->snapshot_clusters, .has_block = is_needed, .opaque = r,
    .min_table = r->h->reftable_clusters,
  };

  r->place = place;
  for (uint64_t i = 0; i < r->entries; i++)
    layout.blocks += r->needed[i];
  if (reflayout_find (&layout, &size) == -1)
    return refuse_repair (r, "the file is larger than a refcount table can describe");
  r->table_clusters = size.table;
  r->blocks = size.blocks;
  *last = size.last;
  return 0;
}

/* Of all that is new, in clusters. */
static uint64_t
new_clusters (const struct repair *r)
{
  return r->table_clusters + r->blocks + r->snapshot_clusters;
}

static bool
has_room (const struct repair *r)
{
  const uint64_t end = (r->place + new_clusters (r)) << r->h->cluster_bits;

  return storage_is_regular (r->file) || end <= storage_size_now (r->file, true);
}

/* Finds a place for the table and the blocks. */
static int
lay_out (struct repair *r)
{
  const uint64_t used = recount_end (r->recount);
  uint64_t i, counted, last;

  if (old_end (r, &counted) == -1 || lay_out_at (r, max64 (counted, used), &last) == -1 ||
      (!has_room (r) && lay_out_at (r, used, &last) == -1))
    return -1;
  for (i = r->place >> r->block_bits; i <= last; i++)
    r->needed[i] = true;
  r->entries = last + 1;        /* nothing needs a later one */
  /* R5: all known metadata was counted or is refcounts. */
  if (r->overlap &&
      overlap_find (r->overlap, r->place << r->h->cluster_bits,
                    new_clusters (r) << r->h->cluster_bits) != OVERLAP_NONE)
    return refuse_repair (r, "metadata lies beyond the end of everything in use");
  return 0;
}

/* The new refcount of CLUSTER. */
static uint64_t
new_count (const struct repair *r, uint64_t cluster)
{
  if (cluster >= r->place)      /* past all clusters in use */
    return cluster - r->place < new_clusters (r);
  return recount_get (r->recount, cluster);
}

/* --- the new refcounts --- */

static int
write_block (struct repair *r, uint64_t index, uint64_t offset)
{
  const uint64_t first = index << r->block_bits;
  const uint64_t n = UINT64_C (1) << r->block_bits;
  uint64_t i, count;

  memset (r->cluster, 0, r->h->cluster_size);
  for (i = 0; i < n; i++) {
    count = new_count (r, first + i);
    if (count != 0)
      refblock_set (r->cluster, r->h->refcount_order, i, count);
  }
  return storage_write (r->file, r->cluster, r->h->cluster_size, offset);
}

static uint64_t
snapshots_place (const struct repair *r)
{
  return (r->place + r->table_clusters + r->blocks) << r->h->cluster_bits;
}

/* With zeros after it, so that no old bytes follow. */
static int
write_snapshots (struct repair *r)
{
  const struct snaptable *t = r->snapshots;
  const uint64_t bytes = r->snapshot_clusters << r->h->cluster_bits;

  if (bytes == 0)
    return 0;
  memset (r->cluster, 0, r->h->cluster_size);
  return storage_write (r->file, t->bytes, t->size, snapshots_place (r)) == -1 ||
    storage_write (r->file, r->cluster, bytes - t->size, snapshots_place (r) + t->size) ==
    -1 ? -1 : 0;
}

/* Step 1, without its sync. */
static int
write_structure (struct repair *r)
{
  const uint64_t bytes = r->table_clusters << r->h->cluster_bits;
  uint64_t at = (r->place + r->table_clusters) << r->h->cluster_bits;
  uint64_t i, window, taken = UINT64_MAX;

  r->table = calloc (1, bytes);
  if (r->table == NULL) {
    report_error ("refcount table of %" PRIu64 " bytes: %m", bytes);
    return -1;
  }
  /* Every window that has references has a block that is needed. */
  for (i = 0; i < r->entries; i++) {
    if (!r->needed[i])
      continue;
    window = round_down (i << r->block_bits, REFWINDOW_CLUSTERS);
    if (window != taken) {
      if (take (r, window) == -1 ||
          copiedflags_correct (r->file, r->h, r->recount, r->cluster) == -1)
        return -1;
      taken = window;
    }
    if (write_block (r, i, at) == -1)
      return -1;
    r->table[i] = put64 (at);
    at += r->h->cluster_size;
  }
  return storage_write (r->file, r->table, bytes, r->place << r->h->cluster_bits) == -1
    ? -1 : write_snapshots (r);
}

/* Step 2. */
static int
switch_tables (struct repair *r)
{
  struct header new = *r->h;

  new.reftable_offset = r->place << r->h->cluster_bits;
  new.reftable_clusters = r->table_clusters;
  if (r->snapshots) {
    new.nb_snapshots = r->snapshots->n;
    new.snapshots_offset = r->snapshots->n ? snapshots_place (r) : 0;
  }
  if (headerwrite_tables (r->file, &new) == -1 || storage_sync (r->file) == -1)
    return -1;
  *r->h = new;
  return 0;
}

/* The clusters of the old refcounts, at REFTABLE, are no longer metadata. */
static void
forget_old (struct repair *r, uint64_t reftable, uint64_t clusters)
{
  const uint64_t cs = r->h->cluster_size;
  uint64_t n, i, offset;
  const struct be64 *table = walk_reftable (recount_walk (r->recount), &n);

  overlap_remove (r->overlap, reftable, clusters * cs);
  for (i = 0; i < n; i++) {
    offset = get64 (table[i]) & QCOW2_REFTABLE_OFFSET_MASK;
    if (offset != 0 && (offset & (cs - 1)) == 0 &&
        offset < QCOW2_MAX_HOST_OFFSET)
      overlap_remove (r->overlap, offset, cs);
  }
}

static int
do_repair (struct repair *r)
{
  const uint64_t size = storage_size (r->file);
  const struct header old = *r->h;

  if (look_around (r) == -1 || lay_out (r) == -1)
    return -1;
  /* What follows can take a second count. */
  if (r->pace)
    r->pace->deaf = true;
  if (write_structure (r) == -1 || storage_sync (r->file) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    /* The header does not point to what was written. */
    if (storage_is_regular (r->file) && storage_size (r->file) > size)
      storage_truncate (r->file, size);
    return -1;
  }
  if (switch_tables (r) == -1)
    return -1;
  if (r->overlap)
    forget_old (r, old.reftable_offset, old.reftable_clusters);
  report_debug ("%s: repaired: new refcounts at %" PRIu64
                ", %" PRIu64 " blocks", storage_path (r->file),
                r->h->reftable_offset, r->blocks);
  return 0;
}

/* Allocates buffers and the recount. */
static int
begin_repair (struct repair *r)
{
  r->needed = calloc (MAX_TABLE_ENTRIES, sizeof *r->needed);
  r->cluster = malloc (r->h->cluster_size);
  if (r->needed == NULL || r->cluster == NULL) {
    report_error ("%s: repair: %m", storage_path (r->file));
    return -1;
  }
  r->recount = recount_new (r->file, r->h, 0);
  if (r->recount == NULL)
    return -1;
  recount_follow (r->recount, r->pace);
  if (r->snapshots) {
    recount_replace_snapshots (r->recount);
    r->snapshot_clusters = div_up (r->snapshots->size, r->h->cluster_size);
  }
  return 0;
}

int
repair_refcounts (struct image *image, bool asked, const struct snaptable *snapshots,
                  struct pace *pace)
{
  struct storage *file = image->file;
  struct header *h = &image->header;
  struct repair r = {
    .file = file, .h = h, .overlap = image->overlap, .asked = asked,
    .snapshots = snapshots, .pace = pace,
    .block_bits = refblock_bits (h->cluster_bits, h->refcount_order),
    .max = refblock_max (h->refcount_order),
  };
  int res;

  res = begin_repair (&r) == -1 ? -1 : do_repair (&r);
  KEEP_ERRNO_FOR_BLOCK;
  if (res == -1 && !r.refused)
    report_error ("%s: %s", storage_path (file), errno == EINTR ?
                  "the repair was stopped; nothing was changed" :
                  asked || errno == ENOMEM ?
                  "the refcounts could not be repaired" :
                  "the image was not closed properly and could not be repaired, so it "
                  "cannot be changed");
  recount_free (r.recount);
  free (r.needed);
  free (r.table);
  free (r.cluster);
  return res;
}
