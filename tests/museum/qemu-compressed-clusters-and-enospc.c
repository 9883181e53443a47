/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU: a compressed cluster that was flushed is lost while there is no space.
 *
 * Rewriting a compressed cluster frees its old sectors at once.  While no space is left
 * the new pointer does not reach the disk, but the old sectors are used again, so the
 * pointer on the disk leads to other data.
 *
 * Found by this project in QEMU 7.2.  The workload "compressed" of lab/powercut shows
 * the same without a full disk: see doc/TRUST.
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/block/qcow2-cluster.c
 * Broken: freed-clusters-reused-at-once
 */

#include <config.h>

#include <errno.h>

#include "lib/exhibit.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20 };
  const struct fault full = {
    .ops = 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE, .times = UINT64_MAX,
    .err = ENOSPC,
  };
  struct exhibit *e;
  unsigned i, k;

  exhibit_enter ("compressed-clusters-and-enospc");
  image_create (EXHIBIT, &spec);
  e = exhibit_open (&(struct exhibit_options) { .compress = true });
  exhibit_must (e, EXHIBIT_WRITE, 0, 128 << 10);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  simdisk_limit (exhibit_disk (e), simdisk_size (exhibit_disk (e)));
  simdisk_fault (exhibit_disk (e), &full);
  quiet_errors = true;
  for (i = 0; i < 2; i++)
    for (k = 0; k < 32; k++)
      exhibit_write (e, k * 4096, 4096);
  simdisk_fault (exhibit_disk (e), NULL);
  simdisk_limit (exhibit_disk (e), UINT64_MAX);
  quiet_errors = false;
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_close (e);
  return exhibit_leave ();
}
