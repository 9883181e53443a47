/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When do changed mappings reach the file, and in which order?
 *
 * Everything changes in memory first.  A checkpoint writes the changes to the file in an
 * order that survives a crash at any instant, whichever subset of the writes since the
 * last sync has reached the disk (the life of a cluster: space/alloc.h):
 *
 *      take the freed runs            their pointers have gone from memory
 *      raise counts ahead             so that most checkpoints need one sync
 *      copy slices, L1 entries        before the first sync: the guest data to which the
 *                                     copies point has been handed to the kernel (if
 *                                     they are not settled)
 *   1  write counts, sync             R1, R3: the targets of the pointers
 *   2  write the copies, sync         the pointers
 *      release the freed runs         R2, R4 (a); and the discarded clusters of an
 *                                     external data file (discards.c)
 *
 * The sync of phase one is left out if every pointer in the copies is settled: its count
 * is already durable, and its target reads the same with or without its contents (R3).
 * One sync then serves both phases.
 *
 * With an external data file, the barrier before L2 entries is a sync of that file, and
 * the image is synced only if it has changed.  So a flush without a change of metadata is
 * one sync, as it is without such a file.
 *
 * The slices are not copied all at once, so the copies may contain a part of a request
 * that is in flight.  Each entry is valid on its own, and a flush promises only completed
 * requests.
 *
 * ENOSPC, ENOMEM: the changes go back to where they came from, nothing is released, and
 * the next checkpoint tries again.  Pointers that did reach the file are valid, because
 * phase one came first.  Any other failure stops all changes for good (R9).
 *
 * Before the first change of metadata is written, an image with lazy refcounts gets its
 * dirty bit (health.c).
 *
 * Ahead: a client that flushes after each write would wait for the data, and then for the
 * entry that points to it.  If the image is on a server, that is a round trip more.  So
 * the first write after a flush publishes its entry before its data is there (cow.c), and
 * the timer's thread writes the slice meanwhile, if all pointers in it are settled.  The
 * slice stays unsettled until the next checkpoint has synced it.  If that fails, nothing
 * is lost: the slice waits for the checkpoint, as before.
 *
 * Group commit: flushes that arrive while a checkpoint runs share the next one.
 *
 * Timer: a client that never flushes would leave all changes of metadata in memory, and
 * lose everything in a crash.  So a thread flushes at each tick if there is anything to
 * be made durable.  While there is no space it tries again at each tick, too: nothing
 * tells it that there is some again.  Only its messages become rare.
 *
 * Locks: `lock' guards the fields that decide whose turn it is, and those of the timer;
 * it is not held while a checkpoint runs.  Only the thread that set `running' executes
 * run () or write_ahead ().
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/report.h"
#include "request/checkpoint.h"

struct checkpoint {
  struct image *image;
  struct l2 *l2;
  struct alloc *alloc;
  struct refcounts *refcounts;
  struct discards *discards;    /* of the external data file, or NULL */
  uint64_t dirty_limit;

  struct refcount_moved left;   /* clusters of the old refcount table; only the thread
                                   that runs a checkpoint uses it */
  uint64_t number;              /* of the running checkpoint; the same */
  struct l2_batch ahead;        /* slices that were written ahead, and not synced; the
                                   same */
  _Atomic bool is_ahead;        /* there are some */
  _Atomic bool writes_ahead;    /* the next write that allocates is the first one after a
                                   flush */
  _Atomic unsigned tables_freed;  /* old tables whose counts were lowered in memory, in
                                     version 2 */
  _Atomic unsigned tables_settled;  /* those that the file no longer counts */

  pthread_mutex_t lock;
  pthread_cond_t turn;
  bool running;                 /* guarded by lock */
  uint64_t started, completed;  /* numbers of checkpoints; guarded by lock */
  uint64_t aheads;              /* how often slices were to be written ahead; the same */
  int result;                   /* errno of the last one, or 0; guarded by lock */

  uint64_t interval_ms;         /* constant, as the next two */
  void (*after) (void *opaque);
  void *opaque;
  pthread_t timer;              /* if ticking; only the caller of start and stop uses
                                   it */
  pthread_cond_t tick;          /* its clock is CLOCK_MONOTONIC */
  bool ticking, wanted;         /* guarded by lock; wanted: slices shall be written
                                   ahead */

