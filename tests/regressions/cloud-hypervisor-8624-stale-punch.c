/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8624: a hole is punched into a cluster that is in use
 * again.
 *
 * A discard freed a cluster and was about to punch a hole into it.  Another queue's flush
 * gave the cluster to the allocator, a third request used it for an L2 table, and then
 * the hole was punched: guests lost data in production.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8624
 * Broken: reused-before-punched
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;

  regression_enter ("stale-punch");
  image_create (REGRESSION, &spec);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_WRITE, 0, 256 << 10);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_TRIM, 0, 128 << 10);
  regression_hold (e, STORAGE_OP_PUNCH, REGRESSION_FLUSH, 0, 0);
  regression_start (e, REGRESSION_FLUSH, 0, 0);
  regression_start (e, REGRESSION_WRITE, 512 << 10, 128 << 10);
  regression_start (e, REGRESSION_FLUSH, 0, 0);
  regression_go (e);
  regression_check (e);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
