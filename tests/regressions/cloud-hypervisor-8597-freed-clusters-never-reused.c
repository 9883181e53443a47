/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8597: the file grows with each flush.
 *
 * Clusters that had become free by moving metadata were not used again until the image
 * was opened anew.  The file grew to twice its data and filled the host's disk, while a
 * check found no fault.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8597
 * Broken: freed-clusters-forgotten
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  unsigned i;

  regression_enter ("freed-clusters-never-reused");
  image_create (REGRESSION, &spec);
  e = regression_open (&(struct regression_options) { .no_cuts = true });
  for (i = 0; i < 200; i++) {
    regression_must (e, REGRESSION_WRITE, (i % 16) << 16, 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_must (e, REGRESSION_TRIM, (i % 16) << 16, 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
  }
  /* (The reserve at the end of the file is at most 8 MiB.) */
  CHECK (simdisk_size (regression_disk (e)) < 11 << 20);
  regression_close (e);
  return regression_leave ();
}
