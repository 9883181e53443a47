/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do new host clusters come from, and when may freed ones be used again?
 *
 *      alloc_reserve             alloc_abort    alloc_free_run
 *        ^       ^                    |              |
 *        |       +------- idle <------+-- ... <------+   (quarantine.c)
 *     reserve              ^
 *        |                 |
 *     end of the file    scan of what the file had free
 *
 * - Reserve: clusters [bump, bump_end) at the end of the file.  Counts are raised for a
 *   batch at a time (1 MiB at first, up to 8 MiB as long as they are used up; less
 *   where the host has no space for so many), and the file is made long enough.
 *   They have never been used and lie past the
 *   old end of the file, so they read as zeros.  Below settled_end this, and
 *   their counts, are durable.  A crash leaks no more than the reserve.
 * - Idle: clusters whose count is 0 in memory, and a scan of the refcounts for those that
 *   we don't know (allocidle.c).
 *
 * Which one serves a request for N clusters?  The first of:
 *   1. the lowest idle run that has room for all of it, zeroed ones first;
 *   2. the same after one step of the scan;
 *   3. the longest idle run, if it has 16 clusters or more, or if more than an eighth
 *      of the file is idle (then the file must not grow any more, fragments or
 *      not);
 *   4. the reserve;
 *   5. when the file can't grow: any idle run, scanning all the rest.
 *
 * R5: a run is checked against the known metadata before it is handed out, and again
 * before it is punched; and its counts must be exactly what we think.
 *
 * What is freed or given back is never lost for lack of memory: what can't be
 * put into the idle sets has a count of 0, by which a scan finds it.
 *
 * Locks: `lock' guards everything that changes.  It is held during reads of refcount
 * blocks and when the file is made longer or shorter, never during punches.
 * It is taken before the locks of refcount and overlap.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/format.h"
#include "space/alloc-impl.h"

#define MIN_BATCH (UINT64_C (1) << 20)          /* bytes */
#define MAX_BATCH (UINT64_C (8) << 20)
#define MIN_BATCH_CLUSTERS 4
/* No extension is larger than this for the sake of one request (bytes). */
#define MAX_REQUEST (UINT64_C (64) << 20)
/* L2 tables are laid out side by side in runs of this many bytes. */
#define TABLE_RUN ALLOC_TABLE_SPACE
/* Shorter idle runs are not worth splitting a larger request for. */
#define MIN_FRAGMENT 16
/* Runs of idle clusters that are known at a time, FREESET_RUN_BYTES each. */
#define MAX_IDLE_RUNS 65536

static uint64_t
min_batch (const struct alloc *a)
{
  return max64 (MIN_BATCH >> a->bits, MIN_BATCH_CLUSTERS);
}

struct alloc *
alloc_open (struct storage *file, unsigned cluster_bits,
            struct refcounts *refcounts, struct overlap *overlap,
            struct grace *grace, const struct alloc_options *options)
{
  struct alloc *a;
  uint64_t end;

  if (refcount_end (refcounts, &end) == -1)
    return NULL;
  a = calloc (1, sizeof *a);
  if (a == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  pthread_mutex_init (&a->lock, NULL);
  a->file = file;
  a->refcounts = refcounts;
  a->overlap = overlap;
  a->grace = grace;
  a->bits = cluster_bits;
  a->discard = options->discard;
  a->budget = options->budget;
  a->regular = storage_is_regular (file);
  a->open_size = storage_size (file);
  a->scan = 1;                  /* R5: 0 is the header */
  a->scan_end = max64 (end, 1);
  a->bump = a->scan_end;
  if (a->regular)
    a->bump = max64 (a->bump, div_up (a->open_size, UINT64_C (1) << a->bits));
  a->bump_end = a->settled_end = a->bump;
  a->batch = min_batch (a);
  a->max_idle = MAX_IDLE_RUNS;
  return a;
}

void
alloc_close (struct alloc *a)
{
  if (a == NULL)
    return;
  alloc_idle_close (a);
  free_items (a->rooms);
  free_items (a->pending.head);
  free_items (a->waiting.head);
  pthread_mutex_destroy (&a->lock);
  free (a);
}

/* Called back by refcount_dec. */
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

/* --- taking clusters: all with the lock held --- */

/* Drops the counts of the reserve; it has never been used.  -1: there is no memory, and
 * nothing has changed. */
static int
drop_reserve (struct alloc *a)
{
  if (a->bump < a->bump_end &&
      refcount_dec (a->refcounts, a->bump, a->bump_end - a->bump,
                    NULL, NULL) == -1) {
    if (errno == ENOMEM)
      return -1;
    a->bump = a->bump_end;      /* reported; they are leaked */
  }
  return 0;
}

/* How the reserve gets longer. */
struct extension {
  uint64_t n;                   /* clusters, at its end */
  uint64_t place, used;         /* clusters of new refcount blocks and tables */
};

/* What is needed to count N more clusters takes the first of the reserve: so it lies with
 * the data, wherever they end, and the reserve stays in one piece.  If it is too short
 * for that, it goes behind it. */
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

/* Where the file must end then, in clusters. */
static uint64_t
extended_end (const struct alloc *a, const struct extension *e)
{
  return a->bump_end + e->n + (e->place == a->bump_end ? e->used : 0);
}

/* Plans for N clusters, and has the host make the length and the space for them. */
static int
find_space (struct alloc *a, uint64_t n, struct extension *e)
{
  if (plan_extension (a, n, e) == -1)
    return -1;
  return storage_extend (a->file, extended_end (a, e) << a->bits,
                         e->place << a->bits, e->used << a->bits);
}

/* The same for as many as there is space for: N clusters, or WANT, or else at least half
 * of what would fit.  (How much that is can't be asked: the end of a device, a full file
 * system, a quota and a limit for files all look the same.) */
static int
find_space_that_is_left (struct alloc *a, uint64_t n, uint64_t want,
                         struct extension *e)
{
  while (find_space (a, n, e) == -1) {
    if (errno != ENOSPC || n == 1)
      return -1;
    n = n > want ? max64 (n / 2, want) : n / 2;
  }
  return 0;
}

/* Puts a batch, or at least WANT clusters, at the end of the reserve; fewer where there
 * is no space for so many.  -1: ENOSPC (there is none at all) is not reported. */
static int
extend_reserve (struct alloc *a, uint64_t want)
{
  const uint64_t n = max64 (a->batch, min64 (want, MAX_REQUEST >> a->bits));
  struct extension e;
  uint64_t first;

  /* This first: if it fails, nothing has happened. */
  if (find_space_that_is_left (a, n, want, &e) == -1) {
    if (errno == ENOSPC)
      a->batch = 1;
    return -1;
  }
  if (e.used > 0 && e.place == a->bump_end) {
    /* The new metadata cuts the reserve in two: what is left of the old one is put
     * with the idle clusters. */
    const uint64_t old = a->bump;

    if (drop_reserve (a) == -1)
      return -1;
    if (old == a->bump && old < a->bump_end)
      alloc_add_idle (a, old, a->bump_end - old, a->regular);
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
  a->stats.extended += e.n;
  /* Near the end of the space the next one need not begin with too much again. */
  a->batch = e.n < n ? min64 (a->batch, e.n)
    : min64 (a->batch * 2, max64 (MAX_BATCH >> a->bits, MIN_BATCH_CLUSTERS));
  return 0;
}

/* Returns 2, so that it can be told from idle clusters. */
static int
take_reserve (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  n = min64 (n, a->bump_end - a->bump);
  if (alloc_check_no_metadata (a, a->bump, n, "allocated") == -1)
    return -1;
  *run = (struct alloc_run) {
    .host = a->bump << a->bits, .clusters = n, .zeroed = a->regular,
    .settled = a->regular && a->bump + n <= a->settled_end,
  };
  a->bump += n;
  a->bump_used = true;
  return 2;
}

/* The file can't grow: whatever there is.  ENOSPC is reported here. */
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
    nbdkit_error ("%s: there is no memory to record free clusters, and the file "
                  "cannot grow", storage_path (a->file));
    errno = ENOMEM;
  }
  else if (r == 0) {
    nbdkit_error ("%s: no cluster is free, and the file cannot grow beyond %" PRIu64
                  " bytes: no space is left, or a limit on file sizes was reached",
                  storage_path (a->file), storage_size (a->file));
    errno = ENOSPC;
  }
  return -1;
}

/* The order of preference: see the top of the file.  1: idle clusters, 2: from the
 * reserve, -1: failed.
 */
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
  return 0;
}

/* Takes a run for tables, with the space on the host that they need: a checkpoint that
 * finds no space for a table could not be helped by trimming, for what is trimmed goes
 * only after a checkpoint.  (Larger tables are mostly empty: l2.c does this for
 * them, slice by slice.)  Called with the lock held. */
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
  a->tables_fresh = r == 2 && a->regular;
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
    /* Perhaps the rest of the run has become durable since it was taken. */
    .settled = a->tables_fresh && first < a->settled_end,
  };
  a->tables.host += cs;
  a->tables.clusters--;
  a->stats.allocated++;
  return 0;
}

/* --- giving clusters back --- */

void
alloc_drop_run (struct alloc *a, uint64_t first, uint64_t n, bool zeroed)
{
  refcount_dec (a->refcounts, first, n, zeroed ? became_zeroed : became_stale,
                a);
}

void
alloc_abort (struct alloc *a, const struct alloc_run *run)
{
  KEEP_ERRNO_FOR_BLOCK;
  LOCK_FOR_BLOCK (&a->lock);

  /* Nobody else ever knew of them: no need to wait.  They may have been written.  A
   * failure has been reported; the clusters are leaked. */
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

  /* Who needs clusters will meet a failure again, and report it if it is ENOSPC. */
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
alloc_get_stats (struct alloc *a, struct alloc_stats *stats)
{
  LOCK_FOR_BLOCK (&a->lock);
  *stats = a->stats;
}
