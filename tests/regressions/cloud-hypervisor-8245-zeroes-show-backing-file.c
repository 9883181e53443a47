/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8245: zeroed ranges show the backing file.
 *
 * WRITE ZEROES removed the pointer to a cluster, as a discard may do.  Over a backing
 * file the guest then read the backing file's data where it had written zeros.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8245
 * Broken: zeroes-uncover-backing-file
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;

  regression_enter ("zeroes-show-backing-file");
  regression_over_raw (&spec, 30);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_ZERO, 0, 300 << 10);   /* never written before */
  regression_check (e);
  regression_must (e, REGRESSION_WRITE, 512 << 10, 65536);
  regression_must (e, REGRESSION_ZERO, 512 << 10, 65536);  /* written before */
  regression_check (e);
  regression_must (e, REGRESSION_WRITE, 4096, 512);     /* the rest stays zeros */
  regression_must (e, REGRESSION_WRITE, (512 << 10) + 512, 512);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
