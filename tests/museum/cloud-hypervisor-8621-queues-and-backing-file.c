/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, issue 8621: two queues corrupt a disk that has a backing file.
 *
 * With L2 tables in memory and several queues, a guest's file system was damaged after
 * minutes.  What a write decides on (here: that the rest of the cluster comes from the
 * backing file) must still be true when it acts.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8621
 * Broken: claims-exclude-nobody
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  struct image_spec spec = { .version = 3, .cluster_size = 65536,
                             .refcount_bits = 16, .size = 1 << 20 };
  struct exhibit *e;

  exhibit_enter ("queues-and-backing-file");
  exhibit_over_raw (&spec, 20);
  e = exhibit_open (NULL);
  exhibit_must (e, EXHIBIT_WRITE, 512 << 10, 4096);     /* the table is in memory */
  /* One copies the cluster, while others write to it. */
  exhibit_hold (e, STORAGE_OP_WRITE, EXHIBIT_WRITE, 4096, 4096);
  exhibit_start (e, EXHIBIT_WRITE, 0, 512);
  exhibit_start (e, EXHIBIT_WRITE, 32768, 8192);
  exhibit_start (e, EXHIBIT_ZERO, 16384, 4096);
  exhibit_start (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_go (e);
  exhibit_must (e, EXHIBIT_FLUSH, 0, 0);
  exhibit_close (e);
  return exhibit_leave ();
}
