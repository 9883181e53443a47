/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image after a power cut while check=repair repairs it, or
 * check=repair-leaks, if nothing but leaks is wrong?
 *
 * Images made by qemu-img, some with snapshots and bitmaps, get leaks, refcounts that are
 * too low, wrong COPIED flags, and snapshot tables that programs refuse.
 * They lie on a simulated disk (simdisk.c).  Before each change of the repair the power
 * is cut in all ways, and each file that is left is judged:
 *
 *   - the contents are complete
 *   - a second check=repair leaves it without faults and leaks, with its contents
 *   - if it is not dirty, it is unchanged, or without faults; a version 2 image has no
 *     dirty bit, but then no refcount is lower than before
 *   - now and then: qemu-img agrees, also about snapshots
 *
 * Then each operation of the repair fails in turn, and some allocations: the image is
 * refused, and is in the same state as after a power cut.
 *
 * A full check of a chain with this image says the same as always, or that there was no
 * memory, and changes nothing.
 *
 * In addition, metadata is damaged at random, as in images from attackers: a check comes
 * to an end, with any verdict; sanitizers find nothing; and it changes nothing.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "check/check.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define WRONG "wrong.qcow2"
#define ABOVE "above.qcow2"     /* an overlay of it */
#define REPORT "report.json"

#define OFFSET_BITS UINT64_C (0x00fffffffffffe00)
#define COPIED (UINT64_C (1) << 63)
#define COMPRESSED (UINT64_C (1) << 62)

struct trial {
  struct image_spec spec;
  bool snapshot, only_leaks;
  struct blob before, expected, old;    /* old: contents of the snapshot */
  struct check_options options, full;
  bool condemned;               /* what a full check says */
  struct power_cut_trial power;
};

static unsigned nr_repaired, nr_judged, nr_hostile, nr_steps;

/* --- progress --- */

/* How far it is never becomes less. */
static bool
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  uint64_t *before = opaque;

  CHECK (done >= *before && done <= total && copied == UINT64_MAX);
  *before = done;
  nr_steps++;
  return true;
}

/* --- judging --- */

static bool
is_dirty (const struct trial *t, const struct blob *b)
{
  return t->spec.version == 3 && (b->data[79] & 1);
}

static void
check_contents (struct trial *t, const struct blob *b, const char *when)
{
  if (!survivor_shows (b, NULL, &t->expected))
    survivor_fail (b, "%s: wrong contents", when);
}

static bool
in_order (const struct blob *b)
{
  struct check_result r;

  checker_check (b, &r);
  return r.corruptions == 0 && r.leaks == 0;
}

static void
ask_qemu (struct trial *t)
{
  survivor_ask_qemu (false, &t->expected, &t->old);
  nr_judged++;
}

static void
repair_again (struct trial *t, const struct blob *left)
{
  struct check_options options = t->options;
  uint64_t done = 0;
  struct check *check;
  struct blob b;

  blob_save (SURVIVOR, left);
  /* A power cut may leave wrong flags, too, in an image that is dirty. */
  options.watch = (struct check_watch) { step, &done };
  options.mode = CHECK_REPAIR;
  options.path = images_path (SURVIVOR);
  options.chain.image.file.hooks = &without_sync;
  if (reach_check (&options, &check) == -1)
    FAIL ("what is left can't be repaired");
  check_free (check);
  blob_load (SURVIVOR, &b);
  if (!in_order (&b) || is_dirty (t, &b))
    FAIL ("repaired after a power cut, and not in order");
  check_contents (t, &b, "repaired after a power cut");
  blob_free (&b);
  nr_repaired++;
  if (rng_below (&t->power.rng, 100) == 0)
    ask_qemu (t);
  unlink (SURVIVOR);
  free ((char *) options.path);
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  const struct blob *b = left->file;

  check_contents (t, b, left->when);
  if (left->done && left->fault && !left->shortage)
    FAIL ("a repair that failed says that all is well");
  if (left->done && (!in_order (b) || is_dirty (t, b)))
    survivor_fail (b, "%s: not in order", left->when);
  if (t->spec.version == 3 && !is_dirty (t, b) && !in_order (b) &&
      (b->len < t->before.len ||
       memcmp (b->data, t->before.data, t->before.len) != 0))
    survivor_fail (b, "it has changed, is not in order, and does not say so");
  if (!left->done && rng_below (&t->power.rng, 4) == 0)
    repair_again (t, b);
}

/* --- images --- */

/* Some bytes of the counts that matter. */
static void
spoil_refcounts (const struct trial *t, struct blob *b, struct rng *rng)
{
  const uint64_t cs = t->spec.cluster_size;
  const uint64_t block = blob_get (b, blob_get (b, 48, 8), 8);
  const uint64_t n =
    min64 (cs, div_up (div_up (b->len, cs) * t->spec.refcount_bits, 8));
  unsigned i, k = 1 + rng_below (rng, 6);

  for (i = 0; i < k; i++)
    if (block != 0)
      b->data[block + rng_below (rng, n)] = rng_below (rng, 4);
}

