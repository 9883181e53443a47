/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image file in memory, whose power can be cut at any time and whose space can
 * run out.  See simdisk.c.
 */

#ifndef TEST_SIMDISK_H
#define TEST_SIMDISK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "lib/images.h"

struct simdisk;

/* Takes the contents from the file at PATH (absolute), which is never changed.
 * SEED: for the timing of answers. */
extern struct simdisk *simdisk_new (const char *path, uint64_t seed);
/* A second file: the image's external data file. */
extern void simdisk_add (struct simdisk *, const char *path);
extern void simdisk_free (struct simdisk *);

/* For disk_options.  Other files than PATH are left alone. */
extern const struct storage_hooks *simdisk_hooks (struct simdisk *);

/* WATCH is called before each change (write, sync, truncate, punch) takes place,
 * while every other access to the file waits. */
extern void simdisk_watch (struct simdisk *,
                           void (*watch) (void *opaque, enum storage_op),
                           void *opaque);

/* What of the changes since the last sync has reached the disk when the power
 * goes? */
enum power_cut {
  CUT_NOTHING,
  CUT_ALL,
  CUT_PREFIX,           /* the first few */
  CUT_SUFFIX,           /* the last few */
  CUT_ONE,              /* one alone */
  CUT_ALL_BUT_ONE,
  CUT_TORN,             /* the first few, and some sectors of the next */
  CUT_CHANGES,          /* each change by chance */
  CUT_SECTORS,          /* each sector by chance */
  CUT_CLUSTERS,         /* each cluster by chance, then all that happened to it */
  CUT_KINDS
};
/* The file after such an accident, until the next call.  Within a watch, or while
 * nobody uses the file. */
extern const struct blob *simdisk_cut (struct simdisk *, struct rng *,
                                       enum power_cut);
/* The second file after the same accident. */
extern const struct blob *simdisk_data_cut (struct simdisk *);
/* A random kind, with a liking for those that find most. */
extern enum power_cut simdisk_random_cut (struct rng *);

/* Makes operations fail: of those in OPS (a set of 1 << enum storage_op), the
 * AFTER next ones go well, then TIMES ones fail with ERR.  PARTIAL: failing writes do a
 * part of their work.  NULL: no more failures. */
struct fault {
  unsigned ops;
  uint64_t after, times;
  int err;
  bool partial;
};
extern void simdisk_fault (struct simdisk *, const struct fault *);
/* How many have failed so far, and how many of those in OPS there were. */
extern uint64_t simdisk_failures (struct simdisk *);
extern uint64_t simdisk_operations (struct simdisk *, unsigned ops);

/* The file cannot grow beyond LIMIT bytes: ENOSPC. */
extern void simdisk_limit (struct simdisk *, uint64_t limit);
extern uint64_t simdisk_size (struct simdisk *);

#endif /* TEST_SIMDISK_H */
