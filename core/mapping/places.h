/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a guest range in the same place in two stacks of layers?  See places.c.
 */

#ifndef QCOW2_PLACES_H
#define QCOW2_PLACES_H

#include <stdint.h>

#include "mapping/layers.h"

struct places {
  struct layers *layers;
  struct layers_view *view;     /* of the layers to be looked at */
};

/* Compares the beginning of [at, at + *len), guest bytes.  Sets *LEN to the length of
 * what both have in the same place (returns 0), or may have in different ones (1): a
 * multiple of UNIT, except at the end of the range.  AT is a multiple of UNIT.  -1:
 * reported. */
extern int places_differ (const struct places *, const struct places *, uint64_t unit,
                          uint64_t at, uint64_t *len);

#endif /* QCOW2_PLACES_H */
