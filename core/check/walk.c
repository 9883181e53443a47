/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What in an image points to which host clusters?
 *
 *    header        the first cluster
 *    refcounts     refcount table -> blocks
 *    encryption    the LUKS header
 *    bitmaps       directory -> bitmap tables -> bitmap data          (walkbitmaps)
 *    active disk   L1 table -> L2 tables -> data                      (walktables)
 *    snapshots     their table; each: L1 table -> L2 tables -> data   (walksnapshots)
 *
 * A compressed cluster is a reference to each host cluster that its sectors touch.  With
 * an external data file, L2 entries do not refer to clusters of this file.
 *
 * All of it is walked once for each window of clusters that has references, and the
 * references to the clusters of the window are counted (refwindow.c).  The visitor
 * decides what happens when a fault is found: a scan (scan.c) collects all faults, a
 * recount (recount.c) ends at the first one.  Invalid references (not aligned, or outside
 * the file) are not followed.
 *
 * Memory is limited, whatever the image contains: counters (64 MiB), gathered L2 tables
 * (16 MiB), the refcount table (8 MiB), the places of the L1 tables of snapshots (2 MiB),
 * and the buffers of a few threads (1 MiB or a cluster for each).  Time is limited too,
 * by the space that the file uses on the host: a table that lies in a hole of the file
 * has no entries and is not read; of L1 tables that overlap only one is walked; a table
 * that overlaps something else is not walked.
 *
 * Locks: none; counters are atomic.  Joining the threads makes everything visible.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>

#include "util/report.h"
#include "check/walk-impl.h"

/* --- refcounts --- */

static int
read_reftable (struct walk *w)
{
  const uint64_t bytes = w->h->reftable_clusters * w->h->cluster_size;

  w->reftable_entries = bytes / sizeof *w->reftable;
  w->reftable = malloc (max64 (bytes, 1));      /* a header may say that there is none */
  if (w->reftable == NULL) {
    report_error ("%s: refcount table of %" PRIu64 " bytes: %m",
                  storage_path (w->file), bytes);
    return -1;
  }
  return storage_read (w->file, w->reftable, bytes, w->h->reftable_offset);
}

const struct be64 *
walk_reftable (const struct walk *w, uint64_t *entries)
{
  *entries = w->reftable_entries;
  return w->reftable;
}

uint64_t
walk_refblock (const struct walk *w, uint64_t index)
{
  uint64_t offset;

  if (index >= w->reftable_entries)
    return 0;
  offset = get64 (w->reftable[index]) & QCOW2_REFTABLE_OFFSET_MASK;
  if ((offset & (w->h->cluster_size - 1)) != 0 ||
      offset >> w->h->cluster_bits >= w->window.clusters)
    return 0;
  return offset;
}

static int
walk_refcounts (struct walk *w, uint32_t times)
{
  const uint64_t cs = w->h->cluster_size;
  uint64_t i, offset;

  /* (No fault: the header was checked, so its tables lie in the file, and apart.) */
  refwindow_add (&w->window, w->h->reftable_offset, w->h->reftable_clusters * cs,
                 ROLE_REFCOUNTS, times, "refcount table");
  for (i = 0; i < w->reftable_entries; i++) {
    offset = walk_refblock (w, i);
    if (offset != 0 &&
        refwindow_add (&w->window, offset, cs, ROLE_REFCOUNTS, times,
                       "refcount block") == -1)
      return -1;
  }
  return 0;
}

/* --- other metadata --- */

static int
walk_encryption (struct walk *w)
{
  int r;

  if (!w->h->has_crypto)
    return 0;
  r = refwindow_add (&w->window, w->h->crypto.offset, w->h->crypto.length, ROLE_TABLE, 1,
                     "encryption header");
  return r == 1 && w->visitor->encryption ? w->visitor->encryption (w->opaque) : r;
}

static int
walk_active (struct walk *w)
{
  const struct walk_l1 l1 = { w->h->l1_offset, w->h->l1_entries, true };

  if (refwindow_add (&w->window, l1.offset, l1.entries * sizeof (struct be64),
                     ROLE_TABLE, 1, "L1 table") == -1)
    return -1;
  return walk_gather (w, &l1);
}

int
walk_references (struct walk *w, uint32_t refcounts)
{
  w->nr_tables = 0;
  return refwindow_add (&w->window, 0, w->h->cluster_size, ROLE_TABLE, 1,
                        "header") == -1 ||
    walk_refcounts (w, refcounts) == -1 ||
    walk_encryption (w) == -1 ||
    walk_bitmaps (w) == -1 ||
    walk_active (w) == -1 ||
    walk_snapshots (w) == -1 ||
    walk_gathered (w) == -1 ? -1 : 0;
}

int
walk_begin (struct walk *w, uint64_t first, const struct walk_visitor *visitor,
            void *opaque)
{
  const struct refwindow_judge judge = { visitor->fault, opaque };

  w->visitor = visitor;
  w->opaque = opaque;
  if (refwindow_begin (&w->window, first, judge) == 0)
    return 0;
  report_error ("%s: counting references: %m", storage_path (w->file));
  return -1;
}

void
walk_follow (struct walk *w, struct pace *pace)
{
  w->pace = pace;
}

uint64_t
walk_bytes (const struct walk *w)
{
  return w->h->l1_entries * w->h->cluster_size;
}

void
walk_replace_snapshots (struct walk *w)
{
  w->snapshots_times = 0;
}

struct refwindow *
walk_window (struct walk *w)
{
  return &w->window;
}

struct walk *
walk_new (struct storage *file, const struct header *h)
{
  struct walk *w = calloc (1, sizeof *w);

  if (w == NULL)
    goto error;
  w->file = file;
  w->h = h;
  w->snapshots_times = 1;
  w->data_file = (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
  w->sparse = storage_allocated (file) < storage_size (file);
  refwindow_init (&w->window, file, h->cluster_bits);
  w->tables = malloc (WALK_TABLES * sizeof *w->tables);
  if (w->tables == NULL)
    goto error;
  if (read_reftable (w) == 0)
    return w;
  walk_free (w);
  return NULL;

 error:
  report_error ("%s: counting references: %m", storage_path (file));
  walk_free (w);
  return NULL;
}

void
walk_free (struct walk *w)
{
  if (w == NULL)
    return;
  refwindow_free (&w->window);
  free (w->tables);
  free (w->reftable);
  free (w->snapshots);
  free (w);
}
