/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU: a write is lost if zeros are written to the rest of its cluster.
 *
 * A write to a zero cluster that has its host cluster is under way.  Zeros are written,
 * with permission to unmap, to another part of the cluster.  As all of the cluster still
 * seems to be zeros, the whole cluster is unmapped and freed; then the write's entry
 * points to a free cluster.
 *
 * Found by this project: qemu-nbd 7.2, 10.0 and 11.1 lose the data.  These commands leave
 * an image with "ERROR cluster 5 refcount=0 reference=1" (7.2):
 *
 *    qemu-img create -f qcow2 -o preallocation=metadata t.qcow2 1M
 *    qemu-io -f qcow2 -c 'write -z 0 1M' t.qcow2
 *    qemu-io -d unmap -f qcow2 -c 'break write_aio A' -c 'aio_write 0 4k' \
 *      -c 'wait_break A' -c 'aio_write -z -u 4k 60k' -c 'sleep 200' -c 'resume A' \
 *      -c aio_flush blkdebug::t.qcow2
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v10.0.0/block/qcow2.c
 * (qcow2_co_pwrite_zeroes)
 * Broken: zeroes-take-the-whole-cluster
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20,
                                   .preallocation = "metadata" };
  struct command zero = { .n = 0 };
  struct regression *e;
  uint64_t at;

  regression_enter ("write-beside-write-zeroes");
  image_create (REGRESSION, &spec);
  command_words (&zero, "qemu-io -f qcow2 -c");
  command_add (&zero, "write -z 0 1M");
  command_add (&zero, REGRESSION);
  command_must (&zero);
  e = regression_open (NULL);
  for (at = 0; at < 4 * spec.cluster_size; at += spec.cluster_size) {
    regression_hold (e, STORAGE_OP_WRITE, REGRESSION_WRITE, at, 4096);
    regression_start (e, REGRESSION_ZERO, at + 4096, spec.cluster_size - 4096);
    regression_go (e);
  }
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_WRITE, 512 << 10, 256 << 10);
  regression_close (e);
  return regression_leave ();
}
