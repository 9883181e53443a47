/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Images of compressed clusters, and readers of them.  See packed.c.
 */

#ifndef TEST_PACKED_H
#define TEST_PACKED_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "image/clustercache.h"
#include "lib/stubs.h"

#define PIECE 4096
#define LAYER 3

/* More than the bookkeeping of an entry takes. */
#define OVERHEAD 512

/* Of all that is random; from seed_from_env. */
extern uint64_t packed_seed;

/* Reads come to the gate one by one.  While it is shut they wait there. */
struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool shut;                    /* guarded by lock, as all below */
  unsigned inside;              /* how many wait */
  uint64_t reads;               /* how many came */
  int fail;                     /* errno for all who go through, or 0 */
};
/* FAIL: errno, or 0. */
extern void gate_set (struct gate *, bool shut, int fail);
/* Until so many wait. */
extern void gate_wait (struct gate *, unsigned inside);

struct packed_image {
  char path[PATH_MAX];
  struct gate gate;
  struct storage_hooks hooks;
  struct storage *file;
  unsigned layer;
  struct header header;
  bool parsed;                  /* the header is from the file */
  uint64_t cs;
  unsigned n;                   /* compressed clusters */
  uint64_t *descriptors;
  unsigned char **clusters;     /* what they say */
};
/* An empty file with room for the descriptors of so many clusters, to be filled and then
 * opened; and its end. */
extern void packed_init (struct packed_image *, unsigned max_clusters);
extern void packed_open (struct packed_image *);
extern void packed_free (struct packed_image *);
/* The same, with N clusters of our own making, packed as tightly as they can be. */
extern void packed_make (struct packed_image *, unsigned bits, unsigned type, unsigned n);
/* Text with some noise: can be compressed to about a third. */
extern void packed_fill (struct rng *, unsigned char *buf, size_t n);

/* Reads a part of a cluster through the cache.  If that fails, false and errno; what it
 * reads must be right. */
extern bool piece_is (struct cluster_cache *, struct packed_image *, unsigned cluster,
                      uint64_t within, uint64_t len);
extern struct cluster_cache_stats stats_of (struct cluster_cache *);
/* Reads all clusters, 4K at a time (half of one if it is no larger). */
extern void sequential (struct cluster_cache *, struct packed_image *);

/* Readers as threads. */
struct reader {
  pthread_t thread;
  struct cluster_cache *cache;
  struct packed_image *im;
  unsigned cluster;             /* one piece of this, or ... */
  uint64_t within, len;
  bool ok;
  int err;
  unsigned rounds;              /* ... if > 0, anything at random */
  uint64_t stream;
};
extern void reader_start (struct reader *);
extern void reader_join (struct reader *);
/* Until so many readers have had to wait for another. */
extern void wait_for_waits (struct cluster_cache *, uint64_t waits);

#endif /* TEST_PACKED_H */
