/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do new host clusters come from, and when may freed ones be used again?
 *
 *      alloc_reserve             alloc_abort    alloc_free_run
 *        ^       ^                    |              |
 *        |       +------- idle <------+-- ... <------+   (allocdefer.c)
 *     reserve              ^
 *        |                 |
 *     end of the file    scan for clusters that are free in the file
 *
 * - Reserve: clusters [bump, bump_end) at the end of the file.  Their counts are
 *   incremented a batch at a time (1 MiB at first, then up to 8 MiB while batches are
 *   used up; less if the host does not have the space, or if nothing would give back what
 *   a crash leaks), and the file is extended.  Those from `fresh' on have never been used
 *   and read as zeros: because they lie past the old end of the file (those before it, if
 *   there are any, were written before a crash and never counted), or because storage of
 *   a fixed size has zeros there or could zero the batch at once.  Below settled_end,
 *   this and their counts are durable.  The reserve is never longer than one and a half
 *   batches, nor is what a crash leaks of it.
 * - Idle: clusters whose count is 0 in memory.  A scan of the refcounts finds those that
 *   are not known (allocidle.c).
 *
 * A request for N clusters takes the first of these that is available:
 *   1. the lowest idle run that is long enough, zeroed runs first;
 *   2. the same after one step of the scan;
 *   3. the longest idle run, if it has 16 clusters or more, or if more than an eighth
 *      of the file is idle (then the file must not grow any more, even if this fragments
 *      data);
 *   4. the reserve;
 *   5. if the file cannot grow: any idle run, after scanning all the rest.
 *
 * (alloc.h has the life of a cluster.)  What is to be allocated must have exactly the
 * expected counts.
 *
 * Clusters that are freed or given back are never lost when memory is short.  Those that
 * cannot be put into the idle sets have a count of 0, so a scan finds them.
 *
 * On a device that can grow, the watermark is compared with what is left between bump and
 * its end, each time the reserve is used.  The size that is known may be an old one, so
 * the host is asked before anything is reported; and when it has grown, it can become
 * low again.
 *
 * A threshold is compared with bump at the same times, whatever the image is stored in.
 *
 * Locks: `lock' guards everything that changes.  It is held while refcount blocks are
 * read, while the file is extended or truncated and while a batch is zeroed, never during
 * punches.  It is taken before the locks of refcount and overlap.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/format.h"
#include "space/alloc-impl.h"

#define MIN_BATCH (UINT64_C (1) << 20)          /* bytes */
#define MAX_BATCH (UINT64_C (8) << 20)
#define LASTING_BATCH (UINT64_C (256) << 10)    /* if leaks_last */
#define MIN_BATCH_CLUSTERS 4
/* About how many bytes the storage is asked first, and at most, to learn where it has
 * zeros.  Writers wait for the answer. */
#define FIRST_ZEROS_SPAN (UINT64_C (64) << 20)
#define MOST_ZEROS_SPAN (UINT64_C (1) << 30)
/* One request extends the file by no more than this (bytes). */
#define MAX_REQUEST (UINT64_C (64) << 20)
/* L2 tables are placed side by side in runs of this many bytes. */
#define TABLE_RUN ALLOC_TABLE_SPACE
/* A larger request is not split for the sake of a shorter idle run (clusters). */
#define MIN_FRAGMENT 16
/* The largest number of idle runs that are known at a time, FREESET_RUN_BYTES each. */
#define MAX_IDLE_RUNS 65536

/* Tells once that the file is used beyond a place.  The caller holds the lock. */
static void
watch_threshold (struct alloc *a)
{
  struct alloc_threshold *const t = a->threshold;
  const uint64_t end = a->bump << a->bits, bytes = t ? t->bytes : 0;

  if (bytes == 0 || end <= bytes || t->reached > bytes)
    return;
  t->reached = end;
  if (a->news)
    a->news ();
}

/* Reports that little of the device is left, if that is news.  The caller holds the
 * lock. */