  _Atomic uint64_t flushes, runs, syncs, shared, timed, ns, longest_ns;
};

/* One flush does at most so many more checkpoints than it was asked for. */
#define MOST_MORE 8
/* While there is no space, the timer reports that less and less often, up to this. */
#define MAX_QUIET_MS 60000
/* If more slices have changed, bytes, they are not written ahead: a flush might wait. */
#define MOST_AHEAD (UINT64_C (256) << 10)
#define TIMER_STACK (UINT64_C (256) << 10)

/* Only the thread that runs a checkpoint calls this. */
#define trace(ck, fmt, ...)                                             \
  report_trace (TRACE_CHECKPOINT, "%s: checkpoint %" PRIu64 ": " fmt,   \
                storage_path ((ck)->image->file), (ck)->number, __VA_ARGS__)

struct checkpoint *
checkpoint_new (const struct checkpoint_options *options)
{
  struct checkpoint *ck = memory_new (1, sizeof *ck);

  if (ck == NULL)
    return NULL;
  ck->image = options->image;
  ck->l2 = options->l2;
  ck->alloc = options->alloc;
  ck->refcounts = options->refcounts;
  ck->discards = options->discards;
  ck->dirty_limit = options->dirty_limit;
  ck->interval_ms = options->interval_ms;
  ck->after = options->after;
  ck->opaque = options->opaque;
  pthread_mutex_init (&ck->lock, NULL);
  pthread_cond_init (&ck->turn, NULL);
  clock_init_condition (&ck->tick);
  return ck;
}

/* What was written ahead is durable, if OK, or waits to be written again. */
static void
ahead_done (struct checkpoint *ck, bool ok)
{
  if (!ck->is_ahead)
    return;
  l2_done (ck->l2, &ck->ahead, ok);
  ck->is_ahead = false;
}

void
checkpoint_free (struct checkpoint *ck)
{
  if (ck == NULL)
    return;
  ahead_done (ck, false);
  pthread_cond_destroy (&ck->tick);
  pthread_cond_destroy (&ck->turn);
  pthread_mutex_destroy (&ck->lock);
  free (ck);
}

/* Syncs one of the two files.  (-1 with ENOMEM: it could not even begin.) */
static int
sync_one (struct checkpoint *ck, struct storage *file, bool always)
{
  int r = always ? storage_sync (file) : storage_sync_changes (file);

  if (always || r != 0)
    ck->syncs++;
  return r == -1 ? -1 : 0;
}

static int
sync_file (struct checkpoint *ck)
{
  return sync_one (ck, ck->image->file, ck->image->data == NULL);
}

/* Before pointers are written: syncs their targets. */
static int
sync_targets (struct checkpoint *ck, const struct l2_batch *snap)
{
  if (ck->image->data == NULL)
    return snap->barrier ? sync_file (ck) : 0;
  if (sync_one (ck, ck->image->data, false) == -1)
    return -1;
  return snap->l1_barrier ? sync_file (ck) : 0;
}

/* The refcount table has moved: its old clusters are released once that is durable.  Only
 * the refcount module has ever used them, so they need no grace period. */
static int
release_old_table (struct checkpoint *ck)
{
  const unsigned bits = ck->image->header.cluster_bits;

  if (ck->left.n == 0)
    return 0;
  if (sync_file (ck) == -1)
    return -1;
  overlap_remove (ck->image->overlap, ck->left.first << bits, ck->left.n << bits);
  if (refcount_dec (ck->refcounts, ck->left.first, ck->left.n, NULL, NULL) == -1)
    return -1;
  ck->left.n = 0;
  ck->tables_freed += ck->image->header.version == 2;
  return 0;
}

/* Writes changed counts.  If the refcount table has moved, the clusters of the old one
 * must not be lost, so they are released at once.  (This is rare: the table doubles each
 * time.)  Their counts are not written here: clients may have taken clusters since, whose
 * pointers are not in this checkpoint's copies. */
static int
write_counts (struct checkpoint *ck)
{
  if (release_old_table (ck) == -1)
    return -1;
  if (!refcount_is_dirty (ck->refcounts))
    return 0;
  if (refcount_write (ck->refcounts, &ck->left) == -1)
    return -1;
  return release_old_table (ck);
}

