/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image and its backing file if a commit is interrupted, at any
 * moment?
 *
 * Random overlays over a raw file or a qcow2 image, smaller or larger, are committed, and
 * that is interrupted in all ways (interrupt.c).
 *
 * Each time the image, over the backing file that is left, shows the same data as before.
 * The metadata of both has no faults (checker.c, now and then qemu-img).  If the commit
 * had succeeded, the image is empty, or unchanged if it was to stay, and the backing file
 * shows the data by itself.  Where the image has nothing, the backing file is as before.
 * A commit of what is left succeeds.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/interrupt.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define BASE "base.qcow2"
#define LEFT "left.qcow2"       /* what is left of the backing file */

struct trial {
  struct image_spec spec, below;
  struct disk_options options;
  struct interrupt interrupt;
  bool keep;
  struct blob contents;         /* of the image */
  struct blob base;             /* of the backing file, before */
  struct blob file;             /* of the image's file, before */
  bool *own;                    /* for each byte, whether the image contains it */
};

static unsigned nr_empty;

/* --- judging --- */

/* The disk of the backing file; the caller frees it. */
static struct blob
shown_by_base (const struct trial *t, const struct blob *file, bool leaks_allowed,
               const char *when)
{
  struct blob b;

  /* (A remote server shows zeros behind the end of its file.) */
  if (t->below.raw)
    return blob_resized (file, reach_server () ? max64 (file->len, t->spec.size)
                         : file->len);
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
  const uint64_t both = min64 (base->len, t->base.len), block = 4096;
  uint64_t i;

  for (i = 0; i < base->len; i++) {
    /* (Byte by byte takes ThreadSanitizer long.) */
    if (i % block == 0 && i + block <= both &&
        memcmp (base->data + i, t->base.data + i, block) == 0) {
      i += block - 1;
      continue;
    }

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
commit_again (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  struct disk_options options = t->options;
  const bool keep = t->keep;
  struct blob file, data;
  uint64_t copied;
  char *const name = reach_backing_in_header (LEFT);
  const struct rebase to = {
    .name = name, .format = t->below.raw ? "raw" : "qcow2", .unsafe = true,
  };

  blob_save (SURVIVOR, left->file);
  blob_save (LEFT, left->data);
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (change_rebase (&options, &to, NULL, &copied) == -1)
    FAIL ("what is left can't get another name: %m (%s)", last_error ());
  if (change_commit (&options, false, NULL, &copied) == -1)
    FAIL ("what is left can't be committed: %m (%s)", last_error ());
  blob_load (SURVIVOR, &file);
  blob_load (LEFT, &data);
  t->keep = false;
  judge_files (t, &file, &data, true, true, "committed again");
  t->keep = keep;
  if (!t->below.raw && rng_below (&t->interrupt.power.rng, 4) == 0) {
    const int r = image_check (LEFT);

    if (r != 0 && r != 3)
      FAIL ("qemu-img check of the backing file: exit status %d", r);
  }
  blob_free (&file);
  blob_free (&data);
  free ((char *) options.path);
  free (name);
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  judge_files (opaque, left->file, left->data, left->done, leaks_allowed, left->when);
}

/* --- runs --- */

static int
commit (void *opaque, const struct storage_hooks *hooks,
        const struct chunks_watch *watch)
{
  struct trial *t = opaque;
  uint64_t copied;

  t->options.hooks = hooks;
  return change_commit (&t->options, t->keep, watch, &copied);
}

static void
make_trial (struct trial *t, struct rng *rng)
{
  interrupt_choose_image (&t->spec, rng, 4000);
  interrupt_choose_image (&t->below, rng, 4000);
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
  /* (It is the same over any backing file.) */
  t->own = malloc (t->spec.size);
  CHECK (t->own != NULL && checker_own (&t->file, t->own, t->spec.size) == 0);

  t->keep = rng_below (rng, 5) == 0;
  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t->interrupt = (struct interrupt) {
    .power = { .path = t->options.path, .data_path = images_path (BASE) },
    .opaque = t, .change = commit, .judge = judge, .again = commit_again,
  };
  printf ("%u: ", trials_number);
  image_print (&t->spec);
  printf (" over ");
  image_print (&t->below);
  printf ("%s\n", t->keep ? ", keep" : "");
  fflush (stdout);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .keep = false };

  quiet_errors = true;          /* they are what we want */
  make_trial (&t, rng);
  interrupt_everywhere (&t.interrupt, rng);

  blob_free (&t.contents);
  blob_free (&t.base);
  blob_free (&t.file);
  free (t.own);
  free ((char *) t.options.path);
  free ((char *) t.interrupt.power.data_path);
}

int
main (void)
{
  const unsigned done = trials_run ("commit", 5, 1, one_image);

  printf ("%u images, %u power cuts, %u judged empty, %u committed again, "
          "%u times no memory, %u failures\n", done, power_cuts.cuts, nr_empty,
          interrupts.again, power_cuts.shortages, interrupts.failures);
  return 0;
}
