/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, issue 7660: two queues of one disk corrupt it.
 *
 * Each queue had its own copy of the caches and of the allocator.  So two queues that
 * wrote to one cluster at the same time gave it two places, and one of the writes was
 * lost.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/issues/7660
 * Broken: claims-exclude-nobody
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  uint64_t at;

  regression_enter ("two-queues");
  image_create (REGRESSION, &spec);
  e = regression_open (NULL);
  for (at = 0; at < 2 * spec.cluster_size; at += spec.cluster_size) {
    regression_hold (e, STORAGE_OP_WRITE, REGRESSION_WRITE, at, 4096);
    regression_start (e, REGRESSION_WRITE, at + 8192, 4096);
    regression_start (e, REGRESSION_WRITE, at + 16384, 512);
    regression_go (e);
  }
  regression_close (e);
  return regression_leave ();
}
