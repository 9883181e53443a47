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

#include "lib/exhibit.h"

int
main (void)
{
  struct image_spec spec = { .version = 2, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct exhibit *e;

  exhibit_enter ("discard-in-version-2");
  exhibit_over_raw (&spec, 30);
  e = exhibit_open (NULL);
  exhibit_must (e, EXHIBIT_WRITE, 0, spec.size);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_must (e, EXHIBIT_TRIM, 0, 512 << 10);
  exhibit_check (e);            /* what was written, or zeros */
  exhibit_must (e, EXHIBIT_ZERO, 512 << 10, 256 << 10);
  exhibit_check (e);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_close (e);
  return exhibit_leave ();
}