static void
watch_end (struct alloc *a)
{
  const uint64_t end = a->bump << a->bits;
  uint64_t size = storage_size (a->file);

  watch_threshold (a);
  if (a->watermark == 0 || size == a->low_size || end + a->watermark <= size)
    return;
  size = storage_size_now (a->file, false);
  if (size == a->low_size || end + a->watermark <= size)
    return;
  a->low_size = size;
  a->stats.low++;
  report_event (EVENT_LOW_SPACE, storage_path (a->file), "%" PRIu64 " of %" PRIu64
                " bytes are left, less than the watermark, %" PRIu64, size - min64 (end, size),
                size, a->watermark);
  if (a->news)
    a->news ();
}

static uint64_t
min_batch (const struct alloc *a)
{
  return max64 ((a->leaks_last ? LASTING_BATCH : MIN_BATCH) >> a->bits,
                MIN_BATCH_CLUSTERS);
}

static uint64_t
max_batch (const struct alloc *a)
{
  return max64 ((a->leaks_last ? LASTING_BATCH : MAX_BATCH) >> a->bits,
                MIN_BATCH_CLUSTERS);
}

struct alloc *
alloc_open (struct storage *file, unsigned cluster_bits,
            struct refcounts *refcounts, struct overlap *overlap,
            struct epoch *epoch, const struct alloc_options *options)
{
  struct alloc *a;
  uint64_t end;

  if (refcount_end (refcounts, &end) == -1)
    return NULL;
  a = memory_new (1, sizeof *a);
  if (a == NULL)
    return NULL;
  pthread_mutex_init (&a->lock, NULL);
  a->file = file;
  a->refcounts = refcounts;
  a->overlap = overlap;
  a->epoch = epoch;
  a->bits = cluster_bits;
  a->discard = options->discard;
  a->budget = options->budget;
  a->leaks_last = options->leaks_last;
  a->watermark = options->watermark;
  a->threshold = options->threshold;
  a->news = options->news;
  a->regular = storage_is_regular (file);
  a->open_size = storage_size (file);
  a->scan = 1;                  /* R5: 0 is the header */
  a->scan_end = max64 (end, 1);
  a->bump = a->scan_end;
  a->fresh = a->regular ? div_up (a->open_size, UINT64_C (1) << a->bits) : UINT64_MAX;
  a->bump_end = a->settled_end = a->bump;
  a->batch = min_batch (a);
  a->zeros_span = FIRST_ZEROS_SPAN;
  a->max_idle = MAX_IDLE_RUNS;
  a->max_items = SIZE_MAX;
  watch_end (a);
  return a;
}

void
alloc_close (struct alloc *a)
{
  if (a == NULL)
    return;
  alloc_idle_close (a);
  free_items (a->spare);
  free_items (a->pending.head);
  free_items (a->waiting.head);
  free_items (a->aside.head);
  pthread_mutex_destroy (&a->lock);
  free (a);
}

/* Callback for refcount_dec. */
static void
became_stale (void *opaque, uint64_t first, uint64_t n)
{
  alloc_add_idle (opaque, first, n, false);
}

static void
became_zeroed (void *opaque, uint64_t first, uint64_t n)
{
  alloc_add_idle (opaque, first, n, true);
}

/* --- taking clusters; the caller holds the lock --- */

/* Decrements the counts of the reserve, which was never used.  Returns -1 if there is no
 * memory; then nothing has changed. */
static int
drop_reserve (struct alloc *a)
{
  alloc_trace (a, "the reserve, given back", a->bump, a->bump_end - a->bump);
  if (a->bump < a->bump_end &&
      refcount_dec (a->refcounts, a->bump, a->bump_end - a->bump,
                    NULL, NULL) == -1) {
    if (errno == ENOMEM)
      return -1;
    a->bump = a->bump_end;      /* reported; they are leaked */
  }
  return 0;
}

/* How the reserve is extended. */
struct extension {
  uint64_t n;                   /* clusters added at its end */
  uint64_t place, used;         /* clusters for new refcount blocks and tables */
};

/* Refcount blocks and tables that are needed to count N more clusters take the first
 * clusters of the reserve.  So they lie next to the data, wherever that ends, and the
 * reserve stays contiguous.  If the reserve is too short for them, they go behind it. */
