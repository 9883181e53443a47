/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A random image with any combination of features.  See mixture.c.
 */

#ifndef TEST_MIXTURE_H
#define TEST_MIXTURE_H

#include <stdbool.h>

#include "lib/images.h"

/* The name of the bitmap. */
#define MIXTURE_BITMAP "follows"

struct mixture {
  const char *name;             /* of the image file */
  struct image_spec spec;       /* of the image file */
  bool compressed;              /* it has compressed clusters */
  unsigned layers;              /* below it */
  bool hot;                     /* few clusters, which are freed and reused all the
                                   time */
  unsigned nr_snapshots;
  struct blob snapshots[2];     /* their contents; see mixture_snapshot_names */
  bool bitmap;                  /* there is one, which records changes */
};

/* The string NAME must stay valid. */
extern void mixture_make (struct mixture *, const char *name, struct rng *);
extern void mixture_free (struct mixture *);

/* Prints the features, as image_print does. */
extern void mixture_print (const struct mixture *);

extern const char *const mixture_snapshot_names[2];

/* Fails the trial if the snapshots have changed. */
extern void mixture_check_snapshots (const struct mixture *);

#endif /* TEST_MIXTURE_H */
