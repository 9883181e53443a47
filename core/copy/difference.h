/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do two disks show the same?  See difference.c.
 */

#ifndef QCOW2_DIFFERENCE_H
#define QCOW2_DIFFERENCE_H

#include "copy/chunks.h"
#include "copy/copyend.h"

struct difference {
  uint64_t at;                  /* a multiple of 512; UINT64_MAX: there is none */
  bool kind;                    /* there, one contains what the other one does not */
  uint64_t checked;             /* bytes that were looked at */
};

/* Finds where two ends, neither of which needs an order, first differ.  The shorter one
 * goes on with zeros.  KINDS: data, zeros and holes are different even if they show the
 * same.  -1 (reported, with WORDS): it is unknown. */
extern int difference_find (const struct copy_end *, const struct copy_end *, bool kinds,
                            const struct chunks_words *, const struct chunks_watch *,
                            struct difference *);

#endif /* QCOW2_DIFFERENCE_H */
