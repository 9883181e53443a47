/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, issue 8621: two queues corrupt a disk that has a backing file.
 *
 * With L2 tables in memory and several queues, a guest's file system was damaged after
 * minutes.  What a write decides on (here: that the rest of the cluster comes from the
 * backing file) must still be true when it acts.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8621
 * Broken: claims-exclude-nobody
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;

  regression_enter ("queues-and-backing-file");
  regression_over_raw (&spec, 20);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_WRITE, 512 << 10, 4096);  /* the table is in memory */
  /* One copies the cluster, while others write to it. */
  regression_hold (e, STORAGE_OP_WRITE, REGRESSION_WRITE, 4096, 4096);
  regression_start (e, REGRESSION_WRITE, 0, 512);
  regression_start (e, REGRESSION_WRITE, 32768, 8192);
  regression_start (e, REGRESSION_ZERO, 16384, 4096);
  regression_start (e, REGRESSION_FLUSH, 0, 0);
  regression_go (e);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
