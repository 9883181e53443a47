/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does an image have allocated clusters to which nothing was written yet?
 *
 * In an image that was created with preallocation, all clusters are in use, but are holes
 * of the host file.  A client that copies or maps the disk needs to know that these read
 * as zeros.  Asking the host about each cluster costs a system call, so this is done only
 * for images that look preallocated.  The criterion is QEMU's: clusters in use are at
 * least 10/9 of what the host has allocated, and 2 more.
 *
 * Specification: "Host cluster management".
 *
 * Locks: none.  While the image is being changed, its refcount table can move
 * (refwrite.c) and its blocks change.  A wrong result then costs time, or shows holes as
 * data; it never changes what the disk contains.
 */

#include <config.h>

#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "format/format.h"
#include "space/refblock.h"
#include "mapping/prealloc.h"

/* Counts the clusters in use of one refcount block, up to MOST. */
static uint64_t
count_block (struct storage *file, const struct header *h, void *buf,
             uint64_t offset, uint64_t most)
{
  const uint64_t per_block = (h->cluster_size * 8) >> h->refcount_order;
  uint64_t i, n = 0;

  if (offset == 0 || (offset & (h->cluster_size - 1)) != 0 ||
      offset >= storage_size (file) ||
      storage_read (file, buf, h->cluster_size, offset) == -1)
    return 0;
  for (i = 0; i < per_block && n < most; i++)
    n += refblock_get (buf, h->refcount_order, i) != 0;
  return n;
}

int
prealloc_detect (struct storage *file, const struct header *h)
{
  CLEANUP_FREE struct be64 *table = NULL;
  CLEANUP_FREE void *buf = NULL;
  const uint64_t real = storage_allocated (file) / h->cluster_size;
  const uint64_t enough = max64 (real * 10 / 9, real + 2);
  const uint64_t entries = h->reftable_clusters * h->cluster_size / 8;
  uint64_t i, n = 0;

  if (!storage_is_regular (file) ||
      div_up (storage_size (file), h->cluster_size) < enough)
    return 0;

  table = malloc (entries * sizeof *table);
  buf = malloc (h->cluster_size);
  if (table == NULL || buf == NULL ||
      storage_read (file, table, entries * sizeof *table,
                    h->reftable_offset) == -1)
    return 0;
  for (i = 0; i < entries && n < enough; i++)
    n += count_block (file, h, buf,
                      get64 (table[i]) & QCOW2_REFTABLE_OFFSET_MASK,
                      enough - n);
  return n >= enough;
}
