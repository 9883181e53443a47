/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What bitmaps does an image have when the power goes, at any instant, while they are
 * changed at start-up, or when writing fails?
 *
 * Just before each change of the file and each sync the power is cut.  Each file that
 * is left has no corruption, and the bitmaps that it had, or all those that were
 * wanted, with the marks that they should have; also when errors are thrown in.
 * Without those nothing is leaked at the end.  All else in the header is as it was,
 * also where the extension of bitmaps lies across two sectors.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (5) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "disk/disk.h"
#include "offline/bitmapedit.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"

enum { OLD, STILL, NEW, OTHER, NAMES };
static const char *const names[NAMES] = { "old", "still", "new", "other" };

/* What there is. */
struct state {
  bool there[NAMES];
  struct checked_bitmap bitmap[NAMES];
  unsigned char *marked[NAMES];
};

struct trial {
  struct image_spec spec;
  uint64_t sectors;
  struct simdisk *sim;
  struct rng rng;
  uint64_t pushed;              /* length of an extension of the header, or 0 */
  struct blob below;
  struct state before, after, now;
};

static unsigned nr_cuts, nr_old, nr_new, nr_failed;

static void
look (const struct blob *file, struct state *s)
{
  for (int i = 0; i < NAMES; i++)
    s->there[i] = checker_bitmap (file, names[i], &s->bitmap[i], s->marked[i]);
}

static bool
same (const struct trial *t, const struct state *a, const struct state *b)
{
  for (int i = 0; i < NAMES; i++) {
    if (a->there[i] != b->there[i])
      return false;
    if (a->there[i] &&
        (a->bitmap[i].in_use != b->bitmap[i].in_use ||
         a->bitmap[i].automatic != b->bitmap[i].automatic ||
         a->bitmap[i].granularity_bits != b->bitmap[i].granularity_bits ||
         memcmp (a->marked[i], b->marked[i], t->sectors) != 0))
      return false;
  }
  return true;
}

/* All else that the header says is as before. */
static void
check_header (const struct trial *t, const struct blob *file)
{
  const char *name = t->spec.backing;
  const uint64_t at = blob_get (file, 8, 8);

  if (t->pushed != 0 && !blob_has_pushed (file, t->pushed))
    survivor_fail (file, "an unknown extension of the header has changed");
  if (name && (at == 0 || blob_get (file, 16, 4) != strlen (name) ||
               memcmp (file->data + at, name, strlen (name)) != 0))
    survivor_fail (file, "the backing file has another name");
}

static void
watch (void *opaque, enum hostfile_op op)
{
  struct trial *t = opaque;
  const struct blob *file =
    simdisk_cut (t->sim, &t->rng, simdisk_random_cut (&t->rng));

  (void) op;
  nr_cuts++;
  survivor_check (file, true, "after a cut");
  check_header (t, file);
  look (file, &t->now);
  if (same (t, &t->now, &t->before))
    nr_old++;
  else if (same (t, &t->now, &t->after))
    nr_new++;
  else
    FAIL ("neither the old bitmaps nor the new ones");
}

static void
state_alloc (struct state *s, uint64_t sectors)
{
  memset (s, 0, sizeof *s);
  for (int i = 0; i < NAMES; i++) {
    s->marked[i] = calloc (1, sectors);
    CHECK (s->marked[i]);
  }
}

static void
state_free (struct state *s)
{
  for (int i = 0; i < NAMES; i++)
    free (s->marked[i]);
}

/* An image, with bitmaps or without. */
static bool
make (struct trial *t)
{
  static const uint64_t sizes[] = { 512, 1024, 4096, 65536 };
  const bool bitmaps = rng_below (&t->rng, 3) != 0;

  unlink (IMAGE);
  t->spec = (struct image_spec) {
    .version = 3, .cluster_size = sizes[rng_below (&t->rng, 4)],
    .refcount_bits = 16, .size = (rng_below (&t->rng, 4096) + 64) * 512,
  };
  if (rng_below (&t->rng, 3) == 0)
    image_over_raw (&t->spec, &t->rng, 65536, 2, &t->below);
  image_create (IMAGE, &t->spec);
  if (bitmaps) {
    image_bitmap (IMAGE, names[OLD], 0);
    image_bitmap (IMAGE, names[STILL], 0);
  }
  image_fill (IMAGE, &t->spec, &t->rng, 6);
  if (bitmaps)
    image_bitmap_disable (IMAGE, names[STILL]);
  if (rng_below (&t->rng, 4) != 0)
    t->pushed = image_push_extensions (IMAGE, &t->rng);
  return bitmaps;
}

