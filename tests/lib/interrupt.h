/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A change that copies data for long is interrupted.  See interrupt.c.
 */

#ifndef TEST_INTERRUPT_H
#define TEST_INTERRUPT_H

#include "copy/chunks.h"
#include "lib/powercut.h"

struct interrupt {
  /* The test sets its path and data_path, and may use its rng for judging. */
  struct power_cut_trial power;

  /* Set by the test: */
  void *opaque;                 /* for the functions below */
  /* Makes the change, with these hooks; WATCH may stop it, or is NULL.  Returns 0, or -1
   * if it failed or was stopped. */
  int (*change) (void *opaque, const struct storage_hooks *,
                 const struct chunks_watch *watch);
  /* Ends the trial if what is left is not acceptable. */
  void (*judge) (void *opaque, const struct remains *, bool leaks_allowed);
  /* Somebody finds what is left, and begins again: this must succeed.  NULL: nobody
     does. */
  void (*again) (void *opaque, const struct remains *);

  /* Its own: the power is cut, and nothing fails or stops. */
  bool cutting;
};

/* How often someone began again, and how many changes failed because an operation did. */
struct interrupt_counts {
  unsigned again, failures;
};
extern struct interrupt_counts interrupts;

/* Makes the change again and again, and interrupts it in all ways.  (For programs that
 * include lib/allocations.h.) */
extern void interrupt_everywhere (struct interrupt *, struct rng *);

/* The change comes to what matters most: more power cuts from now on. */
extern void interrupt_more_cuts (struct interrupt *);

/* An image for that, to be created: any version, clusters of up to 64K, any refcount
 * width, with subclusters or compressed clusters, of 64 to 64 + MORE sectors. */
extern void interrupt_choose_image (struct image_spec *, struct rng *, unsigned more);

#endif /* TEST_INTERRUPT_H */
