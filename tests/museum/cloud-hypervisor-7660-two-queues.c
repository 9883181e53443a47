/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cloud Hypervisor, issue 7660: two queues of one disk corrupt it.
 *
 * Each queue had its own copy of the caches and of the allocator.  So two queues that
 * wrote to one cluster at the same time gave it two places, and one of the writes was
 * lost.
 *
 * https://github.com/cloud-hypervisor/cloud-hypervisor/issues/7660
 * Broken: claims-exclude-nobody
 */

#include <config.h>

#include "lib/exhibit.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 65536,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct exhibit *e;
  uint64_t at;

  exhibit_enter ("two-queues");
  image_create (EXHIBIT, &spec);
  e = exhibit_open (NULL);
  for (at = 0; at < 2 * spec.cluster_size; at += spec.cluster_size) {
    exhibit_hold (e, STORAGE_OP_WRITE, EXHIBIT_WRITE, at, 4096);
    exhibit_start (e, EXHIBIT_WRITE, at + 8192, 4096);
    exhibit_start (e, EXHIBIT_WRITE, at + 16384, 512);
    exhibit_go (e);
  }
  exhibit_close (e);
  return exhibit_leave ();
}
