/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads compressed clusters, with a bounded cache of decompressed ones: see
 * clustercache.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_CLUSTERCACHE_H
#define QCOW2_CLUSTERCACHE_H

#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

struct cluster_cache;

/* LIMIT: bytes of memory for inflated clusters.  It is raised to CLUSTER_CACHE_MIN
 * clusters where it is less than that, and to one cluster for each reader that is in here
 * at the moment.  Buffers for the compressed bytes of what is being inflated, and for the
 * beginning of a cluster that is not kept, come on top.  NULL on ENOMEM (reported). */
#define CLUSTER_CACHE_MIN 4
extern struct cluster_cache *cluster_cache_new (uint64_t limit);
/* Nobody may be reading.  NULL is fine. */
extern void cluster_cache_free (struct cluster_cache *);

/* Reads [within, within+len) of the cluster that DESCRIPTOR (bits 0..61 of the L2
 * entry) stands for in FILE, whose header is H.  LAYER is the number by which the
 * cache knows FILE: never the same for two files.
 *
 * EIO if there is no cluster to be had from these bytes; the next call tries again.  (Not
 * if only the beginning was wanted, and inflated, and what is wrong comes later.)
 * Readers who waited for the one that failed get its errno; it is reported once.
 */
extern int cluster_cache_read (struct cluster_cache *, struct storage *file,
                               const struct header *h, unsigned layer,
                               uint64_t descriptor, uint64_t within, uint64_t len,
                               void *buf);

/* Drops all clusters that have a compressed byte in [host_from, host_to) of that
 * layer.
 *
 * To be called before other bytes are written there, and not before every request
 * has ended that may have looked up a descriptor which leads there (R4): such a
 * request would bring the old cluster back, to be found under a new descriptor
 * that happens to be equal.  Costs nothing to speak of while the cache is empty.
 */
extern void cluster_cache_forget (struct cluster_cache *, unsigned layer,
                                  uint64_t host_from, uint64_t host_to);

struct cluster_cache_stats {
  uint64_t hits;                /* reads of what was there */
  uint64_t inflations;          /* clusters inflated, or tried to */
  uint64_t waits;               /* reads that waited for another's inflation */
  uint64_t evictions;
  uint64_t bytes, peak_bytes;   /* of inflated clusters, with bookkeeping */
};
extern void cluster_cache_get_stats (struct cluster_cache *,
                                     struct cluster_cache_stats *);

#endif /* QCOW2_CLUSTERCACHE_H */
