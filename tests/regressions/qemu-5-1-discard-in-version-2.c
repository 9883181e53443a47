/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU before 5.1: a discard in a version 2 image brings back the backing file's data.
 *
 * Version 2 has no zero clusters, so a discarded cluster became unallocated, and the
 * guest read the backing file's data, which it had overwritten long ago.
 *
 * https://fuchsia.googlesource.com/third_party/qemu/+/39f77cb662c6a7c4c398ee568ebc0ebcd710d0c4%5E
 * Broken: version-2-uncovers-backing-file
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  struct image_spec spec = { .version = 2, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;

  regression_enter ("discard-in-version-2");
  regression_over_raw (&spec, 30);
  e = regression_open (NULL);
  regression_must (e, REGRESSION_WRITE, 0, spec.size);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_TRIM, 0, 512 << 10);
  regression_check (e);         /* what was written, or zeros */
  regression_must (e, REGRESSION_ZERO, 512 << 10, 256 << 10);
  regression_check (e);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_close (e);
  return regression_leave ();
}
