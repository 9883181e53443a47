/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is wrong with this image, all of it?
 *
 * Everything that names a host cluster is walked, as in census.c.  But a census
 * wants to know what the refcounts should be, and gives up at the first fault; a scan
 * goes on, compares with the refcounts that are there, and says what it found.
 * What it can't follow (it is not aligned, or lies outside of the file) it does not
 * follow.
 *
 * For each window of SCAN_WINDOW clusters:
 *
 *    scanrefs     which stored refcounts are 1?  (for COPIED flags)
 *    scantables   count references; look at L1, L2 and other tables
 *    scanrefs     compare the stored refcounts with the references
 *    scandata     if all is to be read: inflate compressed clusters, read the file
 *
 * L2 tables and refcount blocks don't depend on each other: a few threads take a few of
 * them at a time.
 *
 * Memory has a bound, whatever the image says: counters (64 MiB), gathered tables
 * (24 MiB), the refcount table (8 MiB), and what each of at most MAX_THREADS threads
 * needs (1 MiB, or a few clusters).  So has time, as far as the file takes space on the
 * host: a table that lies in a hole of the file names nothing and is not read; L1
 * tables that share clusters are walked once; a table that lies where something else is
 * is not walked.  In a corrupt file of more than MAX_CORRUPT_WINDOWS windows the rest is
 * not counted.
 *
 * The counters of a window are in tally.c, threads and the reading of tables in
 * scanwork.c.
 *
 * Locks: none; counters and statistics are atomic.  What the orders are does not matter:
 * joining the threads makes all of it visible.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "util/report.h"
#include "check/scan-impl.h"

/* Each window is a walk over all metadata: this many are more than any image of
 * QEMU's needs (256 TiB with clusters of 64K). */
#define MAX_WINDOWS 256

/* One that is corrupt, and larger than any sane one, is looked at no further. */
#define MAX_CORRUPT_WINDOWS 8

static int
scan_window (struct scan *s, uint64_t first)
{
  free ((void *) s->counters);
  s->first = first;
  s->n = min64 (s->clusters - first, SCAN_WINDOW);
  s->counters = calloc (s->n, sizeof *s->counters);
  if (s->counters == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  s->next = UINT64_MAX;
  s->bitmap_entries = 0;
  s->bitmaps_in_use = 0;

  scan_refer (s, 0, s->h->cluster_size, SCAN_TABLE, 1, "header");
  if (scan_load_refcounts (s) == -1 ||
      scan_refer_refcounts (s) == -1 ||
      scan_encryption (s) == -1 ||
      scan_bitmaps (s) == -1 ||
      scan_active (s) == -1 ||
      scan_snapshots (s) == -1 ||
      scan_l2_tables (s) == -1)
    return -1;
  return scan_compare_refcounts (s);
}

static int
scan_windows (struct scan *s)
{
  uint64_t window;
  unsigned n = 0;

  for (window = 0; window != UINT64_MAX; window = s->next) {
    if (++n > MAX_WINDOWS) {
      nbdkit_error ("%s: check: the clusters in use are too far apart in the file",
                    hostfile_path (s->file));
      errno = EFBIG;
      return -1;
    }
    if (scan_window (s, window) == -1)
      return -1;
    if (n >= MAX_CORRUPT_WINDOWS && findings_corruptions (s->findings) > 0)
      break;
  }
  return 0;
}

static int
scan_begin (struct scan *s)
{
  s->clusters = div_up (hostfile_size (s->file), s->h->cluster_size);
  s->sparse = hostfile_allocated (s->file) < hostfile_size (s->file);
  s->data_file = (s->h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
  s->tables = malloc (SCAN_TABLES * sizeof *s->tables);
  if (s->full)
    s->pool = compress_pool_new ();
  if (s->tables == NULL || (s->full && s->pool == NULL)) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  return scan_read_reftable (s);
}

int
scan_image (struct hostfile *file, const struct header *h, bool full,
            struct findings *findings, struct scan_stats *stats)
{
  struct scan s = { .file = file, .h = h, .findings = findings, .full = full };
  int r = scan_begin (&s) == -1 || scan_windows (&s) == -1 ||
    (full && scan_read_all (&s) == -1) ? -1 : 0;
  int err = errno;

  stats->total_clusters = div_up (h->size, h->cluster_size);
  stats->allocated = s.allocated;
  stats->compressed = s.compressed;
  stats->fragmented = s.fragmented;
  stats->end = s.end;
  stats->bitmaps_in_use = s.bitmaps_in_use;
  free ((void *) s.counters);
  free (s.tables);
  free (s.reftable);
  free (s.skip);
  compress_pool_free (s.pool);
  errno = err;
  return r;
}

int
scan_raw (struct hostfile *file, struct findings *findings)
{
  struct scan s = { .file = file, .findings = findings, .full = true };

  return scan_read_all (&s);
}
