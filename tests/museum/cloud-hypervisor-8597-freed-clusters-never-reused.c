/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, pull request 8597: the file grows with each flush.
 *
 * Clusters that had become free by moving metadata were not used again until the image
 * was opened anew.  The file grew to twice its data and filled the host's disk, while a
 * check found no fault.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/pull/8597
 * Broken: freed-clusters-forgotten
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct exhibit *e;
  unsigned i;

  exhibit_enter ("freed-clusters-never-reused");
  image_create (EXHIBIT, &spec);
  e = exhibit_open (&(struct exhibit_options) { .no_cuts = true });
  for (i = 0; i < 200; i++) {
    exhibit_must (e, EXHIBIT_WRITE, (i % 16) << 16, 65536);
    exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
    exhibit_must (e, EXHIBIT_TRIM, (i % 16) << 16, 65536);
    exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  }
  /* (The reserve at the end of the file is at most 8 MiB.) */
  CHECK (simdisk_size (exhibit_disk (e)) < 11 << 20);
  exhibit_close (e);
  return exhibit_leave ();
}
