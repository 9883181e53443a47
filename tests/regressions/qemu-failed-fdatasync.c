/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU: after one failed fdatasync, entries point to clusters whose refcount is 0.
 *
 * When the sync that orders two parts of the metadata fails, QEMU syncs again, and if
 * that succeeds, at its normal exit too, it writes the pointers, although the refcounts
 * may be lost.  After a failed sync no program knows what the disk has.
 *
 * Found by this project in qemu-nbd 7.2 with --cache=none: strace shows the refcounts,
 * the sync that -e inject=fdatasync:error=EIO:when=6 lets fail, another one, and the
 * pointers.  (With its default cache mode, QEMU does not write any more.)
 *
 * https://wiki.postgresql.org/wiki/Fsync_Errors (what a failed fsync means on Linux)
 * https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/block/qcow2-cache.c
 * Broken: failed-sync-ignored
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

  regression_enter ("failed-fdatasync");
  image_create (REGRESSION, &spec);
  for (i = 0; i < 4; i++) {
    const struct fault fault = {
      .ops = 1 << STORAGE_OP_SYNC, .after = i, .times = 1, .err = EIO,
    };
    bool failed = false;

    e = regression_open (NULL);
    simdisk_fault (regression_disk (e), &fault);
    quiet_errors = true;
    for (k = 0; k < 4; k++) {
      regression_write (e, k << 21, 8192);
      failed |= regression_flush (e) == EIO;
      /* The failure is not forgotten. */
      CHECK (!failed || regression_flush (e) == EIO);
    }
    CHECK (failed);
    regression_abandon (e);
    quiet_errors = false;
  }
  return regression_leave ();
}
