/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8748: a full disk, and after a restart lost data.
 *
 * When a write failed with ENOSPC half way, an entry could point to a cluster whose
 * refcount was 0.  The next start found that cluster free, and gave it to another write:
 * 512 MiB of a guest were lost with one L2 table.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8748
 * Broken: published-before-written
 */

#include <config.h>

#include <errno.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 8 << 20 };
  struct regression *e;
  unsigned i, k;

  regression_enter ("failed-write-frees-live-cluster");
  for (i = 0; i < 10; i++) {
    const struct fault fault = {
      .ops = 1 << STORAGE_OP_WRITE, .after = i, .times = UINT64_MAX, .err = ENOSPC,
    };

    image_create (REGRESSION, &spec);
    e = regression_open (&(struct regression_options) { .no_cuts = true });
    simdisk_fault (regression_disk (e), &fault);
    quiet_errors = true;
    for (k = 0; k < 4; k++) {
      regression_write (e, k << 21, 8192);
      regression_write (e, (k << 21) + 65536, 512);
    }
    regression_flush (e);
    simdisk_fault (regression_disk (e), NULL);
    regression_reopen (e);
    quiet_errors = false;
    for (k = 0; k < 4; k++)
      regression_must (e, REGRESSION_WRITE, (k << 21) + (1 << 20), 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_close (e);
  }
  return regression_leave ();
}
