/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are many clusters compressed at once?  See compressor.c.
 */

#ifndef QCOW2_COMPRESSOR_H
#define QCOW2_COMPRESSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "format/compress.h"

struct compressor;

/* TYPE is one of QCOW2_COMPRESSION_*, which this build must support.  CLUSTER_SIZE is in
 * bytes.  NULL on ENOMEM (reported). */
extern struct compressor *compressor_new (unsigned type, uint64_t cluster_size,
                                          const struct compress_options *);
/* No thread may be using it.  Accepts NULL. */
extern void compressor_free (struct compressor *);

/* Maximum number of clusters in one call. */
#define COMPRESSOR_MAX 256

struct compressed {
  bool zeros;                   /* only zeros: not compressed */
  uint64_t bytes;               /* length of the compressed data; 0: no smaller */
  const void *data;             /* if bytes > 0: in ROOM of compressor_run */
};

/* Compresses the LEN bytes at IN, 1 to COMPRESSOR_MAX clusters; if the last one is not
 * whole, it is padded with zeros.  FIND_ZEROS: detect clusters that contain only zeros.
 * Fills OUT, one element per cluster.  The caller frees *ROOM.  Returns 0, or -1 with
 * ENOMEM (reported).  Any number of threads may call this at the same time. */
extern int compressor_run (struct compressor *, const void *in, uint64_t len,
                           bool find_zeros, struct compressed *out, void **room);

#endif /* QCOW2_COMPRESSOR_H */
