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

/* Takes the contents from the file at PATH (absolute), which is never changed.  SEED
 * determines how long operations take. */
extern struct simdisk *simdisk_new (const char *path, uint64_t seed);
/* Adds a second file: the image's external data file, or one that is created later. */
extern void simdisk_add (struct simdisk *, const char *path);
/* Operations take no time from now on: for one thread. */
extern void simdisk_hurry (struct simdisk *);
extern void simdisk_free (struct simdisk *);

/* For disk_options.  Files other than those at PATH are not affected. */
extern const struct storage_hooks *simdisk_hooks (struct simdisk *);

/* WATCH is called before each change (write, sync, truncate, punch) takes place, while
 * all other accesses to the file wait. */
extern void simdisk_watch (struct simdisk *,
                           void (*watch) (void *opaque, enum storage_op),
                           void *opaque);

/* Repeats an operation on the image that was recorded elsewhere, instead of the hooks.
 * From its beginning on, parts of it may be on the disk; a sync covers what had ended
 * when the sync began.  Returns what simdisk_end must be told.  An operation that failed
 * to do anything is not repeated; one that never ended needs no end.  For one thread. */
extern uint64_t simdisk_begin (struct simdisk *, enum storage_op, const void *buf,
                               uint64_t offset, uint64_t count);
extern void simdisk_end (struct simdisk *, enum storage_op, uint64_t began, bool dsync);

/* Which changes since the last sync have reached the disk when the power is cut? */
enum power_cut {
  CUT_NOTHING,
  CUT_ALL,
  CUT_PREFIX,           /* the first few */
  CUT_SUFFIX,           /* the last few */
  CUT_ONE,              /* one alone */
  CUT_ALL_BUT_ONE,
  CUT_TORN,             /* the first few, and some sectors of the next one */
  CUT_CHANGES,          /* random changes */
  CUT_SECTORS,          /* random sectors */
  CUT_CLUSTERS,         /* random clusters, each with all its changes */
  CUT_KINDS
};
/* The file after such a power cut, valid until the next call.  To be called within a
 * watch, or while no thread uses the file. */
extern const struct blob *simdisk_cut (struct simdisk *, struct rng *,
                                       enum power_cut);
/* The second file after the same power cut. */
extern const struct blob *simdisk_data_cut (struct simdisk *);
/* A random kind; those that find the most errors are more likely. */
extern enum power_cut simdisk_random_cut (struct rng *);

/* The power is cut, and comes back: the files are what that has left.  To be called while
 * no thread uses them. */
extern void simdisk_lose (struct simdisk *, struct rng *, enum power_cut);
/* Are all writes durable?  (Holes may be of space that nobody uses; but if the second
 * file is RAW, it is the disk itself, and they are writes.) */
extern bool simdisk_is_durable (struct simdisk *, bool raw);

/* Makes operations fail: of those in OPS (a set of 1 << enum storage_op), the next AFTER
 * ones succeed, then TIMES ones fail with ERR.  PARTIAL: failing writes do a part of
 * their work.  ELSEWHERE: those on files that are not simulated count, too.  NULL: no
 * more failures. */
struct fault {
  unsigned ops;
  uint64_t after, times;
  int err;
  bool partial, elsewhere;
};
extern void simdisk_fault (struct simdisk *, const struct fault *);
/* How many operations have failed so far, and how many of those in OPS there were. */
extern uint64_t simdisk_failures (struct simdisk *);
extern uint64_t simdisk_operations (struct simdisk *, unsigned ops);

/* The file cannot grow beyond LIMIT bytes: ENOSPC. */
extern void simdisk_limit (struct simdisk *, uint64_t limit);
extern uint64_t simdisk_size (struct simdisk *);

/* Writes what programs read to the files at their paths, so that another simdisk can
 * begin with that.  To be called while no thread uses them. */
extern void simdisk_save (struct simdisk *);

#endif /* TEST_SIMDISK_H */
