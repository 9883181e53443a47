/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What clients write to new clusters is not copied before, although the kernel could
 * leave a part of a sector there if the server is killed: nothing leads to them yet.
 * Where something does, each sector comes from one page (storage/wholesectors.c).
 */

#include <config.h>

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "disk/disk.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/realcalls.h"

#define IMAGE "disk.qcow2"

enum { PAGE = 4096, SECTOR = 512, SIZE = 4 << 20, FILE_SIZE = 4 * SIZE };

static unsigned cluster;
static bool known[FILE_SIZE / SECTOR];  /* clusters that something leads to */
static bool meanwhile[FILE_SIZE / SECTOR];      /* those of the request that runs */
static unsigned uncopied;

static bool
is_torn (const struct iovec *iov, int niov, uint64_t offset)
{
  uint64_t sector = UINT64_MAX, page = 0;

  for (int i = 0; i < niov; i++)
    for (size_t j = 0; j < iov[i].iov_len; j++, offset++) {
      const uint64_t from = ((uintptr_t) iov[i].iov_base + j) / PAGE;

      if (offset / SECTOR == sector && from != page)
        return true;
      sector = offset / SECTOR;
      page = from;
    }
  return false;
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int niov, off_t offset, int flags)
{
  const bool torn = is_torn (iov, niov, offset);
  uint64_t end = offset;

  for (int i = 0; i < niov; i++)
    end += iov[i].iov_len;
  CHECK (end <= FILE_SIZE);
  for (uint64_t at = offset / cluster; at <= (end - 1) / cluster; at++) {
    CHECK (!torn || !known[at]);
    meanwhile[at] = true;
  }
  uncopied += torn;
  return REAL (pwritev2, pwritev64v2) (fd, iov, niov, offset, flags);
}

static void
test (const struct image_spec *spec, struct rng *rng)
{
  const struct disk_options options = {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
  };
  static char model[SIZE], back[SIZE];
  char *source = aligned_alloc (PAGE, SIZE);
  struct export *client;
  struct disk *d;

  image_create (IMAGE, spec);
  image_print (spec);
  printf ("\n");
  memset (model, 0, sizeof model);
  memset (known, 0, sizeof known);
  cluster = spec->cluster_size;
  uncopied = 0;
  CHECK (source && disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  for (int i = 0; i < 200; i++) {
    const unsigned len = 1 + rng_below (rng, rng_below (rng, 4) == 0 ? SIZE / 8 : 9000);
    const unsigned at = rng_below (rng, SIZE - len);
    char *const data = source + 16 * rng_below (rng, (SIZE - len) / 16);

    for (unsigned j = 0; j < len; j += SECTOR)
      data[j] = rng_next (rng);
    CHECK (export_write (client, data, len, at, false) == 0);
    memcpy (model + at, data, len);
    for (size_t j = 0; j < sizeof known; j++)
      known[j] |= meanwhile[j];
    memset (meanwhile, 0, sizeof meanwhile);
  }
  CHECK (uncopied > 0);
  CHECK (export_read (client, back, SIZE, 0) == 0 && memcmp (back, model, SIZE) == 0);
  CHECK (export_close (client) == 0);
  disk_close (d);
  CHECK (image_check (IMAGE) == 0);
  free (source);
  free ((char *) options.path);
}

int
main (void)
{
  const struct image_spec specs[] = {
    { .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE },
    { .version = 2, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE },
    { .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
      .extended = true },
  };
  struct rng rng;

  images_enter ("new-clusters-uncopied");
  rng_init (&rng, seed_from_env (), 0);
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
    test (&specs[i], &rng);
  images_leave ();
  return 0;
}
