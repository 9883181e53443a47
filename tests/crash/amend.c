/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does changing the version and the features of an image happen completely or not at all?
 *
 * A random image, over a raw file or nothing, with or without internal snapshots, gets a
 * series of random changes: to the other version, with or without lazy refcounts, with
 * refcounts of any width.  During each, the power is cut at every operation, and each
 * operation fails once, and some allocations.  The image that is left has no faults and
 * no leaks, shows the same disk and the same snapshots, and its header is either all in
 * the old or all in the new state.  Afterwards it is in the new state, and qemu-img
 * agrees, and writes to it.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include "format/format.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define CHANGES 4
#define MAX_SNAPSHOTS 3

struct state {
  unsigned version;
  bool lazy;
  unsigned refcount_order;
};

struct trial {
  struct image_spec spec;
  struct blob below, contents;
  bool shared;                  /* clusters can have many references */
  struct blob snapshots[MAX_SNAPSHOTS]; /* their names are 0, 1, ... */
  unsigned nr_snapshots;
  struct state before, after;
  struct amend amend;
  struct disk_options options;
  struct blob result;           /* the file after the change */
  struct power_cut_trial power;
};

static unsigned nr_changes;

static struct state
state_of (const struct blob *b)
{
  const unsigned version = blob_get (b, 4, 4);

  return (struct state) {
    version,
    version == 3 && (blob_get (b, 80, 8) & QCOW2_COMPAT_LAZY_REFCOUNTS),
    version == 3 ? blob_get (b, 96, 4) : 4,
  };
}

static const char *
name_of (unsigned snapshot)
{
  static const char *const names[MAX_SNAPSHOTS] = { "0", "1", "2" };

  return names[snapshot];
}

static bool
shows_snapshots (const struct trial *t, const struct blob *b)
{
  uint64_t at = blob_get (b, 64, 8);

  if (blob_get (b, 60, 4) != t->nr_snapshots)
    return false;
  for (unsigned i = 0; i < t->nr_snapshots; i++)
    if (!survivor_shows_snapshot (b, &at, t->spec.backing ? &t->below : NULL, name_of (i),
                                  &t->snapshots[i]))
      return false;
  return true;
}

static bool
shows (void *opaque, const struct blob *b, bool after)
{
  const struct trial *t = opaque;
  const struct state *s = after ? &t->after : &t->before, is = state_of (b);

  return is.version == s->version && is.lazy == s->lazy &&
    is.refcount_order == s->refcount_order && shows_snapshots (t, b) &&
    survivor_shows (b, t->spec.backing ? &t->below : NULL, &t->contents);
}

static void
judge (void *opaque, const struct remains *left)
{
  (void) opaque;
  survivor_check (left->file, false, left->when);
}

static int
amend (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;

  t->options.hooks = hooks;
  return change_amend (&t->options, &t->amend);
}

static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;

  if (!fault)
    t->result = blob_copy (simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL));
}

static void
choose_width (struct trial *t, struct rng *rng)
{
  struct state *s = &t->after;
  const unsigned least = t->shared ? 4 : 0;

  if (s->version == 2)
    s->refcount_order = 4;
  else if (rng_below (rng, 2))
    s->refcount_order = least + rng_below (rng, 7 - least);
  if (s->refcount_order != t->before.refcount_order || rng_below (rng, 4) == 0)
    t->amend.refcount_bits = 1u << s->refcount_order;
}

static void
choose (struct trial *t, struct rng *rng)
{
  struct state *s = &t->after;

  t->amend = (struct amend) { .version = 0 };
  *s = t->before;
  if (rng_below (rng, 4) > 0)
    s->version = t->amend.version = s->version == 3 ? 2 : 3;
  if (s->version == 2)
    s->lazy = false;
  if (s->version == 3 && rng_below (rng, 2)) {
    s->lazy = rng_below (rng, 2);
    t->amend.lazy_refcounts = s->lazy ? AMEND_ON : AMEND_OFF;
  }
  choose_width (t, rng);
  printf ("  version %u, lazy %d, refcounts of %u bits\n", s->version, s->lazy,
          1u << s->refcount_order);
}

