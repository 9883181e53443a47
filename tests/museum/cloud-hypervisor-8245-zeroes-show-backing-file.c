/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8245: zeroed ranges show the backing file.
 *
 * WRITE ZEROES removed the pointer to a cluster, as a discard may do.  Over a backing
 * file the guest then read the backing file's data where it had written zeros.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8245
 * Broken: zeroes-uncover-backing-file
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct exhibit *e;

  exhibit_enter ("zeroes-show-backing-file");
  exhibit_over_raw (&spec, 30);
  e = exhibit_open (NULL);
  exhibit_must (e, EXHIBIT_ZERO, 0, 300 << 10);         /* never written before */
  exhibit_check (e);
  exhibit_must (e, EXHIBIT_WRITE, 512 << 10, 65536);
  exhibit_must (e, EXHIBIT_ZERO, 512 << 10, 65536);     /* written before */
  exhibit_check (e);
  exhibit_must (e, EXHIBIT_WRITE, 4096, 512);           /* the rest stays zeros */
  exhibit_must (e, EXHIBIT_WRITE, (512 << 10) + 512, 512);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_close (e);
  return exhibit_leave ();
}
