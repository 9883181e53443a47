/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What comes of a use of an image if any one of its operations or allocations fails?
 *
 * A session of a client (lib/session), on images of each shape, and each change and each
 * other use of an image that nothing else uses (lib/eachchange) are repeated from the
 * beginning, and each time another operation on files fails, or another allocation (of
 * those that lib/shortage chooses): once, or all from then on.
 *
 *   a session   lib/session says what it promises
 *   others      they fail with that error and say why, or succeed; what is left, now or
 *               after a power cut, has no faults, and shows the old or the new disk
 *               (whether all else is old or new, crash/edits and other tests look at);
 *               without memory they can be repeated then; a use that changes nothing
 *               writes nothing; no file and no descriptor is left behind
 *
 * Each trial takes one shape, and every fourth change.  In the short suite, less fails
 * with a sanitizer (each allocation once, nevertheless), and little over NBD, where each
 * session needs connections.
 *
 * Environment: SEED repeats a run, and chooses the first trial; FIRST: start with this
 * one, and ITERATIONS: so many of them (default: all, a third in the short suite);
 * FAULTS: how many operations of each kind, and allocations, fail in a change, if there
 * are more (default: all of a use that changes nothing, 6 of a change, 1 of a slow one);
 * ALLOCATIONS=all: see lib/shortage.h.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/eachchange.h"
#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/session.h"
#include "lib/survivor.h"
#include "lib/trials.h"

static unsigned nr_sessions, nr_changes, nr_failed;

static bool
only_few (void)
{
  return reach_server () && !long_suite ();
}

/* --- sessions --- */

/* Returns whether something failed. */
static bool
fail_in_session (const struct attempt_image *t, const struct accident *a, uint64_t k)
{
  struct session s;
  bool met;

  session_run (&s, t, a, k);
  met = s.met;
  session_end (&s);
  nr_sessions++;
  return met;
}

static void
fail_in_sessions (unsigned shape, struct rng *rng)
{
  static const struct accident none = { .name = "nothing", .ends = true };
  const bool few = trials_repeat_others ();
  struct attempt_image t;
  uint64_t *which;
  size_t n;

  attempt_make_shape (&t, shape);
  fail_in_session (&t, &none, 0);
  which = shortage_choose (rng, only_few () ? 20 : SIZE_MAX, &n);
  for (const struct accident *a = accidents; a < accidents + EACH_ACCIDENT; a++)
    if (!accident_concerns (a, &t))
      continue;
    else if (a->ops)
      for (uint64_t k = few ? rng_below (rng, 4) : 0; fail_in_session (&t, a, k);
           k += few ? 1 + rng_below (rng, 8) : 1)
        ;
    else
      for (size_t i = 0; i < n; i += few && a->times != 1 ? 4 : 1)
        fail_in_session (&t, a, which[i]);
  free (which);
  attempt_free_image (&t);
}

/* --- changes --- */

static const struct { enum storage_op op; const char *name; } ops[] = {
  { STORAGE_OP_READ, "read" }, { STORAGE_OP_WRITE, "write" }, { STORAGE_OP_SYNC, "sync" },
  { STORAGE_OP_PUNCH, "punch" }, { STORAGE_OP_TRUNCATE, "truncate" },
  { STORAGE_OP_ALLOCATE, "allocate" },
};
#define NR_OPS (sizeof ops / sizeof ops[0])

struct trial {
  const struct each_change *change;
  struct blob before, after;            /* the disk; without data: not looked at */
  struct blob file;                     /* before the change */
  struct power_cut_trial power;
  int err;                              /* errno of the change, if it failed */
};

static unsigned
count_files (void)
{
  const bool was_spared = shortage_spare (true);
  DIR *d = opendir (".");
  unsigned n = 0;

  CHECK (d != NULL);
  while (readdir (d))
    n++;
  closedir (d);
  shortage_spare (was_spared);
  return n;
}

static int
make (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  const struct disk_options options = each_change_options (t->power.path, hooks);
  const unsigned long errors = error_count ();
  const unsigned files = count_files ();
  int r;

  errno = 0;
  r = t->change->run (&options);
  t->err = r == -1 ? errno : 0;
  if (count_files () != files)
    FAIL ("it leaves a file behind");
  if (r == 0)
    return 0;
  if (error_count () == errors || t->err == 0)
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

  if (t->change->reads) {
    if (!blob_same (left->file, &t->file))
      survivor_fail (left->file, "%s: the file has changed", left->when);
    return;
  }
  if (left->done || !t->change->repairs)
    survivor_check (left->file, t->change->stops_anywhere && failed, left->when);
  if (!shows_disk (t, left->file))
    survivor_fail (left->file, "%s: the disk has changed", left->when);
}

static bool
is_made (void *opaque)
{
  const struct trial *t = opaque;

  return t->change->once;
}