static int
plan_extension (struct alloc *a, uint64_t n, struct extension *e)
{
  e->n = n;
  e->place = a->bump;
  if (refcount_extend_cost (a->refcounts, e->place, a->bump_end, n,
                            &e->used) == -1)
    return -1;
  if (e->used <= a->bump_end - a->bump)
    return 0;
  e->place = a->bump_end;
  return refcount_extend_cost (a->refcounts, e->place, a->bump_end, n, &e->used);
}

/* The end of the file after that, in clusters. */
static uint64_t
extended_end (const struct alloc *a, const struct extension *e)
{
  return a->bump_end + e->n + (e->place == a->bump_end ? e->used : 0);
}

/* Plans to add N clusters, extends the file, and has the host allocate the space. */
static int
find_space (struct alloc *a, uint64_t n, struct extension *e)
{
  if (plan_extension (a, n, e) == -1)
    return -1;
  return storage_extend (a->file, extended_end (a, e) << a->bits,
                         e->place << a->bits, e->used << a->bits);
}

static bool
has_grown (struct alloc *a)
{
  KEEP_ERRNO_FOR_BLOCK;
  const uint64_t before = storage_size (a->file);

  return storage_size_now (a->file, true) > before;
}

/* Like find_space, for as many clusters as there is space for: N, or WANT, or else at
 * least half of what would fit.  (The plugin cannot ask how much would fit: the end of a
 * device, a full file system, a quota and a limit on file sizes all look the same.)
 *
 * The size of a device is asked for when nothing is left: an export is not asked again
 * for a while (nbdfile.c), and a batch that was too large would use that up. */
static int
find_space_that_is_left (struct alloc *a, uint64_t most, uint64_t want,
                         struct extension *e)
{
  uint64_t n = most;

  while (find_space (a, n, e) == -1)
    if (errno != ENOSPC)
      return -1;
    else if (n > 1)
      n = n > want ? max64 (n / 2, want) : n / 2;
    else if (has_grown (a))
      n = most;
    else
      return -1;
  return 0;
}

/* Does the storage have zeros in clusters [first, first+n)?  It is asked about more than
 * these, as far as it had only zeros so far.  An answer holds for what was never part of
 * the reserve since then. */
static bool
has_zeros (struct alloc *a, uint64_t first, uint64_t n)
{
  const uint64_t offset = first << a->bits, size = storage_size (a->file);
  uint64_t span, found;

  if (first < a->zeros || first + n > a->zeros_end) {
    span = round_down (min64 (a->zeros_span, size - min64 (offset, size)),
                       UINT64_C (1) << a->bits);
    span = max64 (span, n << a->bits);
    found = storage_find_zeros (a->file, offset, span);
    a->zeros_span = found < span ? found : min64 (4 * span, MOST_ZEROS_SPAN);
    a->zeros_end = first + (found >> a->bits);
  }
  a->zeros = first + n;
  return a->zeros <= a->zeros_end;
}

/* New clusters [first, first+n) of the reserve, on storage that may contain anything: if
 * it has zeros there or makes them at once, writers need not write zeros around their
 * data.  This lasts once a sync has followed, like the counts. */
static void
zero_batch (struct alloc *a, uint64_t first, uint64_t n)
{
  const uint64_t offset = first << a->bits, bytes = n << a->bits;

  if (a->regular)
    return;
  /* (A forged table is there; the allocation of these clusters reports it.) */
  if (!a->discard || overlap_find (a->overlap, offset, bytes) != OVERLAP_NONE ||
      !(has_zeros (a, first, n) || storage_zero_at_once (a->file, offset, bytes) == 1))
    a->fresh = UINT64_MAX;
  else
    a->fresh = min64 (a->fresh, first);
}

/* Adds a batch, or at least WANT clusters, to the end of the reserve; fewer if there is
 * not enough space.  Returns -1 on error; ENOSPC (there is no space at all) is not
 * reported. */
