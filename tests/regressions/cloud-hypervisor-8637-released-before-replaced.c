/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8637: after ENOSPC a table in use is free.
 *
 * To move an L2 table, its old cluster was released before a new one was found.  If there
 * was none, the table stayed in use, and on the list of free clusters: the next write
 * that needed a cluster overwrote it.
 *
 * Here an L2 table moves if a snapshot shares it, as do the clusters of data.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8637
 * Broken: released-before-acquired
 */

#include <config.h>

#include <errno.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 4 << 20 };
  const unsigned ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE |
    1 << STORAGE_OP_ALLOCATE;
  struct regression *e;
  struct rng rng;
  unsigned i;

  regression_enter ("released-before-replaced");
  rng_init (&rng, 1, 0);
  image_create (REGRESSION, &spec);
  image_fill (REGRESSION, &spec, &rng, 12);
  image_snapshot (REGRESSION, "before");
  for (i = 0; i < 12; i++) {
    const struct fault fault = {
      .ops = ops, .after = i, .times = UINT64_MAX, .err = ENOSPC,
    };
    unsigned k;

    e = regression_open (&(struct regression_options) { .no_cuts = true });
    /* A cluster that only the disk uses, and then no more space. */
    regression_must (e, REGRESSION_WRITE, 0, 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    simdisk_fault (regression_disk (e), &fault);
    quiet_errors = true;
    for (k = 0; k < 8; k++) {
      regression_write (e, k << 19, 512);
      regression_zero (e, k * 8192, 4096);
      regression_write (e, k * 8192 + 1024, 512);
      regression_flush (e);
    }
    quiet_errors = false;
    simdisk_fault (regression_disk (e), NULL);
    for (k = 0; k < 8; k++)
      regression_must (e, REGRESSION_WRITE, (k << 19) + 65536, 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_close (e);
  }
  return regression_leave ();
}