static void
fail_operation (struct trial *t, unsigned i, const struct fault *fault)
{
  const unsigned descriptors = reach_open_descriptors ();

  trials_about ("%s: %s %" PRIu64 " fails%s with errno %d", t->change->name, ops[i].name,
                fault->after, fault->times > 1 ? " for good" : "", fault->err);
  power_cut_begin (&t->power, fault->after);
  simdisk_hurry (t->power.sim);
  t->power.cuts_left = 0;
  if (power_cut_change (&t->power, fault) == -1 && t->err != fault->err &&
      t->err != EIO && !(t->change->judges && (t->err == EUCLEAN || t->err == EROFS)))
    FAIL ("it fails with errno %d", t->err);
  if (reach_open_descriptors () != descriptors)
    FAIL ("it leaves a file open");
  power_cuts.faults += t->power.fault;
  power_cut_now (&t->power, CUT_NOTHING);
  power_cut_now (&t->power, simdisk_random_cut (&t->power.rng));
  power_cut_now (&t->power, CUT_ALL);
  power_cut_end (&t->power);
}

/* Of the operations of a kind, or allocations. */
static unsigned
how_many (const struct each_change *change)
{
  const char *asked = getenv ("FAULTS");

  return asked ? strtoul (asked, NULL, 10) : change->slow ? 1
    : !change->reads ? 6 : only_few () ? 10 : 1000;
}

/* Of N operations, all, or some everywhere. */
static void
fail_operations (struct trial *t, unsigned i, uint64_t n)
{
  const uint64_t step = 1 + n / (how_many (t->change) + 1);
  struct rng *rng = &t->power.rng;

  for (uint64_t k = rng_below (rng, min64 (step, n)); k < n; k += step)
    fail_operation (t, i, &(const struct fault) {
      .ops = 1u << ops[i].op, .after = k, .elsewhere = ops[i].op == STORAGE_OP_READ,
      .times = rng_below (rng, 2) ? 1 : UINT64_MAX,
      .err = ops[i].op == STORAGE_OP_READ || rng_below (rng, 2) ? EIO : ENOSPC,
    });
}

/* The disk before and after, if it can be read with what each_change_below says. */
static void
look (struct trial *t, const struct blob *after)
{
  if (t->change->second || t->change->huge || t->change->reads ||
      blob_get (&t->file, 32, 4) != 0)
    return;
  t->before = (struct blob) { NULL, blob_get (&t->file, 24, 8) };
  t->before.data = malloc (t->before.len);
  t->after = (struct blob) { NULL, blob_get (after, 24, 8) };
  t->after.data = malloc (t->after.len);
  CHECK (t->before.data != NULL && t->after.data != NULL);
  CHECK (checker_read (&t->file, each_change_below (), t->before.data,
                       t->before.len) == 0);
  CHECK (checker_read (after, each_change_below (), t->after.data, t->after.len) == 0);
}

/* Once in peace. */
static void
count (struct trial *t, uint64_t n[NR_OPS])
{
  trials_about ("%s", t->change->name);
  power_cut_begin (&t->power, 0);
  t->power.cuts_left = 0;
  t->power.judge = NULL;
  power_cut_change (&t->power, &(const struct fault) { .elsewhere = true });
  t->power.judge = judge;
  look (t, simdisk_cut (t->power.sim, &t->power.rng, CUT_NOTHING));
  power_cut_now (&t->power, CUT_NOTHING);
  for (unsigned i = 0; i < NR_OPS; i++)
    n[i] = simdisk_operations (t->power.sim, 1u << ops[i].op);
  power_cut_end (&t->power);
}

static void
fail_in_change (const struct each_change *change, struct rng *rng)
{
  struct trial t = {
    .change = change,
    .power = {
      .path = images_path (EACHCHANGE_IMAGE), .change = make, .is_made = is_made, .opaque = &t,
      .data_path = change->second ? images_path (change->second) : NULL,
      .shortages = how_many (change),
    },
  };
  uint64_t n[NR_OPS];

  printf ("   %s", change->name);
  rng_init (&t.power.rng, rng_next (rng), 0);
  change->make ();
  blob_load (EACHCHANGE_IMAGE, &t.file);
  count (&t, n);
  for (unsigned i = 0; i < NR_OPS; i++) {
    printf (", %s %" PRIu64, ops[i].name, n[i]);
    fflush (stdout);
    fail_operations (&t, i, n[i]);
  }
  printf ("\n");
  fflush (stdout);
  power_cut_fail_memory (&t.power);
  nr_changes++;
  blob_free (&t.before);
  blob_free (&t.after);
  blob_free (&t.file);
  free ((char *) t.power.path);
  free ((char *) t.power.data_path);
}

/* --- trials --- */

static void
one_trial (struct rng *rng)
{
  const unsigned number = (trials_number + trials_seed) % (4 * ATTEMPT_SHAPES);
  const struct each_change *change;

  quiet_errors = true;          /* they are what we want */
  shortage_spare (true);
  fail_in_sessions (number % ATTEMPT_SHAPES, rng);
  shortage_spare (false);
  for (unsigned i = number % 4; (change = each_change_number (i)) != NULL; i += 4)
    if (!(change->needs_files && reach_server ()))
      fail_in_change (change, rng);
  quiet_errors = false;
}

int
main (void)
{
  trials_run ("each-failure", 0, ATTEMPT_SHAPES, one_trial);
  printf ("%u sessions, %u calls failed in them, %u power cuts; %u changes, "
          "%u operations failed, %u times no memory: %u failures; %u power cuts\n",
          nr_sessions, session_failed_calls, attempt_counts.cuts, nr_changes,
          power_cuts.faults, power_cuts.shortages, nr_failed, power_cuts.cuts);
  return 0;
}
