/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU 7.2, "qcow2: Fix theoretical corruption in store_bitmap() error path".
 *
 * When a persistent bitmap could not be stored, its clusters were freed although parts of
 * the directory might have been written.  A bitmap must never look complete when it is
 * not: a backup would leave out what has changed.
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/block/qcow2-bitmap.c (store_bitmap)
 * Broken: bitmap-settled-after-an-error
 */

#include <config.h>

#include <errno.h>

#include "lib/checker.h"
#include "lib/regression.h"

/* Is the bitmap in use, or does it have both places that were written? */
static bool
is_right (const struct image_spec *spec)
{
  unsigned char *sectors = calloc (1, spec->size / 512);
  struct checked_bitmap bitmap;
  struct blob file;
  bool right;

  blob_load (REGRESSION, &file);
  CHECK (sectors != NULL && checker_bitmap (&file, "changes", &bitmap, sectors));
  right = bitmap.in_use || (sectors[0] && sectors[(512 << 10) / 512]);
  blob_free (&file);
  free (sectors);
  return right;
}

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  unsigned i;

  regression_enter ("bitmap-stored-in-part");
  for (i = 0; i < 16; i++) {
    const struct fault fault = {
      .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC, .after = i, .times = 1,
      .err = EIO,
    };

    image_create (REGRESSION, &spec);
    image_bitmap (REGRESSION, "changes", 12);
    e = regression_open (&(struct regression_options) { .no_cuts = true });
    regression_must (e, REGRESSION_WRITE, 0, 4096);
    regression_must (e, REGRESSION_WRITE, 512 << 10, 4096);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    simdisk_fault (regression_disk (e), &fault);
    quiet_errors = true;
    regression_reopen (e);
    CHECK (is_right (&spec));
    regression_abandon (e);
    quiet_errors = false;
  }
  return regression_leave ();
}
