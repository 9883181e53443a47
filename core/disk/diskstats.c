/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has a disk done so far?
 *
 * Each part counts for itself.  What the parts of earlier generations have counted is
 * kept as sums.
 *
 * Locks: the disk's lock.
 */

#include <config.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "disk/disk-impl.h"

void
disk_add_stats (struct disk_stats *sum, const struct disk_stats *s)
{
  sum->cluster_cache.ahead += s->cluster_cache.ahead;
  sum->cluster_cache.ahead_hits += s->cluster_cache.ahead_hits;
  sum->cluster_cache.hits += s->cluster_cache.hits;
  sum->cluster_cache.inflations += s->cluster_cache.inflations;
  sum->cluster_cache.waits += s->cluster_cache.waits;
  sum->cluster_cache.evictions += s->cluster_cache.evictions;
  sum->cluster_cache.bytes += s->cluster_cache.bytes;
  sum->cluster_cache.peak_bytes += s->cluster_cache.peak_bytes;
  sum->alloc.allocated += s->alloc.allocated;
  sum->alloc.freed += s->alloc.freed;
  sum->alloc.punched += s->alloc.punched;
  sum->alloc.extended += s->alloc.extended;
  sum->alloc.low += s->alloc.low;
  sum->alloc.free += s->alloc.free;
  sum->alloc.deferred += s->alloc.deferred;
  sum->checkpoint.flushes += s->checkpoint.flushes;
  sum->checkpoint.runs += s->checkpoint.runs;
  sum->checkpoint.syncs += s->checkpoint.syncs;
  sum->checkpoint.shared += s->checkpoint.shared;
  sum->checkpoint.timed += s->checkpoint.timed;
  sum->checkpoint.ns += s->checkpoint.ns;
  sum->checkpoint.longest_ns = max64 (sum->checkpoint.longest_ns,
                                      s->checkpoint.longest_ns);
  sum->space.waiting += s->space.waiting;
  sum->space.requests += s->space.requests;
  sum->space.pauses += s->space.pauses;
  sum->space.ms += s->space.ms;
}

void
disk_stats_end (struct disk_stats *s)
{
  s->cluster_cache.bytes = 0;
  s->alloc.free = s->alloc.deferred = 0;
}

/* Adds the statistics of a generation to *SUM. */
static void
add_generation (const struct generation *g, struct disk_stats *sum)
{
  struct disk_stats stats = { .alloc.low = 0 };

  cluster_cache_get_stats (g->cluster_cache, &stats.cluster_cache);
  if (g->is_live) {
    alloc_get_stats (g->w.alloc, &stats.alloc);
    checkpoint_get_stats (g->w.checkpoint, &stats.checkpoint);
  }
  disk_add_stats (sum, &stats);
  sum->alloc.high_water = stats.alloc.high_water;
}

void
disk_get_stats (struct disk *d, struct disk_stats *stats)
{
  struct storage *file;
  LOCK_FOR_BLOCK (&d->lock);

  file = d->now->image->file;
  *stats = d->past;
  map_get_stats (d->map, &stats->map);
  add_generation (d->now, stats);
  spacewait_get_stats (&d->spacewait, &stats->space);
  /* (The host is not asked for a file's: others wait for this lock.) */
  stats->is_device = !storage_is_regular (file);
  stats->file_size = stats->is_device ? storage_size_now (file, false) : storage_size (file);
}

/* --- a threshold --- */

void
disk_set_threshold (struct disk *d, uint64_t bytes)
{
  LOCK_FOR_BLOCK (&d->lock);

  d->threshold.bytes = 0;
  d->threshold.reached = 0;
  d->threshold.bytes = bytes;
  if (d->now->is_live)
    alloc_watch (d->now->w.alloc);
}

uint64_t
disk_threshold (struct disk *d)
{
  return d->threshold.bytes;
}

bool
disk_take_reached (struct disk *d, uint64_t *bytes, uint64_t *reached)
{
  LOCK_FOR_BLOCK (&d->lock);

  *bytes = d->threshold.bytes;
  *reached = d->threshold.reached;
  /* (What is no more than that was reached before the threshold was changed.) */
  if (*bytes == 0 || *reached <= *bytes)
    return false;
  d->threshold.bytes = 0;
  return true;
}

void
stats_add_past (struct disk *d)
{
  struct cluster_cache_stats *const c = &d->past.cluster_cache;
  const uint64_t peak = c->peak_bytes;

  add_generation (d->now, &d->past);
  disk_stats_end (&d->past);
  c->peak_bytes = max64 (peak, c->peak_bytes - peak);
}
