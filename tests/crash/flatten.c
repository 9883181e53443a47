/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image if flattening it is interrupted, at any moment?
 *
 * Random overlays over a raw file, on a simulated file (simdisk.c), are flattened again
 * and again:
 *
 *   power cuts    before any change or sync: any subset of the unsynced changes has
 *                 reached the disk
 *   ENOSPC, EIO   each operation fails in turn; then the server ends, or the power is cut
 *   a stop        by the user, at any step
 *
 * Each time the file that is left is either an overlay or an image without a backing
 * file, and shows the same data as before.  Its metadata has no faults (checker.c, now
 * and then qemu-img), and flattening it again succeeds, without leaks other than those of
 * the crash.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 8); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"

#define CHANGING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                  1 << STORAGE_OP_ALLOCATE | 1 << STORAGE_OP_SYNC)
#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)

struct trial {
  struct image_spec spec;
  struct disk_options options;
  struct power_cut_trial power;
  const struct chunks_watch *watcher;  /* or NULL: nobody stops it */
  struct blob contents, below;
  bool has_bitmap;
  uint64_t pushed;              /* length of an unknown header extension, or 0 */
  unsigned char *buf;
};

static unsigned nr_flat, nr_again, nr_failures;

/* --- judging --- */

static bool
is_flat (const struct blob *b)
{
  return blob_get (b, 8, 8) == 0;
}

/* Extensions of the header that are not the format's name are kept; and the disk does not
 * change, so there is nothing to record. */
static void
check_bitmap (struct trial *t, const struct blob *b, const char *when)
{
  struct checked_bitmap bitmap;
  uint64_t i;

  if (!checker_bitmap (b, "monday", &bitmap, t->buf))
    FAIL ("%s: the bitmap is lost", when);
  if (bitmap.in_use || !bitmap.automatic)
    FAIL ("%s: the bitmap has other flags", when);
  for (i = 0; i < t->spec.size / 512; i++)
    if (t->buf[i])
      FAIL ("%s: sector %" PRIu64 " is marked", when, i);
}

/* Without its backing file, an image that is flat shows the same. */
static unsigned long
judge_file (struct trial *t, const struct blob *b, bool leaks_allowed, const char *when)
{
  const unsigned long leaks = survivor_check (b, leaks_allowed, when);
  const bool flat = is_flat (b);

  if (!survivor_shows (b, flat ? NULL : &t->below, &t->contents))
    survivor_fail (b, "%s: the contents are others (%s)", when,
                   flat ? "independent" : "overlay");
  if (t->pushed != 0 && !blob_has_pushed (b, t->pushed))
    survivor_fail (b, "%s: an unknown extension of the header has changed", when);
  nr_flat += flat;
  if (t->has_bitmap)
    check_bitmap (t, b, when);
  return leaks;
}

/* Somebody finds what is left, and begins again. */
static void
flatten_again (struct trial *t, const struct blob *b, unsigned long leaks)
{
  struct disk_options options = t->options;
  struct blob after;
  unsigned long leaks_after;
  uint64_t copied;
  int r;

  blob_save (SURVIVOR, b);
  if (rng_below (&t->power.rng, 4) == 0) {
    r = image_check (SURVIVOR);
    if (r != 0 && r != 3)
      FAIL ("qemu-img check of what is left: exit status %d", r);
  }
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (change_flatten (&options, NULL, &copied) == -1)
    FAIL ("what is left can't be flattened");
  blob_load (SURVIVOR, &after);
  if (!is_flat (&after))
    FAIL ("what is left has been flattened, but is not flat");
  leaks_after = judge_file (t, &after, true, "flattened again");
  if (leaks_after > leaks)
    FAIL ("%lu leaks have become %lu", leaks, leaks_after);
  if (rng_below (&t->power.rng, 4) == 0 && !image_shows (SURVIVOR, NULL, &t->contents))
    FAIL ("qemu-img convert reads something else in the end");
  blob_free (&after);
  free ((char *) options.path);
  nr_again++;
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  const bool leaks_allowed = !left->done || left->fault || left->kind != CUT_ALL;
  const unsigned long leaks = judge_file (t, left->file, leaks_allowed, left->when);

  if (left->done && !is_flat (left->file))
    FAIL ("%s: not flat", left->when);
  if ((!left->done || left->fault) &&
      rng_below (&t->power.rng, left->fault ? 6 : 12) == 0)
    flatten_again (t, left->file, leaks);
}

static unsigned
cuts (void *opaque, enum storage_op op)
{
  struct trial *t = opaque;

  return op == STORAGE_OP_SYNC ? 2 + rng_below (&t->power.rng, 4) :
    rng_below (&t->power.rng, 4) == 0;
}

/* --- runs --- */

static int
flatten (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  uint64_t copied;

  t->options.hooks = hooks;
  return change_flatten (&t->options, t->watcher, &copied);
}

/* With no more cuts than these. */
static void
run_cuts (struct trial *t, unsigned most)
{
  power_cut_begin (&t->power, rng_next (&t->power.rng));
  t->power.cuts_left = most;
  power_cut_change (&t->power, NULL);
  power_cut_all_ways (&t->power);
  power_cut_end (&t->power);
}