static void
one_change (struct trial *t, struct rng *rng)
{
  struct blob b;

  blob_load (IMAGE, &b);
  t->before = state_of (&b);
  blob_free (&b);
  choose (t, rng);
  power_cut_everywhere (&t->power);
  power_cut_fail_each (&t->power);
  blob_save (IMAGE, &t->result);
  blob_free (&t->result);
  nr_changes++;
  if (image_check (IMAGE) != 0)
    FAIL ("qemu-img check does not like it");
  if (!image_shows (IMAGE, NULL, &t->contents))
    FAIL ("qemu-img reads something else");
  for (unsigned i = 0; i < t->nr_snapshots; i++)
    if (!image_shows (IMAGE, name_of (i), &t->snapshots[i]))
      FAIL ("qemu-img reads something else in snapshot %s", name_of (i));
  t->spec.version = t->after.version;
  image_fill (IMAGE, &t->spec, rng, 1 + rng_below (rng, 5));
  blob_free (&t->contents);
  image_contents (IMAGE, NULL, &t->contents);
}

/* Some of them share all tables, some go back to an earlier one. */
static void
take_snapshots (struct trial *t, struct rng *rng)
{
  struct command c = { .n = 0 };

  for (unsigned n = rng_below (rng, MAX_SNAPSHOTS + 1); t->nr_snapshots < n; ) {
    image_snapshot (IMAGE, name_of (t->nr_snapshots));
    image_contents (IMAGE, NULL, &t->snapshots[t->nr_snapshots++]);
    if (rng_below (rng, 3) > 0)
      image_fill (IMAGE, &t->spec, rng, 1 + rng_below (rng, 6));
  }
  if (t->nr_snapshots == 0)
    return;
  t->shared = true;
  if (rng_below (rng, 3) == 0) {
    command_words (&c, "qemu-img snapshot -a 0 " IMAGE);
    command_must (&c);
  }
}

static void
one_image (struct rng *rng)
{
  static const unsigned bits[] = { 9, 10, 12, 14, 16 };
  struct trial t = { .contents.len = 0 };
  struct image_spec *spec = &t.spec;

  spec->version = 2 + rng_below (rng, 2);
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 5)];
  spec->refcount_bits = 16;
  spec->size = 512 * (64 + rng_below (rng, 1500));
  spec->compressed = rng_below (rng, 4) == 0;
  if (rng_below (rng, 2))
    image_over_raw (spec, rng, 512 * (1 + rng_below (rng, spec->size * 3 / 2 / 512)), 6,
                    &t.below);
  image_create (IMAGE, spec);
  image_fill (IMAGE, spec, rng, 1 + rng_below (rng, 12));
  t.shared = spec->compressed;
  spec->compressed = false;     /* done */
  take_snapshots (&t, rng);
  image_contents (IMAGE, NULL, &t.contents);
  printf ("%u: ", trials_number);
  image_print (spec);
  printf (", %u snapshots\n", t.nr_snapshots);
  fflush (stdout);
  t.options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 32 << 20, .l2_slice = 512,
    .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = amend, .judge = judge,
    .shows = shows, .ended = ended,
    .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC |
      1 << STORAGE_OP_TRUNCATE,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);
  for (unsigned i = 0; i < CHANGES; i++)
    one_change (&t, rng);
  for (unsigned i = 0; i < t.nr_snapshots; i++)
    blob_free (&t.snapshots[i]);
  blob_free (&t.below);
  blob_free (&t.contents);
  free ((char *) t.options.path);
}

int
main (void)
{
  const unsigned done = trials_run ("amend", 3, 1, one_image);

  printf ("%u images, %u changes, %u power cuts (%u old, %u new), %u failures, "
          "%u times no memory\n", done, nr_changes, power_cuts.cuts, power_cuts.old,
          power_cuts.new, power_cuts.faults, power_cuts.shortages);
  return 0;
}
