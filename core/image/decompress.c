/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a compressed cluster of a file read and decompressed?
 *
 * All bytes that the descriptor covers are read from the file and passed to the codec.
 * The descriptor counts sectors.  The bytes that follow the stream in the last sector,
 * or that lie beyond the end of the file, have no meaning, and the codec does not look
 * at them.
 *
 * The only state is that of the pool, which has its own lock: any number of threads may
 * be here at the same time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "image/decompress.h"

int
decompress_no_memory (const struct compressed_cluster *w)
{
  errno = ENOMEM;
  report_error ("%s: cannot decompress the cluster at offset %" PRIu64 ": %m",
                storage_path (w->file), w->host);
  return ENOMEM;
}

int
decompress_locate (struct compressed_cluster *w, struct storage *file,
                   const struct header *h, uint64_t descriptor)
{
  w->file = file;
  w->header = h;
  if (compress_descriptor (h, descriptor, &w->host, &w->bytes))
    return 0;
  report_error ("%s: image is corrupt: compressed cluster descriptor 0x%" PRIx64
                " exceeds the largest offset of an image",
                storage_path (file), descriptor);
  return EIO;
}

int
decompress_whole (const struct compressed_cluster *w, struct compress_pool *pool,
                  char *out)
{
  const unsigned type = w->header->compression_type;
  const uint64_t cluster_size = w->header->cluster_size;
  const char *path = storage_path (w->file);
  CLEANUP_FREE char *in = malloc (w->bytes);
  int err;

  if (in == NULL)
    return decompress_no_memory (w);
  if (storage_read (w->file, in, w->bytes, w->host) == -1)
    return errno;
  if (compress_inflate (pool, type, in, w->bytes, out, cluster_size) == 0)
    return 0;

  err = errno;
  if (err == ENOMEM)
    return decompress_no_memory (w);
  if (err == ENOTSUP)
    report_error ("%s: cannot decompress the cluster at offset %" PRIu64 ": this plugin "
                  "was built without %s", path, w->host,
                  compress_name (type));
  else
    report_error ("%s: image is corrupt: the %" PRIu64 " bytes at offset %"
                  PRIu64 "%s are not a %s-compressed cluster of %" PRIu64
                  " bytes", path, w->bytes, w->host,
                  range_within (w->host, w->bytes, storage_size (w->file))
                  ? "" : ", some of them beyond the end of the file,",
                  compress_name (type), cluster_size);
  return EIO;
}

int
decompress_beginning (const struct compressed_cluster *w, struct compress_pool *pool,
                      uint64_t within, uint64_t end, void *buf)
{
  CLEANUP_FREE char *in = malloc (w->bytes);
  CLEANUP_FREE char *out = malloc (end);

  if (in == NULL || out == NULL)
    return decompress_no_memory (w);
  if (storage_read (w->file, in, w->bytes, w->host) == -1)
    return errno;
  if (compress_inflate_beginning (pool, in, w->bytes, out, end) == -1)
    return -1;
  memcpy (buf, out + within, end - within);
  return 0;
}
