/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads compressed clusters, with a bounded cache of decompressed ones: see
 * clustercache.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_CLUSTERCACHE_H
#define QCOW2_CLUSTERCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

struct cluster_cache;

/* LIMIT: bytes of memory for decompressed clusters.  The effective limit is at least
 * CLUSTER_CACHE_MIN clusters, and at least one cluster for each thread that is reading at
 * the moment.  Buffers for compressed bytes, and for the beginning of a cluster that is
 * not kept, are not included.  NULL on ENOMEM (reported). */
#define CLUSTER_CACHE_MIN 4
extern struct cluster_cache *cluster_cache_new (uint64_t limit);
/* No thread may be reading.  NULL is allowed. */
extern void cluster_cache_free (struct cluster_cache *);

/* Reads [within, within+len) of a compressed cluster of FILE, whose header is H.
 * DESCRIPTOR is bits 0..61 of the L2 entry.  LAYER is the number by which the cache knows
 * FILE: never the same for two files.
 *
 * EIO if these bytes cannot be decompressed; the next call tries again.  (A fault past
 * the requested beginning may go unnoticed if only that is decompressed.)  Readers that
 * waited for a reader that failed get the same errno; the error is reported once.
 */
extern int cluster_cache_read (struct cluster_cache *, struct storage *file,
                               const struct header *h, unsigned layer,
                               uint64_t descriptor, uint64_t within, uint64_t len,
                               void *buf);

/* Decompresses a cluster for readers to come, unless it is in the cache, or about to be.
 * If that fails, the next reader tries again.  The caller has silenced reports. */
extern void cluster_cache_ahead (struct cluster_cache *, struct storage *file,
                                 const struct header *h, unsigned layer,
                                 uint64_t descriptor);

/* Has that begun, and not ended? */
extern bool cluster_cache_is_late (struct cluster_cache *, const struct header *h,
                                   unsigned layer, uint64_t descriptor);

/* Drops all clusters of this layer that have a compressed byte in [host_from, host_to).
 *
 * Call this before other bytes are written there, and after all requests have ended that
 * may have looked up a descriptor of these bytes (R4): such a request would load the old
 * cluster again, and a new descriptor that happens to be equal would find it.  Costs
 * almost nothing while the cache is empty.
 */
extern void cluster_cache_forget (struct cluster_cache *, unsigned layer,
                                  uint64_t host_from, uint64_t host_to);

struct cluster_cache_stats {
  uint64_t hits;                /* reads of a cluster that was in the cache */
  uint64_t inflations;          /* attempts to decompress a cluster */
  uint64_t ahead;               /* those of cluster_cache_ahead */
  uint64_t ahead_hits;          /* of these, clusters that were then read */
  uint64_t waits;               /* reads that waited for another reader */
  uint64_t evictions;
  uint64_t bytes, peak_bytes;   /* of decompressed clusters, with overhead */
};
extern void cluster_cache_get_stats (struct cluster_cache *,
                                     struct cluster_cache_stats *);

#endif /* QCOW2_CLUSTERCACHE_H */
