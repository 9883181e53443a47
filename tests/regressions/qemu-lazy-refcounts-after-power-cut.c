/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU, commit f307b2558f61 (2014): the repair of lazy refcounts overwrites data.
 *
 * After a power cut, refcounts may be 0 for clusters that are in use.  When the image was
 * opened, the repair itself needed clusters, believed the old refcounts, and put a
 * refcount block onto a cluster in use: "qcow2: Do not perform potentially damaging
 * repairs".
 *
 * https://repo.or.cz/qemu.git/commit/f307b2558f61e068ce514f2dde2cad74c62036d6
 * Broken: repair-believes-refcounts
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  struct blob image;
  struct rng rng;
  uint64_t block, i;

  regression_enter ("lazy-refcounts-after-power-cut");
  rng_init (&rng, 1, 0);
  image_create (REGRESSION, &spec);
  image_fill (REGRESSION, &spec, &rng, 12);
  /* No change of a refcount since the image was made has reached the disk. */
  blob_load (REGRESSION, &image);
  block = blob_get (&image, blob_get (&image, 48, 8), 8);
  for (i = 4; i < spec.cluster_size / 2; i++)
    blob_put (&image, block + i * 2, 0, 2);
  blob_put (&image, 72, blob_get (&image, 72, 8) | 1, 8);       /* dirty */
  blob_put (&image, 80, blob_get (&image, 80, 8) | 1, 8);       /* lazy refcounts */
  blob_save (REGRESSION, &image);
  blob_free (&image);

  e = regression_open (NULL);
  regression_check (e);
  regression_must (e, REGRESSION_WRITE, 512 << 10, 65536);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