/* Counts that are too high, but no wrong flags. */
static void
leak (const struct trial *t, struct blob *b, struct rng *rng)
{
  const unsigned bytes = t->spec.refcount_bits / 8;
  const uint64_t block = blob_get (b, blob_get (b, 48, 8), 8);
  const uint64_t n = min64 (t->spec.cluster_size / bytes,
                            div_up (b->len, t->spec.cluster_size));
  unsigned i, k = 1 + rng_below (rng, 6);

  for (i = 0; i < k; i++) {
    const uint64_t at = block + rng_below (rng, n) * bytes;
    const uint64_t count = blob_get (b, at, bytes);

    if (count != 1 || at == block)
      blob_put (b, at, count + 1, bytes);
  }
}

static void
spoil_flags (const struct trial *t, struct blob *b, struct rng *rng)
{
  const uint64_t cs = t->spec.cluster_size;
  const uint64_t l1 = blob_get (b, 40, 8);
  const uint64_t n = blob_get (b, 32, 8) & 0xffffffff;
  uint64_t i, k, table, entry;

  for (i = 0; i < n; i++) {
    table = blob_get (b, l1 + i * 8, 8) & OFFSET_BITS;
    for (k = 0; table != 0 && k < cs / 8; k++) {
      entry = blob_get (b, table + k * 8, 8);
      if ((entry & OFFSET_BITS) && !(entry & COMPRESSED) &&
          rng_below (rng, 10) == 0)
        blob_put (b, table + k * 8, entry ^ COPIED, 8);
    }
  }
}

/* Puts a copy of the snapshot table, which has one entry, at the end, with EXTRA bytes of
 * extra data.  The clusters there have no refcounts. */
static void
spoil_snapshots (const struct trial *t, struct blob *b, uint64_t extra)
{
  const uint64_t cs = t->spec.cluster_size;
  const uint64_t from = blob_get (b, 64, 8), end = round_up (b->len, cs);
  const uint64_t had = blob_get (b, from + 36, 4);
  const uint64_t strings = blob_get (b, from + 12, 2) + blob_get (b, from + 14, 2);

  b->data = realloc (b->data, end + round_up (40 + extra + strings, cs));
  CHECK (b->data != NULL);
  memset (b->data + b->len, 0, end + round_up (40 + extra + strings, cs) - b->len);
  b->len = end + round_up (40 + extra + strings, cs);
  memcpy (b->data + end, b->data + from, 40 + min64 (had, extra));
  memcpy (b->data + end + 40 + extra, b->data + from + 40 + had, strings);
  blob_put (b, end + 36, extra, 4);
  blob_put (b, 64, end, 8);
}

static void
make_above (const struct trial *t, struct rng *rng)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = t->spec.size,
    .backing = WRONG,
  };

  image_create (ABOVE, &spec);
  image_fill (ABOVE, &spec, rng, 2);
}

static void
make_image (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 12, 16 };
  struct image_spec *spec = &t->spec;
  bool bitmap;

  spec->version = trials_number % 3 == 1 ? 2 : 3;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->refcount_bits = spec->version == 2 ? 16 : 8 << rng_below (rng, 4);
  spec->size = 512 * (64 + rng_below (rng, 1000));
  t->snapshot = rng_below (rng, 3) == 0;
  bitmap = spec->version == 3 && rng_below (rng, 2);
  spec->compressed = rng_below (rng, 3) == 0 && spec->refcount_bits > 8;
  image_create (IMAGE, spec);
  if (bitmap)
    image_bitmap (IMAGE, "follows", 9);
  image_fill (IMAGE, spec, rng, 1 + rng_below (rng, 8));
  spec->compressed = false;
  if (t->snapshot) {
    image_snapshot (IMAGE, "before");
    image_contents (IMAGE, "before", &t->old);
    image_fill (IMAGE, spec, rng, rng_below (rng, 5));
  }
  image_contents (IMAGE, NULL, &t->expected);
  printf ("%u: ", trials_number);
  image_print (spec);
  printf ("%s%s\n", t->snapshot ? ", snapshot" : "", bitmap ? ", bitmap" : "");
  fflush (stdout);
  blob_load (IMAGE, &t->before);
  blob_save (WRONG, &t->before);
  make_above (t, rng);
  t->only_leaks = rng_below (rng, 3) == 0;
  if (t->only_leaks)
    leak (t, &t->before, rng);
  else
    spoil_refcounts (t, &t->before, rng);
  if (!t->only_leaks && rng_below (rng, 2))
    spoil_flags (t, &t->before, rng);
  if (!t->only_leaks && t->snapshot && rng_below (rng, 2)) {
    spoil_snapshots (t, &t->before,
                     spec->version == 3 && rng_below (rng, 2) ? 8 : 1025 +
                     rng_below (rng, 3000));
    printf ("   with a damaged snapshot table\n");
  }
  blob_save (WRONG, &t->before);
}

