/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU, commit 92dcb59fd4e1 (2010): a refcount block in use has a refcount of 0.
 *
 * When refcounts grew and something failed half way, the new refcount block was in use
 * but not counted, and was overwritten later.  The growth was rewritten so that new
 * blocks describe themselves, and appear with one write.
 *
 * https://repo.or.cz/qemu/aliguori-queue.git/commit/92dcb59fd4e1491afa0756ee9c2594869b487d23
 * Broken: refcount-block-named-before-written
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 512,
                                   .refcount_bits = 64, .size = 256 << 10 };
  struct regression *e;
  uint64_t at;

  regression_enter ("refcount-growth-interrupted");
  image_create (REGRESSION, &spec);
  e = regression_open (NULL);
  for (at = 0; at < spec.size; at += 64 << 10) {
    regression_must (e, REGRESSION_WRITE, at, 64 << 10);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
  }
  regression_close (e);
  return regression_leave ();
}