static int
extend_reserve (struct alloc *a, uint64_t want)
{
  const uint64_t n = max64 (a->batch, min64 (want, MAX_REQUEST >> a->bits));
  struct extension e;
  uint64_t first;

  /* This comes first: if it fails, nothing has changed. */
  if (find_space_that_is_left (a, n, want, &e) == -1) {
    if (errno == ENOSPC)
      a->batch = 1;
    return -1;
  }
  if (e.used > 0 && e.place == a->bump_end) {
    /* The new metadata splits the reserve; the rest of the old reserve becomes idle. */
    const uint64_t old = a->bump;

    if (drop_reserve (a) == -1)
      return -1;
    if (old == a->bump && old < a->bump_end)
      alloc_add_idle (a, old, a->bump_end - old, old >= a->fresh);
    a->bump = a->bump_end;
  }
  if (refcount_extend (a->refcounts, e.place, a->bump_end, e.n, &e.used) == -1)
    return -1;
  a->bump += e.used;
  a->bump_end = max64 (a->bump_end, a->bump);
  first = a->bump_end;
  if (refcount_claim (a->refcounts, first, e.n) == -1)
    return -1;
  a->bump_end = first + e.n;
  zero_batch (a, first, e.n);
  a->stats.extended += e.n;
  alloc_trace (a, "added to the reserve", first, e.n);
  /* When little space is left, the next batch need not start too large again. */
  a->batch = e.n < n ? min64 (a->batch, e.n)
    : min64 (a->batch * 2, max_batch (a));
  return 0;
}

/* Returns 2, so that the caller can tell these from idle clusters. */
static int
take_reserve (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  n = min64 (n, a->bump_end - a->bump);
  if (alloc_check_no_metadata (a, a->bump, n, "allocated") == -1)
    return -1;
  *run = (struct alloc_run) {
    .host = a->bump << a->bits, .clusters = n, .zeroed = a->bump >= a->fresh,
    .settled = a->bump >= a->fresh && a->bump + n <= a->settled_end,
  };
  alloc_trace (a, "taken from the reserve", a->bump, n);
  a->bump += n;
  a->bump_used = true;
  watch_end (a);
  return 2;
}

/* The file cannot grow: takes any clusters that are free.  Reports ENOSPC. */
static int
take_anything (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  int r;

  if (a->bump < a->bump_end)
    return take_reserve (a, n, run);
  do {
    r = alloc_take_longest (a, 1, n, run);
    if (r != 0)
      return r;
    r = alloc_scan_step (a);
  } while (r == 1);
  if (r == 0 && a->starved) {
    report_error ("%s: there is no memory to record free clusters, and the file "
                  "cannot grow", storage_path (a->file));
    errno = ENOMEM;
  }
  else if (r == 0) {
    report_error ("%s: no cluster is free, and the file cannot grow beyond %" PRIu64
                  " bytes: no space is left, or a limit on file sizes was reached",
                  storage_path (a->file), storage_size (a->file));
    errno = ENOSPC;
  }
  return -1;
}

/* The order of preference is at the top of the file. */
int
alloc_take (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  uint64_t least;
  int r;

  r = alloc_take_idle (a, n, n, run);
  if (r != 0)
    return r;
  if (alloc_scan_step (a) == -1)
    return -1;
  r = alloc_take_idle (a, n, n, run);
  if (r != 0)
    return r;

  least = alloc_idle_clusters (a) > a->bump / 8
    ? 1 : min64 (n, MIN_FRAGMENT);
  r = alloc_take_longest (a, least, n, run);
  if (r != 0)
    return r;

  if (a->bump_end - a->bump < n &&
      extend_reserve (a, n - (a->bump_end - a->bump)) == -1) {
    if (errno != ENOSPC)
      return -1;
    return take_anything (a, n, run);
  }
  return take_reserve (a, n, run);
}

int
alloc_reserve (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  LOCK_FOR_BLOCK (&a->lock);

  assert (n > 0);
  if (alloc_take (a, n, run) == -1)
    return -1;
  a->stats.allocated += run->clusters;
  alloc_trace (a, "for data", run->host >> a->bits, run->clusters);
  return 0;
}

/* Takes a run for tables, for which the host has allocated space.  Without it, a
 * checkpoint that finds no space for a table could not be helped by trimming, because
 * trimmed clusters become free only after a checkpoint.  (Larger tables are mostly empty:
 * l2.c allocates their space slice by slice.)  The caller holds the lock. */