/* --- repairing --- */

static int
repair (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  struct check *c;
  uint64_t done = 0;
  int r;

  t->options.watch = (struct check_watch) { step, &done };
  t->options.chain.image.file.hooks = hooks;
  r = reach_check (&t->options, &c);
  if (r == 0) {
    CHECK (check_finish (c, true) == 0 && strstr (check_line (c), "layers") == NULL);
    check_free (c);
  }
  t->options.watch = (struct check_watch) { NULL };
  return r;
}

static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;

  if (fault)
    return;
  blob_save (SURVIVOR, simdisk_cut (t->power.sim, &t->power.rng, CUT_NOTHING));
  ask_qemu (t);
}

/* --- checking a chain --- */

static int
check_full (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  struct check *c;
  int r;

  t->full.chain.image.file.hooks = hooks;
  if (reach_check (&t->full, &c) == -1)
    return t->condemned && errno == EUCLEAN ? 0 : -1;
  r = check_finish (c, true);
  if (t->condemned || (r == 0 && strstr (check_line (c), ", in 2 layers") == NULL))
    FAIL ("a full check says this time: %s", check_line (c));
  check_free (c);
  return r;
}

static void
judge_unchanged (void *opaque, const struct remains *left)
{
  const struct trial *t = opaque;

  if (!blob_same (left->file, &t->before))
    survivor_fail (left->file, "%s: a check has changed the image", left->when);
}

static void
check_without_memory (struct trial *t)
{
  t->full = (struct check_options) {
    .mode = CHECK_FULL, .path = images_path (ABOVE), .report = images_path (REPORT),
    .chain.backing = BACKING_FOLLOW,
  };
  t->power.change = check_full;
  t->power.judge = judge_unchanged;
  t->power.ended = NULL;
  quiet_errors = true;
  t->condemned = check_full (t, &without_sync) == -1;
  power_cut_fail_memory (&t->power);
  quiet_errors = false;
  free ((char *) t->full.path);
  free ((char *) t->full.report);
}

/* --- strangers --- */

static bool
is_blob (const char *name, const struct blob *b)
{
  struct blob now;
  bool same;

  blob_load (name, &now);
  same = blob_same (&now, b);
  blob_free (&now);
  return same;
}

static void
check_hostile (struct trial *t)
{
  static const enum check_mode modes[] = { CHECK_QUICK, CHECK_FULL };
  struct check_options options = t->options;
  struct rng *rng = &t->power.rng;
  struct blob b;
  uint64_t at;
  unsigned i;

  blob_load (IMAGE, &b);
  for (i = 1 + rng_below (rng, 8); i > 0; i--) {
    at = rng_below (rng, rng_below (rng, 3) ? min64 (b.len, 8 * t->spec.cluster_size)
                    : b.len);
    if (rng_below (rng, 2))
      b.data[at] = rng_next (rng);
    else
      blob_put (&b, at & ~UINT64_C (7),
                rng_next (rng) >> rng_below (rng, 64) << rng_below (rng, 12), 8);
  }
  /* A backing file would be any file. */
  blob_put (&b, 8, 0, 8);
  blob_save (SURVIVOR, &b);
  options.path = images_path (SURVIVOR);
  options.chain.image.file.hooks = &without_sync;
  quiet_errors = true;
  for (i = 0; i < 2; i++) {
    struct check *c;

    options.mode = modes[i];
    if (reach_check (&options, &c) == 0)
      check_free (c);
    if (!is_blob (SURVIVOR, &b))
      FAIL ("a check has changed the image");
  }
  options.mode = CHECK_REPAIR;
  struct check *c;

  if (reach_check (&options, &c) == 0)
    check_free (c);
  quiet_errors = false;
  free ((char *) options.path);
  blob_free (&b);
  nr_hostile++;
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .snapshot = false };
  unsigned i;

  make_image (&t, rng);
  t.options.path = images_path (WRONG);
  t.options.mode = t.only_leaks ? CHECK_REPAIR_LEAKS : CHECK_REPAIR;
  t.options.chain.backing = BACKING_DENY;
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = repair, .judge = judge,
    .ended = ended, .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);

  if (!in_order (&t.before)) {
    power_cut_everywhere (&t.power);
    power_cut_fail_each (&t.power);
    check_without_memory (&t);
  }
  for (i = 0; i < 20; i++)
    check_hostile (&t);

  free ((char *) t.options.path);
  blob_free (&t.before);
  blob_free (&t.expected);
  blob_free (&t.old);
}

int
main (void)
{
  const unsigned done = trials_run ("check", 3, 3, one_image);

  printf ("%u images, %u power cuts, %u repaired again, %u failures, "
          "%u times no memory, %u judged by qemu-img, %u hostile\n", done,
          power_cuts.cuts, nr_repaired, power_cuts.faults, power_cuts.shortages,
          nr_judged, nr_hostile);
  CHECK (power_cuts.cuts == 0 || nr_steps > 0);   /* (all may have been in order) */
  return 0;
}
