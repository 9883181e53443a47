/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image if the power is cut at any instant of a change, or if the host
 * fails during the change?
 *
 * The test defines the change, and judges what is left.  The file is simulated
 * (simdisk.c).  The power is cut just before each change or sync of the file, in all ways
 * or in a random selection; then the work continues as if nothing had happened.
 *
 * Many changes happen completely or not at all.  What is left is then the old or the new
 * state; once the change has been reported as done, it is the new state, whatever
 * happens.
 *
 * If memory runs out (shortage.c), the change fails with ENOMEM, or it succeeds as it
 * always does.  If it fails, the same change succeeds when there is memory.
 *
 * Locks: watch() is called under the simdisk's lock.  All other functions are called
 * while no thread uses the simdisk.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/trials.h"

/* So many allocations of a change fail, one after the other. */
#define SHORTAGES 6

struct power_cut_counts power_cuts;

/* --- judging --- */

static void
judge_old_or_new (struct power_cut_trial *p, const struct remains *r)
{
  if (!r->done && p->shows (p->opaque, r->file, false))
    power_cuts.old++;
  else if (p->shows (p->opaque, r->file, true))
    power_cuts.new++;
  else
    survivor_fail (r->file, "%s: %s", r->when, r->done ? "not as it should be" :
                   "neither as before nor as after");
}

void
power_cut_now (struct power_cut_trial *p, enum power_cut kind)
{
  struct remains r = {
    .file = simdisk_cut (p->sim, &p->rng, kind), .kind = kind,
    .data = p->data_path ? simdisk_data_cut (p->sim) : NULL,
    .done = p->done, .fault = p->fault,
    .shortage = p->shortage,
  };
  char when[100];

  snprintf (when, sizeof when, "power cut of kind %d %s%s", kind,
            p->done ? "after the change" : "before its end",
            p->fault ? ", in which something failed" : "");
  r.when = when;
  power_cuts.cuts++;
  if (p->judge)
    p->judge (p->opaque, &r);
  if (p->shows)
    judge_old_or_new (p, &r);
}

void
power_cut_all_ways (struct power_cut_trial *p)
{
  enum power_cut kind;

  for (kind = 0; kind < CUT_KINDS; kind++)
    power_cut_now (p, kind);
  /* A pointer to a table may be durable when the table is not, and so on: cut in several
   * ways. */
  power_cut_now (p, CUT_SECTORS);
  power_cut_now (p, CUT_SECTORS);
}

static void
watch (void *opaque, enum storage_op op)
{
  struct power_cut_trial *p = opaque;
  unsigned n;

  /* (What is left does not depend on threads.) */
  if (TRACES_THREADS && !long_suite () && rng_below (&p->rng, 4) > 0)
    return;
  if (p->cuts == NULL && p->cuts_left > 0)
    power_cut_all_ways (p);
  else if (p->cuts != NULL)
    for (n = p->cuts (p->opaque, op); n > 0 && p->cuts_left > 0; n--, p->cuts_left--)
      power_cut_now (p, simdisk_random_cut (&p->rng));
}

/* --- parts of a trial --- */

void
power_cut_begin (struct power_cut_trial *p, uint64_t seed)
{
  p->sim = simdisk_new (p->path, seed);
  if (p->data_path)
    simdisk_add (p->sim, p->data_path);
  p->cuts_left = UINT_MAX;
  p->done = p->fault = p->shortage = p->lasting = p->no_space = false;
  simdisk_watch (p->sim, watch, p);
}

void
power_cut_end (struct power_cut_trial *p)
{
  simdisk_free (p->sim);
  p->sim = NULL;
}

/* QUIET: it may fail. */
static int
make_change (struct power_cut_trial *p, bool quiet)
{
  const bool was_quiet = quiet_errors;
  int r;

  p->done = p->fault = false;
  quiet_errors = was_quiet || quiet;
  r = SHORTAGE_MEETS (p->change (p->opaque, simdisk_hooks (p->sim)));
  quiet_errors = was_quiet;
  p->done = r == 0;
  return r;
}

