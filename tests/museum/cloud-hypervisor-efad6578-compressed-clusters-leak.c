/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, commit efad6578d1ee: rewritten compressed clusters are never freed.
 *
 * The data of a compressed cluster may begin in one host cluster and end in the next.  A
 * write over it must give up its reference to both, and to no other.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/commit/efad6578d1ee
 * Broken: compressed-data-in-one-cluster
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20,
                                   .compressed = true };
  struct exhibit *e;
  struct rng rng;

  exhibit_enter ("compressed-clusters-leak");
  rng_init (&rng, 1, 0);
  image_create (EXHIBIT, &spec);
  image_fill (EXHIBIT, &spec, &rng, 12);
  e = exhibit_open (&(struct exhibit_options) { .compress = true });
  exhibit_must (e, EXHIBIT_WRITE, 0, 128 << 10);        /* some compressed */
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  CHECK (exhibit_reopen (e));
  exhibit_must (e, EXHIBIT_WRITE, 512, spec.size - 1024);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_must (e, EXHIBIT_TRIM, 0, spec.size);
  exhibit_close (e);
  return exhibit_leave ();
}