/* Both phases: writes everything that the copies in SNAP need, then SNAP. */
static int
write_phases (struct checkpoint *ck, struct l2_batch *snap)
{
  const uint64_t mark = alloc_top_up (ck->alloc);

  /* Taken after the mark, so all counts up to it are included. */
  if (l2_take (ck->l2, snap) == -1)
    return -1;
  alloc_expose_frees (ck->alloc);
  trace (ck, "%d slices and %u L1 entries have changed, counts have%s, pointers %s",
         snap->nr_slices, snap->nr_l1, refcount_is_dirty (ck->refcounts) ? "" : " not",
         snap->barrier ? "wait for their targets" : "are settled");
  if ((snap->nr_slices > 0 || snap->nr_l1 > 0 ||
       refcount_is_dirty (ck->refcounts)) &&
      health_begin_changes (ck->image->health) == -1)
    return -1;
  if (write_counts (ck) == -1)
    return -1;
  if (sync_targets (ck, snap) == -1)
    return -1;
  trace (ck, "counts are written%s", snap->barrier ? ", and targets durable" : "");
  if (l2_write (ck->l2, snap) == -1)
    return -1;
  if (sync_file (ck) == -1)
    return -1;
  trace (ck, "%s", "pointers are durable");
  alloc_settle (ck->alloc, mark);
  return 0;
}

