/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the disk of an image get another size?  See resize.c.
 */

#ifndef QCOW2_RESIZE_H
#define QCOW2_RESIZE_H

#include "format/preallocation.h"
#include "offline/shadow.h"

struct resize_options {
  uint64_t size;                /* wanted, bytes */
  enum preallocation preallocation;     /* of what is new */
  uint64_t backing_size;        /* of the disk below; 0: there is none */
  bool discard;                 /* punch holes into what is freed */
};

/* Can that be done at all?  0, or -1 (reported). */
extern int resize_check (const struct image *,
                         const struct resize_options *);

/* Does it.  What is new reads as zeros from the first cluster boundary on; the rest of
 * the cluster before it is the caller's affair.  0: done, and durable; what is known of
 * the image is out of date (image_reload).  -1: reported, and the image is as it was
 * (unless the message says otherwise). */
extern int resize_image (const struct image *,
                         const struct resize_options *);

#endif /* QCOW2_RESIZE_H */
