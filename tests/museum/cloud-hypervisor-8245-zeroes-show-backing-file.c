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
  struct blob below;
  struct exhibit *e;
  struct rng rng;

  exhibit_enter ("zeroes-show-backing-file");
  rng_init (&rng, 1, 0);
  image_over_raw (&spec, &rng, spec.size, 30, &below);
  image_create (EXHIBIT, &spec);
  e = exhibit_open (&(struct exhibit_options) { .below = &below });
  exhibit_must (e, EXHIBIT_ZERO, 0, 300 << 10);         /* never written before */
  exhibit_check (e);
  exhibit_must (e, EXHIBIT_WRITE, 512 << 10, 65536);
  exhibit_must (e, EXHIBIT_ZERO, 512 << 10, 65536);     /* written before */
  exhibit_check (e);
  exhibit_must (e, EXHIBIT_WRITE, 4096, 512);           /* the rest stays zeros */
  exhibit_must (e, EXHIBIT_WRITE, (512 << 10) + 512, 512);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_close (e);
  blob_free (&below);
  return exhibit_leave ();
}
