/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a request need to know about the disk that it works on?
 *
 * A view is one guest address space that is served: a stack of layers that do not change
 * and, if it may be written, the writable top image over them.  Folder disk
 * makes views; requests only use them.  A view does not change while requests run.
 */

#ifndef QCOW2_VIEW_H
#define QCOW2_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "util/rangelock.h"
#include "image/clustercache.h"
#include "image/image.h"
#include "space/alloc.h"
#include "mapping/l2.h"
#include "mapping/layers.h"
#include "request/bitmap.h"
#include "request/checkpoint.h"
#include "request/compressor.h"
#include "request/knownzero.h"
#include "request/discards.h"

struct copyup;
struct readahead;

enum compress { COMPRESS_OFF, COMPRESS_ON, COMPRESS_ALL };
enum detect_zeroes { DETECT_ZEROES_OFF, DETECT_ZEROES_ON, DETECT_ZEROES_UNMAP };

/* The top image, while it is writable. */
struct writable {
  bool data_is_raw;                     /* the external data file must contain the same
                                           bytes as the disk */
  struct refcounts *refcounts;
  struct l2 *l2;
  struct alloc *alloc;
  struct rangelock *rangelock;
  struct knownzero *knownzero;          /* NULL without extended L2 entries */
  struct discards *discards;            /* NULL: space in a data file is not freed when
                                           its mapping goes */
  struct checkpoint *checkpoint;
  struct compressor *compressor;            /* compresses whole new clusters;
                                           NULL: they are not compressed */
  bool compress_zeros;                  /* those of zeros too, as data */
  struct bitmaps *bitmaps;              /* that record changes; NULL: none */
  struct copyup *copyup;                    /* copy-on-read; NULL: off */
  bool discard;                         /* trim has an effect */
  enum detect_zeroes detect_zeroes;
};

struct view {
  uint64_t size;                        /* of the disk, bytes */
  struct image *image;                  /* the top image */
  struct layers *layers;                /* all, including the top image */
  struct layers_view *lower;            /* the layers below the writable image; all
                                           layers if there is none */
  struct layers_view *alone;            /* of the top image alone; NULL: not asked for */
  struct writable *w;                   /* NULL: read-only */
  bool single;                          /* one layer alone: ranges that it does not
                                           contain are UNALLOCATED */
  bool remote;                          /* the image is written and remote: meanwhile the
                                           layers below can be asked, too */
  struct cluster_cache *cluster_cache;            /* cache of decompressed clusters */
  struct readahead *readahead;          /* what decompresses clusters ahead of readers */
  bool is_active;                       /* it shows the active disk, or its top image */
};

#endif /* QCOW2_VIEW_H */