static int
reserve_table_run (struct alloc *a)
{
  struct alloc_run run;
  const int r = alloc_take (a, max64 (TABLE_RUN >> a->bits, 1), &run);

  if (r == -1)
    return -1;
  if (UINT64_C (1) << a->bits <= TABLE_RUN &&
      storage_allocate (a->file, run.host, run.clusters << a->bits) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    alloc_drop_run (a, run.host >> a->bits, run.clusters, run.zeroed);
    return -1;
  }
  a->tables = run;
  a->tables_fresh = r == 2 && run.zeroed;
  return 0;
}

int
alloc_reserve_table (struct alloc *a, struct alloc_run *run)
{
  const uint64_t cs = UINT64_C (1) << a->bits;
  uint64_t first;
  LOCK_FOR_BLOCK (&a->lock);

  if (a->tables.clusters == 0 && reserve_table_run (a) == -1)
    return -1;
  first = a->tables.host >> a->bits;
  if (alloc_check_no_metadata (a, first, 1, "an L2 table") == -1 ||
      overlap_add (a->overlap, a->tables.host, cs, OVERLAP_L2) == -1)
    return -1;
  *run = (struct alloc_run) {
    .host = a->tables.host, .clusters = 1, .zeroed = a->tables.zeroed,
    /* The rest of the run may have become durable since it was taken. */
    .settled = a->tables_fresh && first < a->settled_end,
  };
  a->tables.host += cs;
  a->tables.clusters--;
  a->stats.allocated++;
  alloc_trace (a, "for an L2 table", first, 1);
  return 0;
}

/* --- giving clusters back --- */

void
alloc_drop_run (struct alloc *a, uint64_t first, uint64_t n, bool zeroed)
{
  alloc_trace (a, "given back, never used", first, n);
  refcount_dec (a->refcounts, first, n, zeroed ? became_zeroed : became_stale,
                a);
}

void
alloc_abort (struct alloc *a, const struct alloc_run *run)
{
  KEEP_ERRNO_FOR_BLOCK;
  LOCK_FOR_BLOCK (&a->lock);

  /* These clusters were never published, so there is no need to wait.  They may have been
   * written.  A failure has been reported; the clusters are leaked. */
  alloc_trace (a, "given back, never published", run->host >> a->bits, run->clusters);
  refcount_dec (a->refcounts, run->host >> a->bits, run->clusters,
                became_stale, a);
  a->stats.allocated -= run->clusters;
}

void
alloc_abort_table (struct alloc *a, const struct alloc_run *run)
{
  overlap_remove (a->overlap, run->host, run->clusters << a->bits);
  alloc_abort (a, run);
}

/* --- reserve and end of file --- */

uint64_t
alloc_top_up (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);

  /* An allocation will meet the failure again, and report it if it is ENOSPC. */
  if (a->bump_used && a->bump_end - a->bump < a->batch / 2)
    extend_reserve (a, 0);
  a->top_mark = a->bump_end;
  return a->bump_end;
}

void
alloc_settle (struct alloc *a, uint64_t mark)
{
  LOCK_FOR_BLOCK (&a->lock);
  a->settled_end = max64 (a->settled_end,
                          min64 (min64 (mark, a->top_mark), a->bump_end));
}

int
alloc_give_back_reserve (struct alloc *a)
{
  if (drop_reserve (a) == -1)
    return -1;
  a->bump_end = a->bump;
  a->settled_end = min64 (a->settled_end, a->bump);
  a->top_mark = min64 (a->top_mark, a->bump);
  a->batch = min_batch (a);
  a->bump_used = false;
  if (a->tables.clusters > 0)
    alloc_drop_run (a, a->tables.host >> a->bits, a->tables.clusters,
                    a->tables.zeroed);
  a->tables.clusters = 0;
  return 0;
}

void
alloc_watch (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);

  watch_threshold (a);
}

void
alloc_get_stats (struct alloc *a, struct alloc_stats *stats)
{
  LOCK_FOR_BLOCK (&a->lock);
  *stats = a->stats;
  stats->high_water = a->bump << a->bits;
  stats->free = alloc_idle_clusters (a) + a->bump_end - a->bump;
  stats->deferred = a->deferred;
}