static void
run_trial (struct rng *rng)
{
  struct trial t = { .rng = *rng };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
  };
  struct bitmapedit edits[4];
  size_t n = 0;
  char *path = images_path (IMAGE);
  bool bitmaps, errors;
  struct blob first;
  int r;

  bitmaps = make (&t);
  errors = rng_below (&t.rng, 3) == 0;
  options.discard = rng_below (&t.rng, 2);
  t.sectors = t.spec.size / 512;
  state_alloc (&t.before, t.sectors);
  state_alloc (&t.after, t.sectors);
  state_alloc (&t.now, t.sectors);
  blob_load (IMAGE, &first);
  look (&first, &t.before);

  if (bitmaps && rng_below (&t.rng, 2))
    edits[n++] = (struct bitmapedit) { BITMAP_CLEAR, names[OLD], 0 };
  else if (bitmaps)
    edits[n++] = (struct bitmapedit) { BITMAP_REMOVE, names[OLD], 0 };
  if (bitmaps && rng_below (&t.rng, 2))
    edits[n++] = (struct bitmapedit) { BITMAP_REMOVE, names[STILL], 0 };
  if (n == 0 || rng_below (&t.rng, 2))
    edits[n++] = (struct bitmapedit) { BITMAP_ADD, names[NEW], 9 };
  if (rng_below (&t.rng, 3) == 0)
    edits[n++] = (struct bitmapedit) { BITMAP_ADD, names[OTHER], 0 };

  /* Once in peace: what should come of it?  QEMU has a word in that. */
  options.path = path;
  if (bitmapedit_image (&options, edits, n) == -1)
    FAIL ("it failed without a reason");
  if (image_check (IMAGE) != 0)
    FAIL ("qemu-img check is not content");
  {
    struct blob last;

    blob_load (IMAGE, &last);
    survivor_check (&last, false, "at the end");
    check_header (&t, &last);
    look (&last, &t.after);
    blob_free (&last);
  }
  for (size_t i = 0; i < n; i++)
    for (int j = 0; j < NAMES; j++)
      if (strcmp (names[j], edits[i].name) == 0 &&
          (t.after.there[j] != (edits[i].what != BITMAP_REMOVE) ||
           (t.after.there[j] &&
            memchr (t.after.marked[j], 1, t.sectors) != NULL)))
        FAIL ("bitmap %s is not what was wanted", names[j]);

  /* And now with accidents. */
  blob_save (IMAGE, &first);
  t.sim = simdisk_new (path, rng_next (&t.rng));
  options.hooks = simdisk_hooks (t.sim);
  simdisk_watch (t.sim, watch, &t);
  if (errors) {
    const struct fault fault = {
      .ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC |
        1 << HOSTFILE_OP_READ,
      .after = rng_below (&t.rng, 120), .times = 1 + rng_below (&t.rng, 2),
      .err = rng_below (&t.rng, 2) ? ENOSPC : EIO,
      .partial = rng_below (&t.rng, 2),
    };
    simdisk_fault (t.sim, &fault);
  }
  r = bitmapedit_image (&options, edits, n);
  if (r == -1 && (!errors || simdisk_failures (t.sim) == 0))
    FAIL ("it failed without a reason");
  nr_failed += r == -1;
  simdisk_watch (t.sim, NULL, NULL);
  {
    const struct blob *file = simdisk_cut (t.sim, &t.rng, CUT_ALL);

    survivor_check (file, r == -1, "at the end");
    check_header (&t, file);
    look (file, &t.now);
    if (r == 0 && !same (&t, &t.now, &t.after))
      FAIL ("not what came of it in peace");
  }
  simdisk_free (t.sim);
  state_free (&t.before);
  state_free (&t.after);
  state_free (&t.now);
  blob_free (&first);
  blob_free (&t.below);
  free (path);
}

int
main (void)
{
  const unsigned done = trials_run ("bitmap-edits", 5, 1, run_trial);

  printf ("%u trials, %u cuts: %u old, %u new; %u failed\n", done, nr_cuts,
          nr_old, nr_new, nr_failed);
  return nr_cuts > 0 && nr_old > 0 && nr_new > 0 ? 0 : 1;
}
