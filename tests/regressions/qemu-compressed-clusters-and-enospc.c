/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU: a compressed cluster that was flushed is lost while there is no space.
 *
 * Rewriting a compressed cluster frees its old sectors at once.  While no space is left
 * the new pointer does not reach the disk, but the old sectors are used again, so the
 * pointer on the disk leads to other data.
 *
 * Found by this project in QEMU 7.2.  The workload "compressed" of lab/powercut shows
 * the same without a full disk: see lab/RESULTS.
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/block/qcow2-cluster.c
 * Broken: freed-clusters-reused-at-once
 */

#include <config.h>

#include <errno.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20 };
  const struct fault full = {
    .ops = 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE, .times = UINT64_MAX,
    .err = ENOSPC,
  };
  struct regression *e;
  unsigned i, k;

  regression_enter ("compressed-clusters-and-enospc");
  image_create (REGRESSION, &spec);
  e = regression_open (&(struct regression_options) { .compress = true });
  regression_must (e, REGRESSION_WRITE, 0, 128 << 10);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  simdisk_limit (regression_disk (e), simdisk_size (regression_disk (e)));
  simdisk_fault (regression_disk (e), &full);
  quiet_errors = true;
  for (i = 0; i < 2; i++)
    for (k = 0; k < 32; k++)
      regression_write (e, k * 4096, 4096);
  simdisk_fault (regression_disk (e), NULL);
  simdisk_limit (regression_disk (e), UINT64_MAX);
  quiet_errors = false;
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
