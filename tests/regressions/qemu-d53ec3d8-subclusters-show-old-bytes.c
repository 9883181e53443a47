/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU, commits d53ec3d8e12d and later (since 5.2): copy-on-write of subclusters.
 *
 * A write to a part of a subcluster that is unallocated or zero, in a host cluster that
 * is allocated, must fill the rest of the subcluster: the host cluster still has bytes
 * that were written there before.  Each fix of these rules in QEMU mended a case in which
 * a guest could read such old bytes.
 *
 * https://qemu.googlesource.com/qemu/+/d53ec3d8e12d5a7c7f48347be450af56040b1a
 * Broken: old-host-cluster-taken-for-zeros
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536, .extended = true,
                             .refcount_bits = 16, .size = 512 << 10 };
  struct regression *e;

  regression_enter ("subclusters-show-old-bytes");
  regression_over_raw (&spec, 20);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_WRITE, 3 * 2048 + 512, 4096); /* over the backing file */
  regression_must (e, REGRESSION_WRITE, 65536, 65536);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_ZERO, 65536 + 2048, 8 * 2048);  /* old bytes remain */
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_WRITE, 65536 + 2048 + 512, 512);
  regression_check (e);
  regression_must (e, REGRESSION_WRITE, 65536 + 3 * 2048 + 1024, 4096);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
