/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The power is cut while an image is being changed.  See powercut.c.
 */

#ifndef TEST_POWERCUT_H
#define TEST_POWERCUT_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/images.h"
#include "lib/simdisk.h"

/* What a power cut has left, for the test to judge. */
struct remains {
  const struct blob *file;
  const struct blob *data;      /* the external data file, or NULL */
  enum power_cut kind;
  bool done;                    /* the change had succeeded, so it must be durable */
  bool fault;                   /* an operation, or for lack of memory the change, had
                                   failed */
  bool shortage;                /* memory had run out */
  const char *when;             /* the same in words */
};

struct power_cut_trial {
  /* Set by the test: */
  const char *path;             /* the image's file, which is never changed (absolute) */
  const char *data_path;        /* of its external data file, or NULL */
  void *opaque;                 /* for the functions below */
  struct rng rng;               /* for judging; used under the simdisk's lock */
  size_t shortages;             /* so many fail (0: few, while there is time) */

  /* Makes the change, with these hooks.  Returns 0, or -1 if it failed. */
  int (*change) (void *opaque, const struct storage_hooks *);
  /* The changes that may be made to fail: a set of 1 << enum storage_op.  (A read may
   * always fail.) */
  unsigned can_fail;
  /* How many times is the power cut before this operation?  NULL: in all ways. */
  unsigned (*cuts) (void *opaque, enum storage_op);
  /* Ends the trial if REMAINS is not acceptable.  NULL: SHOWS is enough. */
  void (*judge) (void *opaque, const struct remains *);
  /* Does the file contain the state before the change, or AFTER it?  One of them must be
   * true.  NULL: JUDGE is enough. */
  bool (*shows) (void *opaque, const struct blob *, bool after);
  /* The change failed for lack of memory, and is refused now that there is some.  Is the
   * reason that it had been made before it failed?  The file has what is left.  NULL: it
   * never is. */
  bool (*is_made) (void *opaque);
  /* If not NULL, called after the change, or its failure, has been judged, while the
   * simdisk still exists. */
  void (*ended) (void *opaque, bool fault);

  /* Set by power_cut_begin: */
  struct simdisk *sim;
  atomic_uint cuts_left;        /* the limit for cuts; the test may set it */
  bool done, fault, shortage;   /* as in struct remains */
  bool lasting;                 /* what failed did not work again during the change */
  bool no_space;                /* it failed with ENOSPC */

  uint64_t operations, reads;   /* those in can_fail, and reads; power_cut_everywhere
                                   counts them */
};

/* How much was judged so far, in all trials. */
struct power_cut_counts {
  unsigned cuts, old, new, faults, shortages;
};
extern struct power_cut_counts power_cuts;

/* The usual trial.  Makes the change once, with power cuts before each operation and
 * after all of them; it must succeed.  Then makes the change again and again, and each
 * time lets another operation fail (if there are many, a selection; without time, one):
 * first those that may, then the reads; and then some of the allocations. */
extern void power_cut_everywhere (struct power_cut_trial *);
extern void power_cut_fail_each (struct power_cut_trial *);

/* Only the allocations: see lib/shortage.h, also for ALLOCATIONS=all in the environment.
 * For programs that include lib/allocations.h. */
extern void power_cut_fail_memory (struct power_cut_trial *);

/* The parts of a trial.  power_cut_begin makes a simulated disk with the contents of the
 * file: */
extern void power_cut_begin (struct power_cut_trial *, uint64_t seed);
extern void power_cut_end (struct power_cut_trial *);
/* Makes the change with this FAULT (or NULL).  It may fail only if the fault occurred.
 * Returns what CHANGE returned. */
extern int power_cut_change (struct power_cut_trial *, const struct fault *);
/* Cuts the power now. */
extern void power_cut_now (struct power_cut_trial *, enum power_cut);
extern void power_cut_all_ways (struct power_cut_trial *);
/* A separate trial: makes the change with this fault, which must occur, and only then
 * cuts the power, in a few ways. */
extern void power_cut_fault (struct power_cut_trial *, const struct fault *);

/* The same, up to MOST times (without time, once): another one of N operations in OPS. */
extern void power_cut_fail_some (struct power_cut_trial *, unsigned ops, uint64_t n,
                                 unsigned most);

/* A random fault: EIO or ENOSPC, once or permanently, in one of OPS, after a random
 * number of them. */
extern struct fault power_cut_random_fault (struct rng *, unsigned ops, uint64_t after);

#endif /* TEST_POWERCUT_H */
