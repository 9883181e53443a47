/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Compressing many clusters, on several processors.  See compressor.c.
 */

#ifndef QCOW2_COMPRESSOR_H
#define QCOW2_COMPRESSOR_H

#include <stdbool.h>
#include <stdint.h>

struct compressor;

/* TYPE is one of QCOW2_COMPRESSION_*, which this build supports.  CLUSTER_SIZE in bytes.
 * NULL on ENOMEM (reported). */
extern struct compressor *compressor_new (unsigned type, uint64_t cluster_size);
/* Nobody may be using it.  NULL is fine. */
extern void compressor_free (struct compressor *);

/* Clusters in one call at most. */
#define COMPRESSOR_MAX 256

struct compressed {
  bool zeros;                   /* nothing but zeros: not compressed */
  uint64_t bytes;               /* 0: it does not get any smaller */
  const void *data;             /* if bytes > 0: in ROOM of compressor_run */
};

/* Compresses the LEN bytes at IN, 1 to COMPRESSOR_MAX clusters; if the last one is not
 * whole, zeros are added.  FIND_ZEROS: look for clusters that are all zeros.  Fills
 * OUT, one for each cluster.  *ROOM belongs to the caller, to be freed.  0, or -1 with
 * ENOMEM (reported).  Any number of threads may call this at once. */
extern int compressor_run (struct compressor *, const void *in, uint64_t len,
                           bool find_zeros, struct compressed *out, void **room);

#endif /* QCOW2_COMPRESSOR_H */
