/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One compressed cluster of a file: see decompress.c.
 *
 * Functions that return int return 0 or an errno; whatever is wrong has been reported,
 * with the file and the offset.  "Compressed Clusters Descriptor" in the
 * specification.
 */

#ifndef QCOW2_DECOMPRESS_H
#define QCOW2_DECOMPRESS_H

#include <stdint.h>

#include "storage/storage.h"
#include "format/compress.h"
#include "format/header.h"

struct compressed_cluster {
  struct storage *file;
  const struct header *header;  /* of that file */
  uint64_t host, bytes;         /* where its compressed bytes are; some of them may be
                                   beyond the end of the file */
};

/* DESCRIPTOR: bits 0..61 of the L2 entry.  EIO: it leads beyond the largest offset. */
extern int decompress_locate (struct compressed_cluster *, struct storage *,
                              const struct header *, uint64_t descriptor);

/* Fills OUT, a cluster.  EIO: it is not to be had from these bytes; ENOMEM; or why they
 * could not be read.  After a failure the contents of OUT are undefined. */
extern int decompress_whole (const struct compressed_cluster *, struct compress_pool *,
                             char *out);

/* Copies bytes [within, end) of the cluster to BUF without inflating what comes after
 * END: see compress_inflate_beginning.  -1: that can't be done, which is not
 * reported: decompress_whole may know more. */
extern int decompress_beginning (const struct compressed_cluster *,
                                 struct compress_pool *, uint64_t within,
                                 uint64_t end, void *buf);

/* Reports that there is no memory for it.  Returns ENOMEM. */
extern int decompress_no_memory (const struct compressed_cluster *);

#endif /* QCOW2_DECOMPRESS_H */
