/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cache of decompressed clusters reads what qemu-img compressed, also for several
 * readers at once.
 */

#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "format/compress.h"
#include "format/format.h"
#include "lib/packed.h"

static void
run (const char *fmt, const char *a, unsigned b, const char *from, const char *to)
{
  char command[2 * PATH_MAX + 200];

  snprintf (command, sizeof command, fmt, a, b, from, to);
  CHECK (system (command) == 0);
}

/* Finds the compressed clusters of the disk RAW. */
static void
image_walk (struct packed_image *im, const unsigned char *raw, uint64_t size)
{
  static unsigned char head[HEADER_READ_SIZE];
  const uint64_t file_size = storage_size (im->file);
  const size_t len = file_size < sizeof head ? file_size : sizeof head;
  struct be64 l1, l2;
  uint64_t at, index, table;

  CHECK (storage_read (im->file, head, len, 0) == 0);
  CHECK (header_parse (im->path, head, len, file_size, &im->header) == 0);
  im->parsed = true;
  im->cs = im->header.cluster_size;
  CHECK (im->header.size == size);

  for (at = 0; at < size; at += im->cs) {
    index = at >> im->header.cluster_bits;
    CHECK (storage_read (im->file, &l1, 8, im->header.l1_offset +
                         (index >> im->header.l2_bits) * 8) == 0);
    table = get64 (l1) & QCOW2_L1_OFFSET_MASK;
    if (table == 0)
      continue;
    index &= (UINT64_C (1) << im->header.l2_bits) - 1;
    CHECK (storage_read (im->file, &l2, 8, table + index * 8) == 0);
    if (!(get64 (l2) & QCOW2_OFLAG_COMPRESSED))
      continue;
    im->descriptors[im->n] = get64 (l2) & (QCOW2_OFLAG_COMPRESSED - 1);
    im->clusters[im->n] = malloc (im->cs);
    CHECK (im->clusters[im->n] != NULL);
    memcpy (im->clusters[im->n], raw + at, im->cs);
    im->n++;
  }
  pthread_mutex_lock (&im->gate.lock);
  im->gate.reads = 0;
  pthread_mutex_unlock (&im->gate.lock);
}

static void
test_qemu (const char *type, unsigned cluster_size)
{
  const uint64_t size = cluster_size > 65536 ? 8 << 20 : 2 << 20;
  unsigned char *raw = malloc (size);
  struct reader rd[4] = { 0 };
  struct cluster_cache *c = cluster_cache_new (8 * cluster_size);
  struct packed_image im, source;
  struct rng r;
  int fd;

  CHECK (raw != NULL && c != NULL);
  rng_init (&r, packed_seed, cluster_size);
  packed_fill (&r, raw, size);
  memset (raw + size / 2, 0, size / 8);
  for (uint64_t i = size - size / 8; i < size; i++)
    raw[i] = rng_next (&r);

  packed_init (&source, 1);
  fd = open (source.path, O_WRONLY);
  CHECK (fd >= 0);
  CHECK (write (fd, raw, size) == (ssize_t) size);
  close (fd);

  packed_init (&im, size / cluster_size);
  run ("qemu-img convert -c -f raw -O qcow2 -o compression_type=%s,cluster_size=%u"
       " '%s' '%s'", type, cluster_size, source.path, im.path);
  packed_open (&im);
  image_walk (&im, raw, size);
  printf ("qemu-img, %s, %u: %u compressed clusters\n", type, cluster_size, im.n);
  CHECK (im.n >= size / cluster_size / 2);

  sequential (c, &im);
  for (unsigned i = 0; i < 4; i++) {
    rd[i] = (struct reader) {
      .cache = c, .im = &im, .rounds = 100, .stream = 20 + i,
    };
    reader_start (&rd[i]);
  }
  for (unsigned i = 0; i < 4; i++)
    reader_join (&rd[i]);

  cluster_cache_free (c);
  packed_free (&im);
  packed_free (&source);
  free (raw);
}

int
main (void)
{
  const bool zstd = compress_supported (QCOW2_COMPRESSION_ZSTD);

  packed_seed = seed_from_env ();

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    printf ("skipped: qemu-img is missing\n");
    return 77;
  }
  for (int z = 0; z <= zstd; z++) {
    const char *type = z ? "zstd" : "zlib";

    test_qemu (type, 512);
    test_qemu (type, 4096);
    test_qemu (type, 65536);
    test_qemu (type, 2 << 20);
  }
  return 0;
}
