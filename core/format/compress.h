/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a compressed cluster decompressed, and how is a cluster compressed?  See
 * compress.c.  Pure: no files, and nothing is reported, because only the caller can name
 * the file and the offset.
 *
 * TYPE is one of QCOW2_COMPRESSION_*.
 */

#ifndef QCOW2_COMPRESS_H
#define QCOW2_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/header.h"

/* Can this build read and write clusters of that type?  Deflate is always supported. */
extern bool compress_supported (unsigned type);
/* The name that qemu-img uses: "zlib" or "zstd"; "unknown" for any other type. */
extern const char *compress_name (unsigned type);

/* How clusters are compressed. */
struct compress_options {
  unsigned level;               /* 0: the default */
  bool long_window;             /* deflate with distances up to 32K: see compress.c */
};
/* The highest level for that type and window. */
extern unsigned compress_max_level (unsigned type, bool long_window);

/* The working memory of the codecs, which is kept from one cluster to the next.  Any
 * number of threads may use a pool at the same time.  Options are for compress_deflate;
 * NULL: the defaults.  Returns NULL on ENOMEM (not reported). */
struct compress_pool;
extern struct compress_pool *compress_pool_new (const struct compress_options *);
extern void compress_pool_free (struct compress_pool *);  /* accepts NULL */

/* Fills OUT, a cluster, from the stream at the beginning of IN; any bytes may follow the
 * stream.  Returns 0, or -1 with errno EIO (IN is not a stream of a whole cluster),
 * ENOTSUP (not in this build) or ENOMEM.  After a failure the contents of OUT are
 * undefined. */
extern int compress_inflate (struct compress_pool *, unsigned type,
                             const void *in, size_t in_len,
                             void *out, size_t out_len);

/* The same for only the first OUT_LEN bytes of a cluster that was compressed with
 * deflate; errors after them are not detected.  If about half of the cluster is wanted,
 * this takes as long as compress_inflate. */
extern int compress_inflate_beginning (struct compress_pool *,
                                       const void *in, size_t in_len,
                                       void *out, size_t out_len);

/* Compresses a whole cluster, IN.  Returns the number of bytes in OUT, or 0 if they would
 * not be less than IN_LEN, would be more than OUT_ROOM, or if compression fails: then the
 * caller stores the cluster uncompressed. */
extern size_t compress_deflate (struct compress_pool *, unsigned type,
                                const void *in, size_t in_len,
                                void *out, size_t out_room);

/* --- the descriptor of a compressed cluster: bits 0..61 of its L2 entry --- */

/* Decodes the host offset of the compressed bytes, and the number of bytes that may
 * belong to them (1 to twice the cluster size; they may extend beyond the end of the
 * file).  Returns false, and sets nothing, if they extend beyond
 * QCOW2_MAX_HOST_OFFSET. */
extern bool compress_descriptor (const struct header *, uint64_t descriptor,
                                 uint64_t *host_offset, uint64_t *bytes);

/* Returns the host clusters that have a reference for this descriptor: *COUNT (1 to 3)
 * clusters from number *FIRST on.  False as above. */
extern bool compress_clusters (const struct header *, uint64_t descriptor,
                               uint64_t *first, uint64_t *count);

/* Makes a descriptor of BYTES (1 to the cluster size) at HOST_OFFSET.  False if the
 * offset or the number of sectors does not fit. */
extern bool compress_encode (const struct header *, uint64_t host_offset,
                             uint64_t bytes, uint64_t *descriptor);

#endif /* QCOW2_COMPRESS_H */
