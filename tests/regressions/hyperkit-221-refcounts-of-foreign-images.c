/* SPDX-License-Identifier: BSD-3-Clause
 *
 * HyperKit, issue 221: images that qemu-img made fail at a certain size.
 *
 * The server had only been tested with images that its own tool had made, with refcounts
 * for the whole disk.  With others it hung when the first refcount block was full, and
 * the image was corrupt.
 *
 * https://github.com/moby/hyperkit/issues/221
 * Broken: refcount-blocks-all-expected
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  /* A block counts 64 clusters, and the table has 64 blocks at first. */
  const struct image_spec spec = { .version = 3, .cluster_size = 512,
                                   .refcount_bits = 64, .size = 4 << 20 };
  struct regression *e;
  uint64_t at;

  regression_enter ("refcounts-of-foreign-images");
  image_create (REGRESSION, &spec);
  e = regression_open (&(struct regression_options) { .no_cuts = true });
  for (at = 0; at < spec.size; at += 64 << 10) {
    regression_must (e, REGRESSION_WRITE, at, 64 << 10);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
  }
  regression_close (e);
  return regression_leave ();
}
