/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a compressed cluster decompressed, and how is a cluster compressed?
 *
 * Specification: "Compressed Clusters Descriptor", and compression_type of
 * "Header".
 *
 * A descriptor states the length of the compressed bytes only in sectors, so other bytes
 * follow a stream: zeros, old data, the next cluster.  The plugin accepts what QEMU
 * accepts:
 *
 *   deflate  A raw stream (no zlib header).  It must yield the whole cluster; whether
 *            it then goes on, ends, or is cut off does not matter.
 *   zstd     One or more frames, of any kind, that together yield exactly the cluster.
 *
 * Deflate is decoded by libdeflate if it is available, at more than twice the speed of
 * zlib.  libdeflate requires the stream to end where the cluster does, which is what all
 * programs write.  If it refuses a stream, unless the stream is too short, zlib decides,
 * so everything that zlib accepts is accepted.  (The reverse is not quite true:
 * libdeflate accepts a few symbols that deflate does not use.)
 *
 * The beginning of a cluster is decoded by zlib, which can stop anywhere.  (libdeflate,
 * with a smaller buffer, may write nothing to it.)
 *
 * Deflate is encoded by zlib with a window of 4K, as QEMU does: some decoders assume it
 * (dissect.hypervisor refuses longer distances).  Most do not notice that a distance is
 * longer, even if they tell zlib that the window has 4K, because they decode a cluster
 * with one call, and zlib then looks back in its output: QEMU 7.2 and 10.0, nbdkit's
 * qcow2dec filter, 7-Zip and libqcow read clusters of 64K, 512K and 2M with distances
 * up to 32K.  So users can ask for the long window, with which libdeflate encodes: it has
 * no other.  Its default level here gives smaller clusters than QEMU's, in less than half
 * the time.
 *
 * zstd frames are decoded one by one, directly into the cluster.  The streaming
 * functions would also need a window, whose size an image may claim to be 128 MiB.
 *
 * Setting up a codec costs more than a small cluster does, so contexts are kept.  A pool
 * is a stack of contexts, as high as the number of threads that were here at the same
 * time.  Contexts are not thread-local, because the plugin may be unloaded before the
 * threads end.
 *
 * Locks: `lock' of a pool guards its stack.  Nothing is called while it is held.  A
 * context that is not on the stack belongs to the thread that took it.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <zlib.h>
#ifdef HAVE_LIBDEFLATE
#include <libdeflate.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "util/bytes.h"
#include "util/cleanup.h"
#include "format/compress.h"
#include "format/format.h"

#define SECTOR 512

/* log2 of the window of deflate, for reading and for writing; negative for streams
 * without a zlib header. */
#define READ_WINDOW (-15)
#define WRITE_WINDOW (-12)
#define LONG_WINDOW (-15)

#define MAX_ZLIB_LEVEL 9
#define MAX_LIBDEFLATE_LEVEL 12
#define LIBDEFLATE_LEVEL 4      /* the default */
#define MAX_ZSTD_LEVEL 22

/* Memory of the codecs.  Each is set up when it is first needed. */
struct context {
  struct context *next;         /* in the pool */
  z_stream inflater, deflater;
  bool has_inflater, has_deflater;
#ifdef HAVE_LIBDEFLATE
  struct libdeflate_decompressor *libdeflate;
  struct libdeflate_compressor *libdeflate_writer;
#endif
#ifdef HAVE_ZSTD
  ZSTD_DCtx *zstd_reader;
  ZSTD_CCtx *zstd_writer;
#endif
};

struct compress_pool {
  struct compress_options options;      /* constant */

  pthread_mutex_t lock;
  struct context *idle;         /* guarded by lock */
};

bool
compress_supported (unsigned type)
{
  switch (type) {
  case QCOW2_COMPRESSION_DEFLATE:
    return true;
#ifdef HAVE_ZSTD
  case QCOW2_COMPRESSION_ZSTD:
    return true;
#endif
  default:
    return false;
  }
}

const char *
compress_name (unsigned type)
{
  switch (type) {
  case QCOW2_COMPRESSION_DEFLATE: return "zlib";
  case QCOW2_COMPRESSION_ZSTD: return "zstd";
  default: return "unknown";
  }
}

unsigned
compress_max_level (unsigned type, bool long_window)
{
  return type == QCOW2_COMPRESSION_ZSTD ? MAX_ZSTD_LEVEL
    : long_window ? MAX_LIBDEFLATE_LEVEL : MAX_ZLIB_LEVEL;
}

/* --- contexts --- */

struct compress_pool *
compress_pool_new (const struct compress_options *options)
{
  struct compress_pool *pool = calloc (1, sizeof *pool);

  if (pool == NULL)
    return NULL;
  if (options)
    pool->options = *options;
  pthread_mutex_init (&pool->lock, NULL);
  return pool;
}

static void
free_context (struct context *c)
{
  if (c->has_inflater)
    inflateEnd (&c->inflater);
  if (c->has_deflater)
    deflateEnd (&c->deflater);
#ifdef HAVE_LIBDEFLATE
  if (c->libdeflate)
    libdeflate_free_decompressor (c->libdeflate);
  if (c->libdeflate_writer)
    libdeflate_free_compressor (c->libdeflate_writer);
#endif
#ifdef HAVE_ZSTD
  ZSTD_freeDCtx (c->zstd_reader);       /* accepts NULL */
  ZSTD_freeCCtx (c->zstd_writer);
#endif
  free (c);
}

void
compress_pool_free (struct compress_pool *pool)
{
  struct context *c;

  if (pool == NULL)
    return;
  while ((c = pool->idle) != NULL) {
    pool->idle = c->next;
    free_context (c);
  }
  pthread_mutex_destroy (&pool->lock);
  free (pool);
}

/* NULL on ENOMEM. */
static struct context *
take_context (struct compress_pool *pool)
{
  struct context *c;

  {
    LOCK_FOR_BLOCK (&pool->lock);

    c = pool->idle;
    if (c)
      pool->idle = c->next;
  }
  return c ? c : calloc (1, sizeof *c);
}

static void
put_context (struct compress_pool *pool, struct context *c)
{
  LOCK_FOR_BLOCK (&pool->lock);

  c->next = pool->idle;
  pool->idle = c;
}

/* --- reading: functions return 0, or an errno --- */

/* OUT_LEN may be less than the cluster. */
static int
zlib_inflate (struct context *c, const void *in, size_t in_len,
              void *out, size_t out_len)
{
  z_stream *z = &c->inflater;
  int r;

  if (!c->has_inflater) {
    if (inflateInit2 (z, READ_WINDOW) != Z_OK)
      return ENOMEM;
    c->has_inflater = true;
  }
  else
    inflateReset (z);

  z->next_in = (Bytef *) in;    /* zlib does not change it */
  z->avail_in = in_len;
  z->next_out = out;
  z->avail_out = out_len;
  r = inflate (z, Z_FINISH);
  if (r == Z_MEM_ERROR)
    return ENOMEM;
  /* Z_BUF_ERROR: the stream continues beyond the end of the output, or of the input. */
  if ((r == Z_STREAM_END || r == Z_BUF_ERROR) && z->avail_out == 0)
    return 0;
  return EIO;
}

static int
deflate_to_cluster (struct context *c, const void *in, size_t in_len,
                    void *out, size_t out_len)
{
#ifdef HAVE_LIBDEFLATE
  if (c->libdeflate == NULL) {
    c->libdeflate = libdeflate_alloc_decompressor ();
    if (c->libdeflate == NULL)
      return ENOMEM;
  }
  switch (libdeflate_deflate_decompress (c->libdeflate, in, in_len,
                                         out, out_len, NULL)) {
  case LIBDEFLATE_SUCCESS:
    return 0;
  case LIBDEFLATE_SHORT_OUTPUT:
    return EIO;
  default:                      /* zlib may accept it */
    break;
  }
#endif
  return zlib_inflate (c, in, in_len, out, out_len);
}

#ifdef HAVE_ZSTD

static int
zstd_to_cluster (struct context *c, const void *in_, size_t in_len,
                 void *out_, size_t out_len)
{
  const char *in = in_;
  char *out = out_;
  size_t frame, n;

  if (c->zstd_reader == NULL) {
    c->zstd_reader = ZSTD_createDCtx ();
    if (c->zstd_reader == NULL)
      return ENOMEM;
  }

  /* This loop ends: each iteration uses some of the input, or fails. */
  while (out_len > 0) {
    frame = ZSTD_findFrameCompressedSize (in, in_len);
    if (ZSTD_isError (frame))
      return EIO;
    n = ZSTD_decompressDCtx (c->zstd_reader, out, out_len, in, frame);
    if (ZSTD_isError (n))
      return EIO;
    in += frame;
    in_len -= frame;
    out += n;
    out_len -= n;
  }
  return 0;
}

#endif /* HAVE_ZSTD */

int
compress_inflate (struct compress_pool *pool, unsigned type,
                  const void *in, size_t in_len, void *out, size_t out_len)
{
  struct context *c;
  int err;

  if (!compress_supported (type)) {
    errno = ENOTSUP;
    return -1;
  }
  c = take_context (pool);
  if (c == NULL)
    return -1;

#ifdef HAVE_ZSTD
  if (type == QCOW2_COMPRESSION_ZSTD)
    err = zstd_to_cluster (c, in, in_len, out, out_len);
  else
#endif
    err = deflate_to_cluster (c, in, in_len, out, out_len);

  put_context (pool, c);
  if (err) {
    errno = err;
    return -1;
  }
  return 0;
}

int
compress_inflate_beginning (struct compress_pool *pool, const void *in, size_t in_len,
                            void *out, size_t out_len)
{
  struct context *c = take_context (pool);
  int err;

  if (c == NULL)
    return -1;
  err = zlib_inflate (c, in, in_len, out, out_len);
  put_context (pool, c);
  if (err) {
    errno = err;
    return -1;
  }
  return 0;
}

/* --- writing: functions return the size, or 0 --- */

#ifdef HAVE_LIBDEFLATE

static size_t
cluster_to_long_deflate (struct context *c, unsigned level, const void *in,
                         size_t in_len, void *out, size_t out_room)
{
  if (c->libdeflate_writer == NULL) {
    c->libdeflate_writer =
      libdeflate_alloc_compressor (level ? level : LIBDEFLATE_LEVEL);
    if (c->libdeflate_writer == NULL)
      return 0;
  }
  return libdeflate_deflate_compress (c->libdeflate_writer, in, in_len, out, out_room);
}

#endif /* HAVE_LIBDEFLATE */

static size_t
cluster_to_deflate (struct context *c, const struct compress_options *o,
                    const void *in, size_t in_len, void *out, size_t out_room)
{
  z_stream *z = &c->deflater;

#ifdef HAVE_LIBDEFLATE
  if (o->long_window)
    return cluster_to_long_deflate (c, o->level, in, in_len, out, out_room);
#endif
  if (!c->has_deflater) {
    if (deflateInit2 (z, o->level ? (int) min64 (o->level, MAX_ZLIB_LEVEL)
                      : Z_DEFAULT_COMPRESSION,
                      Z_DEFLATED, o->long_window ? LONG_WINDOW : WRITE_WINDOW,
                      MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
      return 0;
    c->has_deflater = true;
  }
  else
    deflateReset (z);

  z->next_in = (Bytef *) in;    /* zlib does not change it */
  z->avail_in = in_len;
  z->next_out = out;
  z->avail_out = out_room;
  if (deflate (z, Z_FINISH) != Z_STREAM_END)
    return 0;
  return out_room - z->avail_out;
}

#ifdef HAVE_ZSTD

static size_t
cluster_to_zstd (struct context *c, const struct compress_options *o,
                 const void *in, size_t in_len, void *out, size_t out_room)
{
  size_t n;

  if (c->zstd_writer == NULL) {
    c->zstd_writer = ZSTD_createCCtx ();
    if (c->zstd_writer == NULL)
      return 0;
  }
  n = ZSTD_compressCCtx (c->zstd_writer, out, out_room, in, in_len,
                         o->level ? (int) o->level : ZSTD_CLEVEL_DEFAULT);
  return ZSTD_isError (n) ? 0 : n;
}

#endif /* HAVE_ZSTD */

size_t
compress_deflate (struct compress_pool *pool, unsigned type,
                  const void *in, size_t in_len, void *out, size_t out_room)
{
  struct context *c;
  size_t n;

  if (!compress_supported (type) || in_len == 0)
    return 0;
  out_room = min64 (out_room, in_len - 1);
  c = take_context (pool);
  if (c == NULL)
    return 0;

#ifdef HAVE_ZSTD
  if (type == QCOW2_COMPRESSION_ZSTD)
    n = cluster_to_zstd (c, &pool->options, in, in_len, out, out_room);
  else
#endif
    n = cluster_to_deflate (c, &pool->options, in, in_len, out, out_room);

  put_context (pool, c);
  return n;
}

/* --- descriptors ---
 *
 *     61          x            0      x = 70 - cluster_bits
 *     [ sectors-1 |   offset   ]      offset in bytes; the sector that contains
 *                                     it counts as the first
 */

static unsigned
offset_bits (const struct header *h)
{
  return 70 - h->cluster_bits;
}

/* The maximum value of the sectors field. */
static uint64_t
max_sectors (const struct header *h)
{
  return UINT64_C (1) << (h->cluster_bits - 8);
}

/* *SECTORS: of 512 bytes; the one that contains *OFFSET is the first. */
static bool
split (const struct header *h, uint64_t descriptor,
       uint64_t *offset, uint64_t *sectors)
{
  const unsigned x = offset_bits (h);

  *offset = descriptor & ((UINT64_C (1) << x) - 1);
  *sectors = ((descriptor >> x) & (max_sectors (h) - 1)) + 1;
  return range_within (round_down (*offset, SECTOR), *sectors * SECTOR,
                       QCOW2_MAX_HOST_OFFSET);
}

bool
compress_descriptor (const struct header *h, uint64_t descriptor,
                     uint64_t *host_offset, uint64_t *bytes)
{
  uint64_t offset, sectors;

  if (!split (h, descriptor, &offset, &sectors))
    return false;
  *host_offset = offset;
  *bytes = sectors * SECTOR - (offset & (SECTOR - 1));
  return true;
}

bool
compress_clusters (const struct header *h, uint64_t descriptor,
                   uint64_t *first, uint64_t *count)
{
  uint64_t offset, sectors, last;

  if (!split (h, descriptor, &offset, &sectors))
    return false;
  last = round_down (offset, SECTOR) + sectors * SECTOR - 1;
  *first = offset >> h->cluster_bits;
  *count = (last >> h->cluster_bits) - *first + 1;
  return true;
}

bool
compress_encode (const struct header *h, uint64_t host_offset, uint64_t bytes,
                 uint64_t *descriptor)
{
  const unsigned x = offset_bits (h);
  uint64_t last, sectors;

  if (bytes == 0 || bytes > h->cluster_size ||
      !range_within (host_offset, bytes,
                     min64 (QCOW2_MAX_HOST_OFFSET, UINT64_C (1) << x)))
    return false;
  last = host_offset + bytes - 1;
  sectors = last / SECTOR - host_offset / SECTOR + 1;
  if (sectors > max_sectors (h))
    return false;
  *descriptor = (sectors - 1) << x | host_offset;
  return true;
}
