/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that layers.c and resolve.c share.  No other file includes this.
 */

#ifndef QCOW2_LAYERS_IMPL_H
#define QCOW2_LAYERS_IMPL_H

#include <stdatomic.h>

#include "mapping/layers.h"

/* Constant, but for `preallocated', `owners', and what is set before the last owner
 * goes. */
struct layer {
  struct image *image;          /* NULL: a raw file */
  struct storage *file;        /* of the image, or the raw file */
  struct guestdata *guestdata;  /* of the image, or of the raw file */
  bool is_snapshot;
  uint64_t l1_offset;           /* of the active L1 table, or of a snapshot's */
  uint64_t size;                /* of the disk, in bytes */
  _Atomic int preallocated;     /* result of prealloc_detect; -1: not asked yet */
  atomic_uint owners;           /* stacks, and layers that came after it */
  struct layer *before;         /* a raw file: the layer that has it open; NULL: this
                                   one */
  void (*gone) (void *opaque);  /* NULL: nothing; see layers_when_gone */
  void *opaque;
};

struct layers {
  struct layer **layers;
  unsigned n;
};

#endif /* QCOW2_LAYERS_IMPL_H */
