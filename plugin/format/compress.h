/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bytes of a compressed cluster <-> a cluster: see compress.c.  Pure: no files, and
 * nothing is reported, for only the caller can name the file and the offset.
 *
 * TYPE is one of QCOW2_COMPRESSION_*.
 */

#ifndef QCOW2_COMPRESS_H
#define QCOW2_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/header.h"

/* Can this build read and write that type?  Deflate is always there. */
extern bool compress_supported (unsigned type);
/* As qemu-img calls it: "zlib", "zstd"; "unknown" if it is neither. */
extern const char *compress_name (unsigned type);

/* The codecs' working memory, kept from one cluster to the next.  Any number of
 * threads may use one pool at once. */
struct compress_pool;
extern struct compress_pool *compress_pool_new (void);  /* NULL: ENOMEM, not reported */
extern void compress_pool_free (struct compress_pool *);  /* NULL is fine */

/* Fills OUT, a cluster, from the stream at the beginning of IN; what follows the
 * stream may be anything.  Returns 0, or -1 with errno EIO (IN is not a stream
 * of a whole cluster), ENOTSUP (not in this build) or ENOMEM.  After a
 * failure the contents of OUT are undefined.
 */
extern int compress_inflate (struct compress_pool *, unsigned type,
                             const void *in, size_t in_len,
                             void *out, size_t out_len);

/* The same for the first OUT_LEN bytes of a cluster only; what is wrong after them is not
 * seen.  Takes as long as compress_inflate when some half of the cluster is wanted.
 * Deflate only: else errno is ENOTSUP. */
extern int compress_inflate_beginning (struct compress_pool *, unsigned type,
                                       const void *in, size_t in_len,
                                       void *out, size_t out_len);

/* Compresses a whole cluster, IN.  Returns how many bytes of OUT it takes, or 0
 * if that would be as many as IN_LEN or more than OUT_ROOM, or cannot be done: then
 * the cluster is to be stored as it is.
 */
extern size_t compress_deflate (struct compress_pool *, unsigned type,
                                const void *in, size_t in_len,
                                void *out, size_t out_room);

/* --- the descriptor of a compressed cluster: bits 0..61 of its L2 entry --- */

/* Where the compressed bytes lie, and how many can be used (1 to twice the
 * cluster size; they may reach past the end of the file).  False if the offset
 * is beyond what an image may hold; then nothing is set. */
extern bool compress_descriptor (const struct header *, uint64_t descriptor,
                                 uint64_t *host_offset, uint64_t *bytes);

/* The host clusters that hold a reference each for this descriptor: *COUNT (1 to 3)
 * from cluster number *FIRST on.  False as above. */
extern bool compress_clusters (const struct header *, uint64_t descriptor,
                               uint64_t *first, uint64_t *count);

/* The other way round: BYTES (1 to the cluster size) at HOST_OFFSET.  False if
 * the offset or the number of sectors does not fit. */
extern bool compress_encode (const struct header *, uint64_t host_offset,
                             uint64_t bytes, uint64_t *descriptor);

#endif /* QCOW2_COMPRESS_H */
