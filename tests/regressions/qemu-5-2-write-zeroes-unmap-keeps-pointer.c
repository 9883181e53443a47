/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU 5.2 (release candidates), "qcow2: Fix corruption on write_zeroes with MAY_UNMAP".
 *
 * With subclusters came another order of steps in zero requests.  Freeing the cluster
 * could write the L2 table, and mark it clean, before the new entry was in it.  The old
 * entry stayed on the disk, and pointed to a cluster that was free.
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v5.2.0/block/qcow2-cluster.c
 * (zero_in_l2_slice)
 * Broken: zeroes-keep-the-freed-cluster
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  unsigned i;

  regression_enter ("write-zeroes-unmap-keeps-pointer");
  for (i = 0; i < 2; i++) {
    spec.extended = i;
    image_create (REGRESSION, &spec);
    e = regression_open (NULL);
    regression_must (e, REGRESSION_WRITE, 0, 256 << 10);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_must (e, REGRESSION_ZERO, 0, 128 << 10);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_must (e, REGRESSION_WRITE, 512 << 10, 256 << 10);
    regression_must (e, REGRESSION_WRITE, 4096, 4096);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_close (e);
  }
  return regression_leave ();
}
