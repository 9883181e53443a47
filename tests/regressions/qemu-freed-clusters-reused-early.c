/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU: after a crash, zeroed ranges show data of another place.
 *
 * A cluster that a discard or a zero request freed is used again before the removal of
 * its pointer is durable.  After a crash the old pointer shows what was written to
 * another place of the disk.
 *
 * Found by this project: qemu-nbd 7.2 fails crash/qemu-hole-a.sh, and the workload "trim"
 * of lab/powercut shows it (see lab/RESULTS).
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/block/qcow2-refcount.c
 * Broken: freed-clusters-reused-at-once
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 2 << 20 };
  struct regression *e;

  regression_enter ("freed-clusters-reused-early");
  image_create (REGRESSION, &spec);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_WRITE, 0, 512 << 10);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_ZERO, 0, 256 << 10);
  regression_must (e, REGRESSION_TRIM, 256 << 10, 256 << 10);
  regression_must (e, REGRESSION_WRITE, 1 << 20, 512 << 10);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