static void
ended (void *opaque, bool fault)
{
  const struct trial *t = opaque;

  (void) fault;
  nr_failures += !t->power.done;
}

struct watcher {
  struct simdisk *sim;
  unsigned steps, stop_at;
  bool stopped;
};

/* From the first step on, signals are not what ends the process: so that one comes before
 * anything has changed. */
static bool
stop (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  struct watcher *w = opaque;

  CHECK (done <= total);
  if (w->steps == 0)
    CHECK (done == 0 && copied == 0 && simdisk_operations (w->sim, CHANGING) == 0);
  if (w->steps++ < w->stop_at)
    return true;
  w->stopped = done < total;
  return false;
}

/* The user has had enough: then the image is in order, without leaks. */
static void
run_stop (struct trial *t, unsigned stop_at)
{
  struct watcher watcher = { .stop_at = stop_at };
  const struct chunks_watch watch = { .step = stop, .opaque = &watcher };
  int r;

  power_cut_begin (&t->power, 0);
  t->power.cuts_left = 0;
  watcher.sim = t->power.sim;
  t->watcher = &watch;
  r = flatten (t, simdisk_hooks (t->power.sim));
  t->watcher = NULL;
  if ((r == -1) != watcher.stopped || (r == -1 && errno != EINTR))
    FAIL ("stopped %d, flatten returns %d (%m)", watcher.stopped, r);
  if (stop_at == 0 && simdisk_operations (t->power.sim, CHANGING) != 0)
    FAIL ("stopped before the first change, but the image was changed");
  judge_file (t, simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL), false, "stopped");
  power_cut_end (&t->power);
}

static void
make_trial (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 12, 14, 16 };
  struct image_spec *spec = &t->spec;

  spec->version = rng_below (rng, 4) ? 3 : 2;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->refcount_bits = spec->version == 2 ? 16 : 2 << rng_below (rng, 6);
  spec->size = 512 * (64 + rng_below (rng, 6000));
  image_over_raw (spec, rng, 512 * (1 + rng_below (rng, spec->size * 3 / 2 / 512)), 8,
                  &t->below);
  spec->compressed = rng_below (rng, 4) == 0;
  if (spec->compressed)
    spec->refcount_bits = 16;
  image_create (IMAGE, spec);
  image_fill (IMAGE, spec, rng, rng_below (rng, 6));
  t->has_bitmap = spec->version == 3 && rng_below (rng, 2);
  if (t->has_bitmap)
    image_bitmap (IMAGE, "monday", 0);
  if (rng_below (rng, 2))
    t->pushed = image_push_extensions (IMAGE, rng);
  image_contents (IMAGE, NULL, &t->contents);
  CHECK (t->contents.len == spec->size);
  t->buf = malloc (spec->size);
  CHECK (t->buf != NULL);

  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t->power = (struct power_cut_trial) {
    .path = t->options.path, .opaque = t, .change = flatten, .cuts = cuts,
    .judge = judge, .ended = ended,
  };
  rng_init (&t->power.rng, rng_next (rng), 500);
  printf ("%u: ", trials_number);
  image_print (spec);
  printf ("%s%s, extension of %" PRIu64 " bytes\n",
          spec->compressed ? ", compressed" : "", t->has_bitmap ? ", bitmap" : "",
          t->pushed);
  fflush (stdout);
}

/* The I-th of many: EIO anywhere, or no space, once or for ever. */
static struct fault
choose_fault (struct rng *rng, unsigned i, uint64_t changing, uint64_t growing)
{
  if (i % 3 == 0)
    return (struct fault) {
      .ops = CHANGING, .err = EIO, .after = rng_below (rng, changing), .times = 1,
      .partial = i % 2,
    };
  return (struct fault) {
    .ops = GROWING, .err = ENOSPC, .after = rng_below (rng, growing),
    .times = i % 3 == 1 ? 1 : UINT64_MAX, .partial = i % 2,
  };
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .has_bitmap = false };
  uint64_t changing, growing;
  struct fault fault;
  unsigned i;

  quiet_errors = true;          /* they are what we want */
  make_trial (&t, rng);
  power_cut_begin (&t.power, 0);
  t.power.cuts_left = 0;
  power_cut_change (&t.power, NULL);
  changing = simdisk_operations (t.power.sim, CHANGING);
  growing = simdisk_operations (t.power.sim, GROWING);
  power_cut_end (&t.power);

  run_cuts (&t, 60);
  run_cuts (&t, 60);
  run_stop (&t, 0);
  run_stop (&t, 1);
  for (i = 0; i < 30 && (i == 0 || trials_time_left ()); i++) {
    fault = choose_fault (rng, i, changing, growing);
    power_cut_fault (&t.power, &fault);
  }

  blob_free (&t.contents);
  blob_free (&t.below);
  free (t.buf);
  free ((char *) t.options.path);
}

int
main (void)
{
  const unsigned done = trials_run ("flatten", 8, 1, one_image);

  printf ("%u images, %u power cuts, %u judged without their backing file, "
          "%u flattened again, %u failures\n", done, power_cuts.cuts, nr_flat,
          nr_again, nr_failures);
  return 0;
}
