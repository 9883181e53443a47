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

/* More than the bookkeeping of an entry uses (bytes). */
#define OVERHEAD 512

/* The seed of all random choices; from seed_from_env. */
extern uint64_t packed_seed;

/* Each read passes the gate.  While it is shut, reads wait there. */
struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool shut;                    /* guarded by lock, like all fields below */
  unsigned inside;              /* reads that wait */
  uint64_t reads;               /* reads that have arrived */
  int fail;                     /* errno for all reads that pass, or 0 */
};
/* FAIL is an errno, or 0. */
extern void gate_set (struct gate *, bool shut, int fail);
/* Waits until this many reads wait at the gate. */
extern void gate_wait (struct gate *, unsigned inside);

struct packed_image {
  char path[PATH_MAX];
  struct gate gate;
  struct storage_hooks hooks;
  struct storage *file;
  unsigned layer;
  struct header header;
  bool parsed;                  /* the header was read from the file */
  uint64_t cs;
  unsigned n;                   /* compressed clusters */
  uint64_t *descriptors;
  unsigned char **clusters;     /* their contents */
};
/* packed_init makes an empty file for the descriptors of up to MAX_CLUSTERS clusters, to
 * be filled and then opened; packed_free removes it. */
extern void packed_init (struct packed_image *, unsigned max_clusters);
extern void packed_open (struct packed_image *);
extern void packed_free (struct packed_image *);
/* The same, with N clusters that are packed as tightly as possible. */
extern void packed_make (struct packed_image *, unsigned bits, unsigned type, unsigned n);
/* Makes text with some noise, which can be compressed to about a third. */
extern void packed_fill (struct rng *, unsigned char *buf, size_t n);

/* Reads a part of a cluster through the cache.  Returns false with errno if that fails;
 * what it reads must be correct. */
extern bool piece_is (struct cluster_cache *, struct packed_image *, unsigned cluster,
                      uint64_t within, uint64_t len);
extern struct cluster_cache_stats stats_of (struct cluster_cache *);
/* Reads all clusters, 4K at a time (half of a cluster if it is not larger). */
extern void sequential (struct cluster_cache *, struct packed_image *);

/* Reader threads. */
struct reader {
  pthread_t thread;
  struct cluster_cache *cache;
  struct packed_image *im;
  unsigned cluster;             /* one piece of this cluster, or ... */
  uint64_t within, len;
  bool ok;
  int err;
  unsigned rounds;              /* ... if > 0, random pieces */
  uint64_t stream;
};
extern void reader_start (struct reader *);
extern void reader_join (struct reader *);
/* Waits until this many readers have had to wait for another reader. */
extern void wait_for_waits (struct cluster_cache *, uint64_t waits);

#endif /* TEST_PACKED_H */
