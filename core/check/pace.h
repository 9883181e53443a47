/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tells how far a check is.  See pace.c.
 *
 * All functions allow NULL: nothing is reported.  One thread uses them.
 */

#ifndef QCOW2_PACE_H
#define QCOW2_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Who wants to know how far a check is. */
struct check_watch {
  /* DONE of TOTAL parts of the work have been done; this never becomes less.  COPIED is
   * UINT64_MAX: nothing is.  Returns whether to continue. */
  bool (*step) (void *opaque, uint64_t done, uint64_t total, uint64_t copied);
  void *opaque;
};

struct pace {
  const struct check_watch *watch;
  bool deaf;                    /* it cannot be stopped now */
  /* Belong to pace.c: */
  uint64_t shown;               /* of PACE_TOTAL */
  uint64_t from, to;            /* the stage, of PACE_TOTAL */
  uint64_t done, part, total;   /* bytes, within the stage */
};

/* Begins the next stage, which ends where NUMERATOR / DENOMINATOR of what is left are
 * done. */
extern void pace_stage (struct pace *, unsigned numerator, unsigned denominator);
/* The stage has so many bytes more. */
extern void pace_expect (struct pace *, uint64_t bytes);
/* So many bytes of it are left, whatever was done. */
extern void pace_left (struct pace *, uint64_t bytes);
/* The next of its parts has so many bytes, ... */
extern void pace_part (struct pace *, uint64_t bytes);
/* ... of which DONE / ALL are done.  Returns whether to continue. */
extern bool pace_step (struct pace *, uint64_t done, uint64_t all);

#endif /* QCOW2_PACE_H */
