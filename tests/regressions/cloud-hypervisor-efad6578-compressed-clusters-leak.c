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

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 4096,
                                   .refcount_bits = 16, .size = 1 << 20,
                                   .compressed = true };
  struct regression *e;
  struct rng rng;

  regression_enter ("compressed-clusters-leak");
  rng_init (&rng, 1, 0);
  image_create (REGRESSION, &spec);
  image_fill (REGRESSION, &spec, &rng, 12);
  e = regression_open (&(struct regression_options) { .compress = true });
  regression_must (e, REGRESSION_WRITE, 0, 128 << 10);  /* some compressed */
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  CHECK (regression_reopen (e));
  regression_must (e, REGRESSION_WRITE, 512, spec.size - 1024);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  regression_must (e, REGRESSION_TRIM, 0, spec.size);
  regression_close (e);
  return regression_leave ();
}
