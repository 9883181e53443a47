/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image and its backing file if a commit is interrupted, at any moment?
 *
 * Random overlays over a raw file or a qcow2 image, smaller or larger, both on simulated
 * files (simdisk.c), are committed again and again:
 *
 *   power cuts    before any change or sync of either file: any subset of the unsynced
 *                 changes has reached the disk
 *   ENOSPC, EIO   each operation fails in turn; then the server ends, or the power is cut
 *   no memory     for one allocation, or for all from then on
 *   a stop        by the user, at any step
 *
 * Each time the image, over the backing file that is left, shows the same data as before.
 * The metadata of both has no faults (checker.c, now and then qemu-img).  If the commit
 * had succeeded, the image is empty, or with commit=keep unchanged, and the backing file
 * shows the data by itself.  Where the image has nothing, the backing file is as before.
 * A commit of what is left succeeds.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 8); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define BASE "base.qcow2"
#define LEFT "left.qcow2"       /* what is left of the backing file */

#define CHANGING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                  1 << STORAGE_OP_ALLOCATE | 1 << STORAGE_OP_SYNC)
#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)

struct trial {
  struct image_spec spec, below;
  struct disk_options options;
  struct power_cut_trial power;
  bool keep;
  const struct chunks_watch *watcher;   /* or NULL: nobody stops it */
  struct blob contents;         /* of the image */
  struct blob base;             /* of the backing file, before */
  struct blob file;             /* of the image's file, before */
  unsigned char *own;           /* for each byte, whether the image contains it */
};

static unsigned nr_empty, nr_again, nr_failures;

/* --- judging --- */

/* The disk of the backing file; the caller frees it. */
static struct blob
shown_by_base (const struct trial *t, const struct blob *file, bool leaks_allowed,
               const char *when)
{
  struct blob b;

  if (t->below.raw) {
    b.len = file->len;
    b.data = malloc (b.len + 1);
    CHECK (b.data != NULL);
    memcpy (b.data, file->data, b.len);
    return b;
  }
  survivor_check (file, leaks_allowed, when);
  b.len = blob_get (file, 24, 8);
  b.data = malloc (b.len);
  CHECK (b.data != NULL);
  if (checker_read (file, NULL, b.data, b.len) == -1)
    survivor_fail (file, "%s: the mapping of the backing file is invalid", when);
  return b;
}

static bool
is_empty (const struct trial *t, const struct blob *b)
{
  struct blob marks = { .len = t->spec.size };
  bool empty;

  marks.data = malloc (marks.len);
  CHECK (marks.data != NULL);
  memset (marks.data, 0xa5, marks.len);
  empty = survivor_shows (b, &marks, &marks);
  blob_free (&marks);
  return empty;
}

/* Where the image has nothing of its own, and beyond its end. */
static void
check_rest (const struct trial *t, const struct blob *base, const char *when)
{
  uint64_t i;

  for (i = 0; i < base->len; i++) {
    const unsigned char was = i < t->base.len ? t->base.data[i] : 0;

    if ((i >= t->spec.size || !t->own[i]) && base->data[i] != was)
      FAIL ("%s: the backing file has changed at %" PRIu64, when, i);
  }
  if (base->len < t->base.len)
    FAIL ("%s: the backing file has become smaller", when);
}

static void
judge_files (struct trial *t, const struct blob *file, const struct blob *data,
             bool done, bool leaks_allowed, const char *when)
{
  struct blob base = shown_by_base (t, data, leaks_allowed, when);
  const bool empty = is_empty (t, file);

  survivor_check (file, leaks_allowed, when);
  if (!survivor_shows (file, &base, &t->contents)) {
    blob_save (LEFT, data);
    survivor_fail (file, "%s: the contents are others (%s)", when,
                   empty ? "empty" : "with data");
  }
  check_rest (t, &base, when);
  nr_empty += empty;
  if (done && !t->keep && !empty)
    FAIL ("%s: the image is not empty", when);
  if (t->keep && !blob_same (file, &t->file))
    FAIL ("%s: the image has changed", when);
  if (done && (base.len < t->contents.len ||
               memcmp (base.data, t->contents.data, t->contents.len) != 0))
    FAIL ("%s: the backing file does not show the data", when);
  blob_free (&base);
}