int
power_cut_change (struct power_cut_trial *p, const struct fault *fault)
{
  const uint64_t failures = simdisk_failures (p->sim);
  int r;

  p->lasting = fault && fault->times > 1;
  p->no_space = fault && fault->err == ENOSPC;
  simdisk_fault (p->sim, fault);
  r = make_change (p, fault);
  simdisk_fault (p->sim, NULL);
  p->fault = simdisk_failures (p->sim) > failures;
  if (!p->done && !p->fault)
    FAIL ("the change failed without a reason: %m (%s)", last_error ());
  return r;
}

/* --- trials --- */

void
power_cut_everywhere (struct power_cut_trial *p)
{
  power_cut_begin (p, rng_next (&p->rng));
  power_cut_change (p, NULL);
  p->operations = simdisk_operations (p->sim, p->can_fail);
  p->reads = simdisk_operations (p->sim, 1 << STORAGE_OP_READ);
  power_cut_all_ways (p);
  if (p->ended)
    p->ended (p->opaque, false);
  power_cut_end (p);
}

struct fault
power_cut_random_fault (struct rng *rng, unsigned ops, uint64_t after)
{
  return (struct fault) {
    .ops = ops, .after = after, .times = rng_below (rng, 2) ? 1 : UINT64_MAX,
    .err = rng_below (rng, 2) ? EIO : ENOSPC, .partial = rng_below (rng, 2),
  };
}

/* Something has failed. */
static void
judge_failure (struct power_cut_trial *p)
{
  power_cut_now (p, CUT_NOTHING);
  for (unsigned i = 0; i < 4; i++)
    power_cut_now (p, simdisk_random_cut (&p->rng));
  if (p->ended)
    p->ended (p->opaque, true);
  power_cut_now (p, CUT_ALL);
}

void
power_cut_fault (struct power_cut_trial *p, const struct fault *fault)
{
  power_cut_begin (p, fault->after);
  p->cuts_left = 0;
  power_cut_change (p, fault);
  /* (How often a table is read depends on what caches keep, and so on the time.) */
  if (!p->fault && fault->ops != 1 << STORAGE_OP_READ)
    FAIL ("no operation failed");
  if (p->fault) {
    power_cuts.faults++;
    judge_failure (p);
  }
  power_cut_end (p);
}

static void
fail_nth (struct power_cut_trial *p, unsigned ops, uint64_t nth)
{
  struct fault fault = power_cut_random_fault (&p->rng, ops, nth);

  if (ops == 1 << STORAGE_OP_READ)
    fault.err = EIO;
  power_cut_fault (p, &fault);
}

void
power_cut_fail_some (struct power_cut_trial *p, unsigned ops, uint64_t n, unsigned most)
{
  for (unsigned i = 0; i < most && n > 0 && (i == 0 || trials_time_left ()); i++)
    fail_nth (p, ops, rng_below (&p->rng, n));
}

/* Of N operations in OPS, some one fails, then a later one, ... and the last, which is
 * the only one if there is no time. */
static void
fail_some (struct power_cut_trial *p, unsigned ops, uint64_t n)
{
  const uint64_t first = n > 0 ? rng_below (&p->rng, n) : 0;

  for (uint64_t i = 0; i < n && trials_time_left (); i += 1 + n / 16)
    fail_nth (p, ops, (first + i) % n);
  if (n > 0)
    fail_nth (p, ops, n - 1);
}

/* --- memory that runs out --- */

/* A lack of memory is no corruption. */
static void
check_unmarked (const struct blob *now, const struct blob *before)
{
  if (before->len >= 104 && blob_get (before, 0, 4) == QCOW2_MAGIC &&
      blob_get (before, 4, 4) >= 3 && blob_get (now, 0, 4) == QCOW2_MAGIC &&
      (blob_get (now, 72, 8) & ~blob_get (before, 72, 8) & QCOW2_INCOMPAT_CORRUPT))
    survivor_fail (now, "marked corrupt");
}

