/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of layers share: layers.c, resolve.c.  For them only.
 */

#ifndef QCOW2_LAYERS_IMPL_H
#define QCOW2_LAYERS_IMPL_H

#include "mapping/layers.h"

struct layer {
  struct image *image;          /* NULL: a raw file */
  struct storage *file;        /* the image's, or the raw file */
  struct payload *payload;      /* likewise */
  bool is_snapshot;
  uint64_t l1_offset;           /* the active L1 table, or the snapshot's */
  uint64_t size;                /* what it covers, bytes */
  _Atomic int preallocated;     /* prealloc_detect's answer; -1: not yet asked */
};

struct layers {
  struct layer **layers;
  unsigned n;
};

#endif /* QCOW2_LAYERS_IMPL_H */
