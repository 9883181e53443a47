/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a change leave if any of its operations fails, and when memory runs out?
 *
 * Each kind of change (lib/eachchange) is made of the same image again and again, and
 * each time another operation on the file fails: once, or all of its kind from then on.
 * Then the change fails with that error and says why, or succeeds; what is left, now or
 * after a power cut, has no faults, and shows the old or the new disk.  (Whether all else
 * is old or new, crash/edits and other tests look at.)  Then memory runs out at one
 * allocation after the other.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many changes (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one; FAULTS: how many operations of
 * each kind, and allocations, fail (default: some; if it is set, each change is made).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/eachchange.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define SOME 6

static const struct { enum storage_op op; const char *name; } ops[] = {
  { STORAGE_OP_READ, "read" }, { STORAGE_OP_WRITE, "write" }, { STORAGE_OP_SYNC, "sync" },
  { STORAGE_OP_PUNCH, "punch" }, { STORAGE_OP_TRUNCATE, "truncate" },
  { STORAGE_OP_ALLOCATE, "allocate" },
};
#define NR_OPS (sizeof ops / sizeof ops[0])

struct trial {
  const struct each_change *change;
  struct blob before, after;            /* the disk; without data: not looked at */
  struct power_cut_trial power;
  int err;                              /* errno of the change, if it failed */
};

static unsigned nr_failed;

static int
make (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  const struct disk_options options = each_change_options (t->power.path, hooks);
  const unsigned long errors = error_count ();

  errno = 0;
  if (t->change->run (&options) == 0)
    return 0;
  t->err = errno;
  if (error_count () == errors)
    FAIL ("it fails, and does not say why");
  nr_failed++;
  errno = t->err;
  return -1;
}

static bool
shows_disk (const struct trial *t, const struct blob *file)
{
  return t->before.data == NULL ||
    survivor_shows (file, each_change_below (), &t->before) ||
    survivor_shows (file, each_change_below (), &t->after);
}

static void
judge (void *opaque, const struct remains *left)
{
  const struct trial *t = opaque;

  const bool failed = left->fault || left->shortage || !left->done;

  if (left->done || !t->change->repairs)
    survivor_check (left->file, t->change->stops_anywhere && failed, left->when);
  if (!shows_disk (t, left->file))
    survivor_fail (left->file, "%s: the disk has changed", left->when);
}

static void
fail_operation (struct trial *t, unsigned i, const struct fault *fault)
{
  trials_about ("%s: %s %" PRIu64 " fails%s with errno %d", t->change->name, ops[i].name,
                fault->after, fault->times > 1 ? " for good" : "", fault->err);
  power_cut_begin (&t->power, fault->after);
  simdisk_hurry (t->power.sim);
  t->power.cuts_left = 0;
  if (power_cut_change (&t->power, fault) == -1 && !t->change->judges &&
      t->err != fault->err && t->err != EIO)
    FAIL ("it fails with errno %d", t->err);
  power_cuts.faults += t->power.fault;
  power_cut_now (&t->power, CUT_NOTHING);
  power_cut_now (&t->power, simdisk_random_cut (&t->power.rng));
  power_cut_now (&t->power, CUT_ALL);
  power_cut_end (&t->power);
}

/* Some of N operations. */
static void
fail_operations (struct trial *t, unsigned i, uint64_t n)
{
  const char *asked = getenv ("FAULTS");
  const uint64_t most = asked ? strtoul (asked, NULL, 10) : SOME;
  struct rng *rng = &t->power.rng;

  for (uint64_t k = 0; k < min64 (n, most); k++)
    fail_operation (t, i, &(const struct fault) {
      .ops = 1u << ops[i].op, .after = n <= most ? k : rng_below (rng, n),
      .times = rng_below (rng, 2) ? 1 : UINT64_MAX,
      .err = ops[i].op == STORAGE_OP_READ || rng_below (rng, 2) ? EIO : ENOSPC,
    });
}

/* The disk before and after, if it can be read with BELOW. */
static void
look (struct trial *t, const struct blob *after)
{
  struct blob file;
  bool plain;

  blob_load (EACHCHANGE_IMAGE, &file);
  plain = t->change->second == NULL && !t->change->huge && blob_get (&file, 32, 4) == 0;
  if (plain) {
    t->before = (struct blob) { NULL, blob_get (&file, 24, 8) };
    t->before.data = malloc (t->before.len);
    t->after = (struct blob) { NULL, blob_get (after, 24, 8) };
    t->after.data = malloc (t->after.len);
    CHECK (t->before.data != NULL && t->after.data != NULL);
    CHECK (checker_read (&file, each_change_below (), t->before.data,
                         t->before.len) == 0);
    CHECK (checker_read (after, each_change_below (), t->after.data,
                         t->after.len) == 0);
  }
  blob_free (&file);
}

/* Once in peace. */
static void
count (struct trial *t, uint64_t n[NR_OPS])
{
  power_cut_begin (&t->power, 0);
  t->power.cuts_left = 0;
  t->power.judge = NULL;
  power_cut_change (&t->power, NULL);
  t->power.judge = judge;
  look (t, simdisk_cut (t->power.sim, &t->power.rng, CUT_NOTHING));
  power_cut_now (&t->power, CUT_NOTHING);
  for (unsigned i = 0; i < NR_OPS; i++)
    n[i] = simdisk_operations (t->power.sim, 1u << ops[i].op);
  power_cut_end (&t->power);
}

static void
one_change (struct rng *rng)
{
  const struct each_change *change = each_change_now ();
  struct trial t = {
    .change = change,
    .power = {
      .path = images_path (EACHCHANGE_IMAGE), .change = make, .opaque = &t,
      .data_path = change->second ? images_path (change->second) : NULL,
    },
  };
  uint64_t n[NR_OPS];

  printf ("%u: %s", trials_number, change->name);
  fflush (stdout);
  rng_init (&t.power.rng, rng_next (rng), 0);
  change->make ();
  trials_about ("%s", change->name);
  count (&t, n);
  quiet_errors = true;          /* they are what we want */
  for (unsigned i = 0; i < NR_OPS; i++) {
    printf (", %s %" PRIu64, ops[i].name, n[i]);
    fail_operations (&t, i, n[i]);
  }
  printf ("\n");
  fflush (stdout);
  power_cut_fail_memory (&t.power);
  quiet_errors = false;
  blob_free (&t.before);
  blob_free (&t.after);
  free ((char *) t.power.path);
  free ((char *) t.power.data_path);
}

int
main (void)
{
  const char *faults = getenv ("FAULTS");
  unsigned done;

  if (faults)
    setenv ("ALLOCATIONS", faults, 1);
  done = each_change_run ("each-change", one_change);

  printf ("%u changes, %u operations failed, %u times no memory: %u failures; "
          "%u power cuts\n", done, power_cuts.faults, power_cuts.shortages, nr_failed,
          power_cuts.cuts);
  return 0;
}