/* The files that the change finds. */
struct found {
  struct blob file, data;
};

/* Somebody finds what is left, and there is memory. */
static void
change_again (struct power_cut_trial *p, const struct found *found)
{
  struct found left = { .file.len = 0 };

  simdisk_save (p->sim);
  blob_load (p->path, &left.file);
  check_unmarked (&left.file, &found->file);
  if (p->data_path) {
    blob_load (p->data_path, &left.data);
    check_unmarked (&left.data, &found->data);
  }
  blob_free (&left.file);
  blob_free (&left.data);
  power_cut_end (p);
  power_cut_begin (p, 0);
  p->cuts_left = 0;
  if (make_change (p, false) == -1 && !(p->is_made && p->is_made (p->opaque)))
    FAIL ("the change fails again, though there is memory: %m (%s)", last_error ());
  p->fault = p->shortage = true;        /* what was leaked may still be there */
  if (p->ended)
    p->ended (p->opaque, true);
  power_cut_now (p, CUT_ALL);
  blob_save (p->path, &found->file);
  if (p->data_path)
    blob_save (p->data_path, &found->data);
}

static void
change_in (struct power_cut_trial *p, const struct found *found, struct shortage shortage)
{
  const unsigned descriptors = reach_open_descriptors ();
  int r, err;

  trials_about ("memory runs out %s at allocation %" PRIu64,
                shortage.times == 1 ? "once," : "for good", shortage.after);
  power_cut_begin (p, shortage.after);
  simdisk_hurry (p->sim);
  p->cuts_left = 0;
  p->lasting = shortage.times > 1;
  shortage_begin (shortage);
  r = make_change (p, shortage.times > 0);
  err = errno;
  p->shortage = shortage_end () > 0;
  p->fault = p->shortage && r == -1;
  if (r == -1 && (!p->fault || err != ENOMEM))
    FAIL ("the change failed: %s (%s)", strerror (err), last_error ());
  judge_failure (p);
  if (r == -1)
    change_again (p, found);
  power_cut_end (p);
  CHECK (reach_open_descriptors () == descriptors);
  trials_about ("%s", "");
}

void
power_cut_fail_memory (struct power_cut_trial *p)
{
  struct found found = { .file.len = 0 };
  uint64_t *which;
  size_t n, i;

  blob_load (p->path, &found.file);
  if (p->data_path)
    blob_load (p->data_path, &found.data);
  shortage_spare (true);
  change_in (p, &found, SHORTAGE_NONE);
  which = shortage_choose (&p->rng, p->shortages ? p->shortages : SHORTAGES, &n);
  CHECK (n > 0);                /* the program includes lib/allocations.h */
  for (i = 0; i < n && (i == 0 || p->shortages || trials_time_left ()); i++) {
    change_in (p, &found, (struct shortage) { which[i], 1 });
    change_in (p, &found, (struct shortage) { which[i], UINT64_MAX });
  }
  power_cuts.shortages += 2 * i;
  free (which);
  blob_free (&found.file);
  blob_free (&found.data);
  shortage_spare (false);
}

/* (What comes after a part that ended early is the same as if it had not.) */
void
power_cut_fail_each (struct power_cut_trial *p)
{
  uint64_t seeds[4];

  for (unsigned i = 0; i < 4; i++)
    seeds[i] = rng_next (&p->rng);
  rng_init (&p->rng, seeds[0], 0);
  fail_some (p, p->can_fail, p->operations);
  rng_init (&p->rng, seeds[1], 0);
  fail_some (p, 1 << STORAGE_OP_READ, p->reads);
  rng_init (&p->rng, seeds[2], 0);
  power_cut_fail_memory (p);
  rng_init (&p->rng, seeds[3], 0);
}
