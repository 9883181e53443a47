/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are arbitrary bytes handled safely as a compressed cluster and its descriptor?
 *
 * Both buffers end at a page that cannot be read, so that reads past their ends are also
 * detected in libraries that were built without sanitizers.
 *
 * How it runs: see fuzzing.h.
 *
 * The first byte of the input is the compression type and the cluster size, the next
 * eight are a descriptor, the rest is the stream.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/compress.h"
#include "lib/fuzzing.h"

#define HEAD 9
#define MAX_STREAM (1u << 20)
#define MAX_BITS 16

/* ROOM bytes before a page that must not be touched; returns the page. */
static uint8_t *
fenced (size_t room)
{
  const size_t page = sysconf (_SC_PAGESIZE);
  uint8_t *p;

  room = (room + page - 1) / page * page;
  p = mmap (NULL, room + page, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK (p != MAP_FAILED);
  CHECK (mprotect (p + room, page, PROT_NONE) == 0);
  return p + room;
}

static void
try_descriptor (unsigned cluster_bits, uint64_t d)
{
  const struct header h = { .cluster_bits = cluster_bits,
                            .cluster_size = UINT64_C (1) << cluster_bits };
  uint64_t offset, bytes, first, count, again;

  if (!compress_descriptor (&h, d, &offset, &bytes)) {
    CHECK (!compress_clusters (&h, d, &first, &count));
    return;
  }
  CHECK (bytes > 0 && bytes <= 2 * h.cluster_size);
  CHECK (compress_clusters (&h, d, &first, &count));
  CHECK (first == offset >> cluster_bits);
  CHECK (first + count - 1 == (offset + bytes - 1) >> cluster_bits);
  if (compress_encode (&h, offset, bytes, &again))
    CHECK (again == (d & ((UINT64_C (1) << 62) - 1)));
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static struct compress_pool *pool;
  static uint8_t *in_end, *out_end;
  uint64_t descriptor;
  size_t n;
  int r;

  if (pool == NULL) {
    pool = compress_pool_new (NULL);
    CHECK (pool != NULL);
    in_end = fenced (MAX_STREAM);
    out_end = fenced (1u << MAX_BITS);
  }
  if (size < HEAD || size - HEAD > MAX_STREAM)
    return 0;

  memcpy (&descriptor, data + 1, sizeof descriptor);
  try_descriptor (9 + (data[0] >> 1) % 13, descriptor);

  n = (size_t) 1 << (9 + (data[0] >> 1) % (MAX_BITS - 8));
  memcpy (in_end - (size - HEAD), data + HEAD, size - HEAD);
  r = compress_inflate (pool, data[0] & 1, in_end - (size - HEAD), size - HEAD,
                        out_end - n, n);
  CHECK (r == 0 || (r == -1 && (errno == EIO || errno == ENOTSUP)));
  return 0;
}

#ifndef FUZZING

/* Clusters of our own making, damaged in several places. */
static void
run_random (unsigned rounds)
{
  static uint8_t cluster[1 << MAX_BITS], data[HEAD + (2 << MAX_BITS)];
  struct compress_pool *pool = compress_pool_new (NULL);
  struct rng r;

  CHECK (pool != NULL);
  rng_init (&r, seed_from_env (), 0);

  for (unsigned i = 0; i < rounds; i++) {
    const uint64_t descriptor = rng_next (&r) >> rng_below (&r, 40);
    const unsigned type = rng_below (&r, 2), bits = rng_below (&r, MAX_BITS - 8);
    const size_t n = (size_t) 512 << bits;
    const unsigned noise = rng_below (&r, 200);
    size_t len;

    data[0] = bits << 1 | type;
    memcpy (data + 1, &descriptor, sizeof descriptor);
    for (size_t k = 0; k < n; k++)
      cluster[k] = rng_below (&r, 256) < noise ? rng_next (&r) : k / 100;
    len = compress_deflate (pool, type, cluster, n, data + HEAD, n);
    if (len == 0)               /* noise will do as well */
      memcpy (data + HEAD, cluster, len = n);

    for (uint64_t k = rng_below (&r, 6); k > 0; k--) {
      size_t at = rng_below (&r, len), span = rng_below (&r, len - at + 1);

      switch (rng_below (&r, 4)) {
      case 0:
        data[HEAD + at] ^= 1 << rng_below (&r, 8);
        break;
      case 1:
        data[HEAD + at] = rng_next (&r);
        break;
      case 2:                   /* something again, or earlier */
        memmove (data + HEAD + rng_below (&r, len - span + 1),
                 data + HEAD + at, span);
        break;
      default:
        len = at + 1;
      }
    }
    LLVMFuzzerTestOneInput (data, HEAD + len);
  }
  compress_pool_free (pool);
}

int
main (int argc, char *argv[])
{
  if (!fuzz_files (argc, argv, HEAD + MAX_STREAM))
    run_random (2500);
  return 0;
}

#endif /* !FUZZING */
