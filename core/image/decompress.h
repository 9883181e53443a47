/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads and decompresses one compressed cluster of a file.  See decompress.c.
 *
 * Functions that return int return 0 or an errno; errors have been reported, with the
 * file and the offset.  "Compressed Clusters Descriptor" in the specification.
 */

#ifndef QCOW2_DECOMPRESS_H
#define QCOW2_DECOMPRESS_H

#include <stdint.h>

#include "storage/storage.h"
#include "format/compress.h"
#include "format/header.h"

struct compressed_cluster {
  struct storage *file;
  const struct header *header;  /* the header of that file */
  uint64_t host, bytes;         /* range of the compressed bytes, which may extend
                                   beyond the end of the file */
};

/* DESCRIPTOR: bits 0..61 of the L2 entry.  EIO: it exceeds the largest offset. */
extern int decompress_locate (struct compressed_cluster *, struct storage *,
                              const struct header *, uint64_t descriptor);

/* Decompresses the whole cluster to OUT.  EIO: the bytes are invalid; ENOMEM; or the
 * errno of reading them.  After a failure the contents of OUT are undefined. */
extern int decompress_whole (const struct compressed_cluster *, struct compress_pool *,
                             char *out);

/* Copies bytes [within, end) of the cluster to BUF without decompressing what follows
 * END: see compress_inflate_beginning.  -1: this is not possible; it is not reported,
 * because decompress_whole may succeed, or report the reason. */
extern int decompress_beginning (const struct compressed_cluster *,
                                 struct compress_pool *, uint64_t within,
                                 uint64_t end, void *buf);

/* Reports that there is not enough memory.  Returns ENOMEM. */
extern int decompress_no_memory (const struct compressed_cluster *);

#endif /* QCOW2_DECOMPRESS_H */
