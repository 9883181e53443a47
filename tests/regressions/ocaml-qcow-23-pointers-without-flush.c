/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ocaml-qcow, pull request 23 (2016): pointers are written without a flush after the
 * refcounts.
 *
 * The library had no flush that it could call between metadata and the pointers to it,
 * so nothing made the disk keep their order.  After a power cut there may be pointers to
 * what was never written, or counted.
 *
 * https://github.com/mirage/ocaml-qcow/pull/23
 * Broken: no-sync-before-pointers
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 2048,
                                   .refcount_bits = 16, .size = 4 << 20 };
  struct regression *e;
  unsigned i;

  regression_enter ("pointers-without-flush");
  image_create (REGRESSION, &spec);
  e = regression_open (NULL);
  /* Each write needs a new L2 table, and no refcount was raised ahead of time. */
  for (i = 0; i < 4; i++) {
    regression_must (e, REGRESSION_WRITE, i << 20, 4096);
    regression_must (e, REGRESSION_WRITE, (i << 20) + 65536, 4096);
    regression_must (e, REGRESSION_FLUSH, 0, 0);
    CHECK (regression_reopen (e));
  }
  regression_close (e);
  return regression_leave ();
}
