/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A random image with any mixture of features.  See mixture.c.
 */

#ifndef TEST_MIXTURE_H
#define TEST_MIXTURE_H

#include <stdbool.h>

#include "lib/images.h"

/* The bitmap's name. */
#define MIXTURE_BITMAP "follows"

struct mixture {
  const char *name;             /* of the image file */
  struct image_spec spec;       /* of that */
  bool compressed;              /* it has compressed clusters */
  unsigned layers;              /* below it */
  bool hot;                     /* few clusters, which are to be freed and used again
                                   all the time */
  unsigned nr_snapshots;
  struct blob snapshots[2];     /* what they hold; mixture_snapshot_names */
  bool bitmap;                  /* there is one that follows changes */
};

/* NAME must live on. */
extern void mixture_make (struct mixture *, const char *name, struct rng *);
extern void mixture_free (struct mixture *);

/* What it is, as image_print. */
extern void mixture_print (const struct mixture *);

extern const char *const mixture_snapshot_names[2];

/* The snapshots are what they were; or the trial fails. */
extern void mixture_check_snapshots (const struct mixture *);

#endif /* TEST_MIXTURE_H */
