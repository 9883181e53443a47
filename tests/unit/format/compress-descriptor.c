/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Descriptors of compressed clusters are parsed as the specification says, for each
 * cluster size and up to their limits; and descriptors that we make parse to the intended
 * values.
 */

#include <config.h>

#include "format/compress.h"
#include "lib/stubs.h"

static void
test_descriptor_table (void)
{
  /* The table of FORMAT 1.3: cluster bits, width of the offset, width of the
   * size. */
  static const struct { unsigned cb, x, size_bits; } table[] = {
    { 9, 61, 1 }, { 12, 58, 4 }, { 14, 56, 6 }, { 16, 54, 8 }, { 18, 52, 10 },
    { 21, 49, 13 },
  };
  uint64_t offset, bytes, first, count, d;

  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    const unsigned cb = table[i].cb, x = table[i].x;
    const struct header h = { .cluster_bits = cb,
                              .cluster_size = UINT64_C (1) << cb };

    CHECK (x + table[i].size_bits == 62);
    CHECK (compress_descriptor (&h, 0, &offset, &bytes));
    CHECK (offset == 0 && bytes == 512);

    /* All bits of the size, none of the offset. */
    d = ((UINT64_C (1) << table[i].size_bits) - 1) << x;
    CHECK (compress_descriptor (&h, d | 5, &offset, &bytes));
    CHECK (offset == 5 && bytes == (512u << table[i].size_bits) - 5);
    CHECK (bytes <= 2 * h.cluster_size);
    CHECK (compress_clusters (&h, d | 5, &first, &count));
    CHECK (first == 0 && count == 2);
    CHECK (compress_clusters (&h, d | (h.cluster_size - 1), &first, &count));
    CHECK (first == 0 && count == (cb == 9 ? 2 : 3));

    /* Bits 62 and 63 are no part of it. */
    CHECK (compress_descriptor (&h, d | 5 | UINT64_C (3) << 62, &offset, &bytes));
    CHECK (offset == 5 && bytes == (512u << table[i].size_bits) - 5);

    /* The end of what can be said, or of what an image may hold. */
    d = UINT64_C (1) << (x < 56 ? x : 56);
    CHECK (compress_descriptor (&h, d - 1, &offset, &bytes));
    CHECK (offset == d - 1 && bytes == 1);
    CHECK (compress_encode (&h, d - 1, 1, &d));
    d++;
    CHECK (!compress_encode (&h, d, 1, &bytes));
    if (x > 56) {
      offset = bytes = first = count = 77;
      CHECK (!compress_descriptor (&h, d, &offset, &bytes));
      CHECK (!compress_clusters (&h, d, &first, &count));
      CHECK (offset == 77 && bytes == 77 && first == 77 && count == 77);
    }
    CHECK (!compress_encode (&h, 0, 0, &d));
    CHECK (!compress_encode (&h, 0, h.cluster_size + 1, &d));
    CHECK (!compress_encode (&h, UINT64_MAX, 1, &d));
    CHECK (!compress_encode (&h, UINT64_MAX - 512, 512, &d));
  }

  /* Spelled out: from byte 0x50123 on, one sector more than the first. */
  {
    const struct header h = { .cluster_bits = 16, .cluster_size = 65536 };

    d = UINT64_C (0x0040000000050123);
    CHECK (compress_descriptor (&h, d, &offset, &bytes));
    CHECK (offset == 0x50123 && bytes == 1024 - 0x123);
    CHECK (compress_clusters (&h, d, &first, &count));
    CHECK (first == 5 && count == 1);
  }
}

static void
test_descriptor_random (struct rng *r)
{
  for (int i = 0; i < 200000; i++) {
    const unsigned cb = 9 + rng_below (r, 13);
    const struct header h = { .cluster_bits = cb,
                              .cluster_size = UINT64_C (1) << cb };
    uint64_t offset, bytes, first, count, d, o2, b2;

    /* Anything at all. */
    d = rng_next (r) >> rng_below (r, 40);
    if (compress_descriptor (&h, d, &offset, &bytes)) {
      CHECK (bytes > 0 && bytes <= 2 * h.cluster_size);
      CHECK (offset + bytes <= UINT64_C (1) << 56);
      CHECK ((offset + bytes) % 512 == 0);
      CHECK (compress_clusters (&h, d, &first, &count));
      CHECK (first * h.cluster_size <= offset);
      CHECK ((first + 1) * h.cluster_size > offset);
      CHECK (count >= 1 && count <= 3);
      CHECK ((first + count) * h.cluster_size >= offset + bytes);
      CHECK ((first + count - 1) * h.cluster_size < offset + bytes);
    }
    else
      CHECK (!compress_clusters (&h, d, &first, &count));

    /* What we make says what we meant, to within its last sector. */
    offset = (rng_next (r) >> 8) >> rng_below (r, 50);
    bytes = 1 + rng_below (r, h.cluster_size);
    if (compress_encode (&h, offset, bytes, &d)) {
      CHECK (d >> 62 == 0);
      CHECK (compress_descriptor (&h, d, &o2, &b2));
      CHECK (o2 == offset && b2 >= bytes && b2 - bytes < 512);
    }
    else
      CHECK (cb == 9 ? offset + bytes > UINT64_C (1) << 56 :
             offset + bytes > UINT64_C (1) << (cb < 14 ? 56 : 70 - cb));
  }
}

int
main (void)
{
  struct rng r;

  rng_init (&r, seed_from_env (), 0);
  test_descriptor_table ();
  test_descriptor_random (&r);
  return 0;
}