/* Somebody finds what is left, and begins again. */
static void
commit_again (struct trial *t, const struct remains *left)
{
  struct disk_options options = t->options;
  const bool keep = t->keep;
  struct blob file, data;
  uint64_t copied;
  char *base;

  blob_save (SURVIVOR, left->file);
  blob_save (LEFT, left->data);
  base = images_path (LEFT);
  options.path = images_path (SURVIVOR);
  options.backing = BACKING_PATH;
  options.backing_path = base;
  options.hooks = &without_sync;
  if (change_commit (&options, false, NULL, &copied) == -1)
    FAIL ("what is left can't be committed");
  blob_load (SURVIVOR, &file);
  blob_load (LEFT, &data);
  t->keep = false;
  judge_files (t, &file, &data, true, true, "committed again");
  t->keep = keep;
  if (!t->below.raw && rng_below (&t->power.rng, 4) == 0) {
    const int r = image_check (LEFT);

    if (r != 0 && r != 3)
      FAIL ("qemu-img check of the backing file: exit status %d", r);
  }
  blob_free (&file);
  blob_free (&data);
  free ((char *) options.path);
  free (base);
  nr_again++;
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  const bool leaks_allowed = !left->done || left->fault || left->kind != CUT_ALL;

  judge_files (t, left->file, left->data, left->done, leaks_allowed, left->when);
  if ((!left->done || left->fault) &&
      rng_below (&t->power.rng, left->fault ? 6 : 12) == 0)
    commit_again (t, left);
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
commit (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  uint64_t copied;

  t->options.hooks = hooks;
  return change_commit (&t->options, t->keep, t->watcher, &copied);
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
  unsigned steps, stop_at;
  bool stopped;
};

static bool
stop (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  struct watcher *w = opaque;

  CHECK (done <= total && (w->steps > 0 || copied == 0));
  if (w->steps++ < w->stop_at)
    return true;
  w->stopped = done < total;
  return false;
}

/* The user has had enough. */
static void
run_stop (struct trial *t, unsigned stop_at)
{
  struct watcher watcher = { .stop_at = stop_at };
  const struct chunks_watch watch = { .step = stop, .opaque = &watcher };
  const struct blob *file;
  int r;

  power_cut_begin (&t->power, 0);
  t->power.cuts_left = 0;
  t->watcher = &watch;
  r = commit (t, simdisk_hooks (t->power.sim));
  t->watcher = NULL;
  if ((r == -1) != watcher.stopped || (r == -1 && errno != EINTR))
    FAIL ("stopped %d, commit returns %d (%m)", watcher.stopped, r);
  if (stop_at == 0 && simdisk_operations (t->power.sim, CHANGING) != 0)
    FAIL ("stopped before the first change, but something was changed");
  file = simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL);
  judge_files (t, file, simdisk_data_cut (t->power.sim), r == 0, false, "stopped");
  power_cut_end (&t->power);
}

static void
choose_spec (struct image_spec *spec, struct rng *rng)
{
  static const unsigned bits[] = { 9, 12, 14, 16 };

  spec->version = rng_below (rng, 4) ? 3 : 2;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->refcount_bits = spec->version == 2 ? 16 : 2 << rng_below (rng, 6);
  spec->size = 512 * (64 + rng_below (rng, 4000));
  spec->compressed = rng_below (rng, 4) == 0;
  if (spec->compressed)
    spec->refcount_bits = 16;
}

/* What the image contains itself: it is the same over any backing file. */
static void
find_own (struct trial *t)
{
  unsigned char *other = malloc (t->spec.size);
  struct blob marks = { .data = malloc (t->spec.size), .len = t->spec.size };

  t->own = malloc (t->spec.size);
  CHECK (other != NULL && marks.data != NULL && t->own != NULL);
  memset (marks.data, 0x5a, marks.len);
  CHECK (checker_read (&t->file, &marks, t->own, t->spec.size) == 0);
  memset (marks.data, 0xa5, marks.len);
  CHECK (checker_read (&t->file, &marks, other, t->spec.size) == 0);
  for (uint64_t i = 0; i < t->spec.size; i++)
    t->own[i] = t->own[i] == other[i];
  blob_free (&marks);
  free (other);
}

static void
make_trial (struct trial *t, struct rng *rng)
{
  choose_spec (&t->spec, rng);
  choose_spec (&t->below, rng);
  if (rng_below (rng, 3) == 0)
    t->below = (struct image_spec) { .raw = true, .size = t->below.size };
  image_create (BASE, &t->below);
  image_fill (BASE, &t->below, rng, rng_below (rng, 16));
  t->spec.backing = BASE;
  t->spec.backing_raw = t->below.raw;
  image_create (IMAGE, &t->spec);
  image_fill (IMAGE, &t->spec, rng, 1 + rng_below (rng, 16));
  image_contents (IMAGE, NULL, &t->contents);
  if (t->below.raw)
    blob_load (BASE, &t->base);
  else
    image_contents (BASE, NULL, &t->base);
  CHECK (t->contents.len == t->spec.size);
  blob_load (IMAGE, &t->file);
  find_own (t);

  t->keep = rng_below (rng, 5) == 0;
  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t->power = (struct power_cut_trial) {
    .path = t->options.path, .data_path = images_path (BASE), .opaque = t,
    .change = commit, .cuts = cuts, .judge = judge, .ended = ended,
  };
  rng_init (&t->power.rng, rng_next (rng), 500);
  printf ("%u: ", trials_number);
  image_print (&t->spec);
  printf (" over ");
  image_print (&t->below);
  printf ("%s\n", t->keep ? ", keep" : "");
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
  struct trial t = { .keep = false };
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
  for (i = 0; changing > 0 && growing > 0 && i < 30 && (i == 0 || trials_time_left ());
       i++) {
    fault = choose_fault (rng, i, changing, growing);
    power_cut_fault (&t.power, &fault);
  }
  power_cut_fail_memory (&t.power);

  blob_free (&t.contents);
  blob_free (&t.base);
  blob_free (&t.file);
  free (t.own);
  free ((char *) t.options.path);
  free ((char *) t.power.data_path);
}

int
main (void)
{
  const unsigned done = trials_run ("commit", 8, 1, one_image);

  printf ("%u images, %u power cuts, %u judged empty, %u committed again, "
          "%u times no memory, %u failures\n", done, power_cuts.cuts, nr_empty, nr_again,
          power_cuts.shortages, nr_failures);
  return 0;
}
