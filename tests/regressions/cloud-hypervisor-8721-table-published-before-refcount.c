/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8721: an L1 entry points to a table whose refcount is 0.
 *
 * The new L2 table was published in L1 before its refcount was recorded, which was left
 * to the caller.  If that failed in between, because the disk was full, nobody recorded
 * it.  When the image was opened again, the table counted as free, and was overwritten.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8721
 * Broken: table-published-before-refcount
 */

#include <config.h>

#include <errno.h>

#include "lib/regression.h"

/* Of the requests that need a new table, those after the first FAIL operations meet a
 * full disk. */
static void
fill_up (struct regression *e, uint64_t fail)
{
  const struct fault full = {
    .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
    .after = fail, .times = UINT64_MAX, .err = ENOSPC,
  };
  unsigned k;

  simdisk_fault (regression_disk (e), &full);
  quiet_errors = true;
  for (k = 0; k < 4; k++)
    regression_write (e, k << 20, 4096);
  regression_flush (e);
  quiet_errors = false;
  simdisk_fault (regression_disk (e), NULL);
}

int
main (void)
{
  /* A table maps 512 KiB. */
  const struct image_spec spec = { .version = 3, .cluster_size = 2048,
                                   .refcount_bits = 16, .size = 4 << 20 };
  struct regression *e;
  unsigned i, k;

  regression_enter ("table-published-before-refcount");
  for (i = 0; i < 8; i++) {
    image_create (REGRESSION, &spec);
    e = regression_open (NULL);
    /* (With clusters ahead of time for some, and for none.) */
    if (i % 2 == 1)
      regression_must (e, REGRESSION_WRITE, 3 << 19, 4096);
    fill_up (e, i / 2);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    CHECK (regression_reopen (e));
    regression_check (e);
    /* These need clusters that are free. */
    for (k = 0; k < 4; k++)
      regression_must (e, REGRESSION_WRITE, (k << 20) + (1 << 19), 65536);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    regression_close (e);
  }
  return regression_leave ();
}
