/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8721: an L1 entry points to a table whose refcount is 0.
 *
 * The new L2 table was published in L1 before its refcount was recorded.  If something
 * went wrong in between, the table counted as free when the image was opened again.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8721
 * Broken: no-sync-before-pointers
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 2048,
                                   .refcount_bits = 16, .size = 4 << 20 };
  struct exhibit *e;
  unsigned i;

  exhibit_enter ("table-published-before-refcount");
  image_create (EXHIBIT, &spec);
  e = exhibit_open (NULL);
  /* Each write needs a new L2 table, and no refcount was raised ahead of time. */
  for (i = 0; i < 4; i++) {
    exhibit_must (e, EXHIBIT_WRITE, i << 20, 4096);
    exhibit_must (e, EXHIBIT_WRITE, (i << 20) + 65536, 4096);
    exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
    CHECK (exhibit_reopen (e));
  }
  exhibit_close (e);
  return exhibit_leave ();
}
