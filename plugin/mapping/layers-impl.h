/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of layers share: layers.c, resolve.c.  For them only.
 */

#ifndef QCOW2_LAYERS_IMPL_H
#define QCOW2_LAYERS_IMPL_H

#include "mapping/layers.h"

struct layer {
  struct hostfile *file;
  struct hostfile *external;    /* data file; NULL: data are in `file' */
  struct payload *payload;
  bool raw;
  bool is_snapshot;
  _Atomic int preallocated;     /* prealloc_detect's answer; -1: not yet asked */
  uint64_t size;                /* what it covers, bytes */
  struct header header;         /* unless raw */
  struct overlap *overlap;      /* unless raw */
};

struct layers {
  struct layer **layers;
  unsigned n;
};

#endif /* QCOW2_LAYERS_IMPL_H */
