/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which faults does this image have?
 *
 * For each window of clusters:
 *
 *    scanrefs     mark the clusters whose stored refcount is 1 (for COPIED flags)
 *    walk         count references; everything the walk finds is judged by
 *                 scantables, scansnapshots, scanbitmaps, scanluks
 *    scanrefs     compare the stored refcounts with the references
 *
 * and for a full check:
 *
 *    scandata     decompress all compressed clusters, read the file
 *
 * Faults of single entries are reported in the first window.  Later windows report only
 * faults that depend on counts.
 *
 * In addition to the memory of a walk, a scan needs a few MiB for each of a few threads,
 * and up to 32 MiB to remember compressed clusters (scanseen.c).  Its work is limited,
 * too (scanwork.c).
 * If a file is corrupt and has more than MAX_CORRUPT_WINDOWS windows, the rest is not
 * counted.
 *
 * Locks: none; counters and statistics are atomic.  Their memory order does not matter:
 * joining the threads makes everything visible.
 */

#include <config.h>

#include <errno.h>
#include <stdarg.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "space/refblock.h"
#include "check/scan-impl.h"

/* Each window costs a walk over all metadata.  No image of QEMU's needs more windows than
 * this (256 TiB with clusters of 64K). */
#define MAX_WINDOWS 256

/* A corrupt image with more windows than any sane image is not checked further. */
#define MAX_CORRUPT_WINDOWS 8

/* --- visitors of the walk --- */

static int
tell (void *opaque, enum finding_kind kind, uint64_t times, uint64_t offset,
      const char *fmt, ...)
{
  struct scan *s = opaque;
  va_list args;

  va_start (args, fmt);
  findings_vadd (s->findings, kind, times, offset, fmt, args);
  va_end (args);
  return 0;
}

static const struct walk_visitor first_window = {
  .fault = tell,
  .doubt = tell,
  .encryption = scan_encryption,
  .snapshot = scan_snapshot,
  .bitmap = scan_bitmap,
  .bitmap_entry = scan_bitmap_entry,
  .l1_entry = scan_l1_entry,
  .l2 = scan_l2,
  .l2_tables = scan_l2_tables,
};

/* Other faults were reported in the first window. */
static int
tell_overlap (void *opaque, enum finding_kind kind, uint64_t times, uint64_t offset,
              const char *fmt, ...)
{
  struct scan *s = opaque;
  va_list args;

  if (kind != FINDING_OVERLAP)
    return 0;
  va_start (args, fmt);
  findings_vadd (s->findings, kind, times, offset, fmt, args);
  va_end (args);
  return 0;
}

static const struct walk_visitor later_window = {
  .fault = tell_overlap,
  .doubt = tell_overlap,
  .l1_entry = scan_l1_copied,
  .l2 = scan_l2_copied,
};

/* --- windows --- */

static int
scan_window (struct scan *s, uint64_t first)
{
  if (walk_begin (s->walk, first, first == 0 ? &first_window : &later_window, s) == -1 ||
      scan_load_refcounts (s) == -1)
    return -1;
  if (first == 0)
    scan_reftable (s);
  return walk_references (s->walk, 1) == -1 ? -1 : scan_compare_refcounts (s);
}

/* Of all refcount blocks that the file needs. */
static uint64_t
refcount_bytes (const struct scan *s)
{
  return div_up (s->window->clusters, UINT64_C (1) << s->block_bits)
    << s->h->cluster_bits;
}

static int
scan_windows (struct scan *s)
{
  const uint64_t windows = max64 (1, div_up (s->window->clusters, REFWINDOW_CLUSTERS));
  const uint64_t each = walk_bytes (s->walk) + 2 * refcount_bytes (s) / windows;
  uint64_t window;
  unsigned n = 0;

  pace_expect (s->pace, s->bytes_read + windows * each);
  for (window = 0; window != UINT64_MAX;
       window = min64 (s->window->next, scan_refcounts_next (s))) {
    if (++n > MAX_WINDOWS)
      return report_refusal (EFBIG, "%s: check: the clusters in use are too far apart in "
                             "the file", storage_path (s->file));
    if (scan_window (s, window) == -1)
      return -1;
    pace_left (s->pace, s->bytes_read + (windows - min64 (windows, n)) * each);
    if (n >= MAX_CORRUPT_WINDOWS && findings_corruptions (s->findings) > 0)
      break;
  }
  return 0;
}

static int
scan_begin (struct scan *s)
{
  s->data_file = (s->h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
  s->block_bits = refblock_bits (s->h->cluster_bits, s->h->refcount_order);
  s->walk = walk_new (s->file, s->h);
  if (s->walk == NULL)
    return -1;
  s->window = walk_window (s->walk);
  walk_follow (s->walk, s->pace);
  s->bytes_read = s->full ? storage_allocated (s->file) : 0;
  if (s->full) {
    s->pool = compress_pool_new (NULL);
    s->seen = seen_new (storage_size (s->file));
  }
  if (s->full && (s->pool == NULL || s->seen == NULL)) {
    report_error ("%s: check: %m", storage_path (s->file));
    return -1;
  }
  return 0;
}

int
scan_image (struct storage *file, const struct header *h, struct scan_options options,
            struct findings *findings, struct scan_stats *stats)
{
  struct scan s = {
    .file = file, .h = h, .findings = findings, .full = options.full,
    .pace = options.pace,
  };
  int r;

  scan_limit_work (&s, options.untrusted);
  r = scan_begin (&s) == -1 || scan_windows (&s) == -1 ||
    (s.full && scan_read_all (&s) == -1) ? -1 : 0;
  KEEP_ERRNO_FOR_BLOCK;

  if (r == -1 && errno == EINTR)
    report_error ("%s: the check was stopped", storage_path (file));
  stats->total_clusters = div_up (h->size, h->cluster_size);
  stats->allocated = s.allocated;
  stats->compressed = s.compressed;
  stats->fragmented = s.fragmented;
  stats->end = s.end;
  stats->bitmaps_in_use = s.bitmaps_in_use;
  walk_free (s.walk);
  compress_pool_free (s.pool);
  seen_free (s.seen);
  return r;
}

int
scan_raw (struct storage *file, struct findings *findings, struct pace *pace)
{
  struct scan s = { .file = file, .findings = findings, .full = true, .pace = pace };

  pace_expect (pace, storage_allocated (file));
  return scan_read_all (&s);
}
