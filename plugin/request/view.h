/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a request needs to know of the disk it works on.
 *
 * A view is one guest address space that is being served: a stack of layers that do not
 * change, and, if it may be written, the writable top image over them.
 * disk.c makes views; requests only use them.  Nothing here changes while
 * requests run.
 */

#ifndef QCOW2_VIEW_H
#define QCOW2_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "util/inflight.h"
#include "image/clustercache.h"
#include "image/image.h"
#include "space/alloc.h"
#include "mapping/l2.h"
#include "mapping/layers.h"
#include "request/bitmap.h"
#include "request/checkpoint.h"
#include "request/compressor.h"
#include "request/fresh.h"
#include "request/vacant.h"

struct copyup;

enum detect_zeroes { DETECT_ZEROES_OFF, DETECT_ZEROES_ON, DETECT_ZEROES_UNMAP };

/* The top image while it may be written. */
struct writable {
  bool data_is_raw;                     /* an external data file, which must show the disk
                                           by itself */
  struct refcounts *refcounts;
  struct l2 *l2;
  struct alloc *alloc;
  struct inflight *inflight;
  struct fresh *fresh;                  /* NULL without extended L2 entries */
  struct vacant *vacant;                /* NULL: no space of a data file is given back
                                           when its mapping goes */
  struct checkpoint *checkpoint;
  struct compressor *compressor;            /* whole new clusters are compressed;
                                           NULL: they are not */
  struct bitmaps *bitmaps;              /* that follow changes; NULL: none */
  struct copyup *copyup;                    /* copy-on-read; NULL: off */
  bool discard;                         /* trim does something */
  enum detect_zeroes detect_zeroes;
};

struct view {
  uint64_t size;                        /* of the disk, bytes */
  struct image *image;                  /* the top image */
  struct layers *layers;                /* all, the top image included */
  struct layers_view *lower;            /* what lies below the writable image; all
                                           layers if there is none */
  struct writable *w;                   /* NULL: read-only */
  bool single;                          /* one layer alone: what it does not hold itself
                                           is UNALLOCATED */
  struct cluster_cache *cluster_cache;            /* cache of inflated clusters */
};

#endif /* QCOW2_VIEW_H */
