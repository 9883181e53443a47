/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The power is cut while something changes an image.  See powercut.c.
 */

#ifndef TEST_POWERCUT_H
#define TEST_POWERCUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/images.h"
#include "lib/simdisk.h"

/* What a power cut has left, for the test to judge. */
struct remains {
  const struct blob *file;
  const struct blob *data;      /* the external data file, or NULL */
  enum power_cut kind;
  bool done;                    /* the change had ended well: it must be durable */
  bool fault;                   /* an operation had failed */
  const char *when;             /* that in words */
};

struct power_cut_trial {
  /* What the test says: */
  const char *path;             /* the image's file, which stays as it is (absolute) */
  const char *data_path;        /* of its external data file, or NULL */
  void *opaque;                 /* for the functions */
  struct rng rng;               /* for what is judged: under the simdisk's lock */

  /* Makes the change, with these hooks.  -1: it failed. */
  int (*change) (void *opaque, const struct storage_hooks *);
  /* Operations that can fail: a set of 1 << enum storage_op. */
  unsigned can_fail;
  /* How many times is the power cut before this operation?  NULL: in all ways. */
  unsigned (*cuts) (void *opaque, enum storage_op);
  /* Ends the trial if that must not be left.  NULL: all is said by SHOWS. */
  void (*judge) (void *opaque, const struct remains *);
  /* Is the file as it was before the change, or as it should be AFTER it?  One of them it
   * must be.  NULL: JUDGE says all. */
  bool (*shows) (void *opaque, const struct blob *, bool after);
  /* Called after the change, or its failure, has been judged, while the simdisk is still
   * there; or NULL. */
  void (*ended) (void *opaque, bool fault);

  /* Since power_cut_begin: */
  struct simdisk *sim;
  unsigned cuts_left;           /* no more than these; the test may set it */
  bool done, fault;             /* as in struct remains */

  uint64_t operations;          /* that can fail: power_cut_everywhere counts them */
};

/* How much was judged so far, in all trials. */
struct power_cut_counts {
  unsigned cuts, old, new, faults;
};
extern struct power_cut_counts power_cuts;

/* The usual trial.  The change is made once, with power cuts before each operation and
 * after all, and must end well.  Then it is made again and again, and each time another
 * operation fails, from the first to the last (of many: a part of them). */
extern void power_cut_everywhere (struct power_cut_trial *);
extern void power_cut_fail_each (struct power_cut_trial *);

/* Its parts.  A simulated disk with the contents of the file: */
extern void power_cut_begin (struct power_cut_trial *, uint64_t seed);
extern void power_cut_end (struct power_cut_trial *);
/* The change, while this FAULT (or NULL) is in force.  It must not fail without one that
 * struck.  As CHANGE returns. */
extern int power_cut_change (struct power_cut_trial *, const struct fault *);
/* The power is cut now. */
extern void power_cut_now (struct power_cut_trial *, enum power_cut);
extern void power_cut_all_ways (struct power_cut_trial *);
/* A trial of its own: the change meets this fault, which must strike, and only then the
 * power is cut, in a few ways. */
extern void power_cut_fault (struct power_cut_trial *, const struct fault *);

/* EIO or ENOSPC, once or for ever, in one of OPS after so many. */
extern struct fault power_cut_random_fault (struct rng *, unsigned ops, uint64_t after);

#endif /* TEST_POWERCUT_H */