/* Does one checkpoint.  Only the thread that has set `running' calls this. */
static int
run (struct checkpoint *ck)
{
  const unsigned tables_freed = ck->tables_freed;
  const int64_t began = clock_ns ();
  struct l2_batch snap = { 0 };
  struct alloc_frees *frees;
  int r, err;

  if (health_check (ck->image->health) == -1) {
    ahead_done (ck, false);     /* keeps errno */
    return -1;
  }

  frees = alloc_take_frees (ck->alloc);
  discards_take (ck->discards);
  r = write_phases (ck, &snap);
  if (r == -1 && errno == EUCLEAN)
    health_corrupt (ck->image->health, "found while writing metadata");
  else if (r == -1 && !storage_may_try_again (errno)) {
    health_fail (ck->image->health, "changes could not be made durable");       /* R9 */
    errno = EIO;
  }

  err = errno;
  if (snap.nr_slices > 0 || snap.nr_l1 > 0) {
    const uint64_t ns = clock_ns () - began;

    ck->runs++;
    ck->ns += ns;
    ck->longest_ns = max64 (ck->longest_ns, ns);        /* (one thread runs them) */
  }
  if (r == 0)
    ck->tables_settled = tables_freed;
  l2_done (ck->l2, &snap, r == 0);
  ahead_done (ck, r == 0);
  discards_done (ck->discards, r == 0);
  if (alloc_frees_done (ck->alloc, frees, r == 0) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  if (r == -1 && err == EUCLEAN) {
    health_corrupt (ck->image->health, "found while releasing clusters");
    err = EIO;
  }
  errno = err;
  return r;
}

static int
flush_once (struct checkpoint *ck, const char *why)
{
  uint64_t mine;
  bool did_run = false;
  int r = 0, err = 0;

  pthread_mutex_lock (&ck->lock);
  /* A checkpoint that starts from now on covers everything done before this call. */
  mine = ck->started + 1;
  while (ck->completed < mine) {
    if (ck->running) {
      pthread_cond_wait (&ck->turn, &ck->lock);
      continue;
    }
    ck->running = true;
    ck->number = ++ck->started;
    pthread_mutex_unlock (&ck->lock);
    trace (ck, "begins: %s", why);
    r = run (ck);
    trace (ck, "%s", r == 0 ? "ends" : strerror (errno));
    err = r == -1 ? errno : 0;
    pthread_mutex_lock (&ck->lock);
    ck->running = false;
    ck->completed = ck->started;
    ck->result = err;
    did_run = true;
    pthread_cond_broadcast (&ck->turn);
  }
  /* A later checkpoint may have ended since; it covers this call too. */
  err = ck->result;
  pthread_mutex_unlock (&ck->lock);

  if (!did_run)
    ck->shared++;
  if (err != 0) {
    errno = err;
    return -1;
  }
  return 0;
}

/* Does or shares a checkpoint.  The file still has the old counts of what it released: if
 * a crash would leak much of that, or a whole table for good, another one writes the new
 * counts.  What was freed while it collected changes needs one more, to be released.
 * (Others may free more meanwhile, again and again; they must not hold up the caller for
 * ever.)  That promises nothing to the caller, so its errors are left to the next flush,
 * which meets them. */
static int
flush_and_settle (struct checkpoint *ck, const char *why)
{
  if (flush_once (ck, why) == -1)
    return -1;
  for (int i = 0; i < MOST_MORE && (ck->tables_freed != ck->tables_settled ||
                                    alloc_wants_release (ck->alloc)); i++)
    if (flush_once (ck, "for the counts of what was freed") == -1)
      break;
  return 0;
}

static int
reap (struct checkpoint *ck, int (*fn) (struct alloc *))
{
  discards_reap (ck->discards);
  if (fn (ck->alloc) == 0)
    return 0;
  if (errno == EUCLEAN)
    health_corrupt (ck->image->health, "found while releasing clusters");
  return -1;
}

int
checkpoint_reap (struct checkpoint *ck)
{
  return reap (ck, alloc_reap);
}

bool
checkpoint_holds_back (struct checkpoint *ck)
{
  return alloc_deferred (ck->alloc) > 0 || discards_clusters (ck->discards) > 0;
}

int
checkpoint_flush (struct checkpoint *ck)
{
  ck->flushes++;
  if (flush_and_settle (ck, "a flush") == -1)
    return -1;
  if (storage_is_remote (ck->image->file) && ck->image->data == NULL) {
    LOCK_FOR_BLOCK (&ck->lock);
    ck->writes_ahead = ck->ticking;
  }
  return reap (ck, alloc_reap_some);
}

void
checkpoint_relieve (struct checkpoint *ck)
{
  if (health_check (ck->image->health) == -1)
    return;
  if (l2_dirty_beyond (ck->l2, ck->dirty_limit) ||
      alloc_wants_release (ck->alloc) ||
      discards_crowded (ck->discards))
    flush_and_settle (ck, "much has changed, or was freed");
  reap (ck, alloc_reap_some);
}

/* --- the timer --- */

/* Would a flush make anything durable? */
static bool
is_due (struct checkpoint *ck)
{
  return l2_dirty_beyond (ck->l2, 0) || ck->is_ahead || refcount_is_dirty (ck->refcounts) ||
    storage_has_changes (ck->image->file) ||
    (ck->image->data && storage_has_changes (ck->image->data));
}

/* What a running checkpoint has taken does not look changed, and may be again when it has
 * failed. */
bool
checkpoint_has_changes (struct checkpoint *ck)
{
  uint64_t started, aheads;
  bool due;

  {
    LOCK_FOR_BLOCK (&ck->lock);
    if (ck->running)
      return true;
    started = ck->started;
    aheads = ck->aheads;
  }
  due = is_due (ck);
  LOCK_FOR_BLOCK (&ck->lock);
  return due || ck->started != started || ck->aheads != aheads;
}

/* Writes the changed slices without a sync, if that needs nothing else.  Only the thread
 * that has set `running' calls this. */
static int
write_ahead (struct checkpoint *ck)
{
  if (health_check (ck->image->health) == -1 || ck->is_ahead ||
      l2_dirty_beyond (ck->l2, MOST_AHEAD))
    return 0;
  if (l2_take (ck->l2, &ck->ahead) == -1)
    return -1;
  if (ck->ahead.nr_slices > 0 && ck->ahead.nr_l1 == 0 && !ck->ahead.barrier) {
    alloc_expose_frees (ck->alloc);
    if (health_begin_changes (ck->image->health) == 0 &&
        l2_write (ck->l2, &ck->ahead) == 0) {
      ck->is_ahead = true;
      return 0;
    }
  }
  else
    errno = EAGAIN;
  {
    KEEP_ERRNO_FOR_BLOCK;
    l2_done (ck->l2, &ck->ahead, false);
  }
  return -1;
}

/* Waits for the next tick, and writes ahead meanwhile when it is asked to.  False: the
 * timer is stopped. */
static bool
wait_for_tick (struct checkpoint *ck)
{
  const uint64_t end = clock_ms () + ck->interval_ms;
  const struct timespec ts = { end / 1000, end % 1000 * 1000000 };
  LOCK_FOR_BLOCK (&ck->lock);

  while (ck->ticking) {
    if (ck->wanted && !ck->running) {
      ck->running = true;
      ck->aheads++;
      pthread_mutex_unlock (&ck->lock);
      report_keep ();
      report_end_keeping (write_ahead (ck) == 0 || !storage_may_try_again (errno));
      pthread_mutex_lock (&ck->lock);
      ck->running = false;
      pthread_cond_broadcast (&ck->turn);
    }
    ck->wanted = false;
    if (!ck->ticking || pthread_cond_timedwait (&ck->tick, &ck->lock, &ts) != 0)
      break;
  }
  return ck->ticking;
}

bool
checkpoint_writes_ahead (const struct checkpoint *ck)
{
  return atomic_load_explicit (&ck->writes_ahead, memory_order_relaxed);
}

void
checkpoint_ahead (struct checkpoint *ck)
{
  if (!atomic_exchange (&ck->writes_ahead, false))
    return;
  LOCK_FOR_BLOCK (&ck->lock);
  ck->wanted = true;
  pthread_cond_signal (&ck->tick);
}

/* Unless TELL, a lack of space or memory is not reported. */
static bool
flush_in_time (struct checkpoint *ck, bool tell)
{
  bool done;

  ck->timed++;
  report_keep ();
  done = flush_and_settle (ck, "the timer") == 0 && checkpoint_reap (ck) == 0;
  report_end_keeping (done || tell || !storage_may_try_again (errno));
  return done;
}

static void *
run_timer (void *opaque)
{
  struct checkpoint *ck = opaque;
  uint64_t quiet_ms = 0;        /* how long after the last report */
  int64_t tell_at = 0;          /* clock_ms */

  while (wait_for_tick (ck)) {
    bool tell;

    if (health_check (ck->image->health) == -1)
      continue;
    tell = quiet_ms == 0 || clock_ms () >= tell_at;
    if (!is_due (ck) || flush_in_time (ck, tell))
      quiet_ms = 0;
    else if (tell) {
      quiet_ms = min64 (2 * max64 (quiet_ms, ck->interval_ms), MAX_QUIET_MS);
      tell_at = clock_ms () + quiet_ms;
    }
    if (ck->after)
      ck->after (ck->opaque);
  }
  return NULL;
}

void
checkpoint_start_timer (struct checkpoint *ck)
{
  pthread_attr_t attr;
  int err;

  {
    LOCK_FOR_BLOCK (&ck->lock);
    if (ck->interval_ms == 0 || ck->ticking)
      return;
    ck->ticking = true;
  }
  pthread_attr_init (&attr);
  pthread_attr_setstacksize (&attr, TIMER_STACK);
  err = pthread_create (&ck->timer, &attr, run_timer, ck);
  pthread_attr_destroy (&attr);
  if (err == 0)
    return;
  {
    LOCK_FOR_BLOCK (&ck->lock);
    ck->ticking = false;
  }
  report_error ("%s: pthread_create: %s: changes stay in memory until a client flushes",
                storage_path (ck->image->file), strerror (err));
}

void
checkpoint_stop_timer (struct checkpoint *ck)
{
  bool ticking;

  pthread_mutex_lock (&ck->lock);
  ticking = ck->ticking;
  ck->ticking = false;
  pthread_cond_signal (&ck->tick);
  pthread_mutex_unlock (&ck->lock);
  if (ticking)
    pthread_join (ck->timer, NULL);
}

/* --- rest --- */

int
checkpoint_quiesce (struct checkpoint *ck)
{
  /* The second flush writes the counts that the releases of the first one and
   * alloc_give_back have lowered; a third one, those that it has found no memory for. */
  if (checkpoint_flush (ck) == -1 ||
      alloc_give_back (ck->alloc) == -1 ||
      checkpoint_flush (ck) == -1 ||
      (refcount_is_dirty (ck->refcounts) && checkpoint_flush (ck) == -1) ||
      alloc_trim_file (ck->alloc) == -1)
    return -1;
  return 0;
}

void
checkpoint_get_stats (struct checkpoint *ck, struct checkpoint_stats *stats)
{
  stats->flushes = ck->flushes;
  stats->runs = ck->runs;
  stats->syncs = ck->syncs;
  stats->shared = ck->shared;
  stats->timed = ck->timed;
  stats->ns = ck->ns;
  stats->longest_ns = ck->longest_ns;
}
