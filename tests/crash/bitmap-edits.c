/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which bitmaps does an image have after a power cut or an I/O error while they are
 * changed at start-up?
 *
 * The power is cut just before each change of the file and each sync.  Each file that is
 * left has no corruption and no leaks, and either the old bitmaps or all the requested
 * ones, with the correct bits, some of them from another image, and then the snapshot
 * that was requested with them; also when errors are injected.
 * Everything else in the header is unchanged, also if the extension of bitmaps lies
 * across two sectors.  Then some allocations fail.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (3) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "disk/disk.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define SOURCE "other.qcow2"

enum { OLD, STILL, NEW, OTHER, NAMES };
static const char *const names[NAMES] = { "old", "still", "new", "other" };

/* What there is. */
struct state {
  bool there[NAMES];
  struct checked_bitmap bitmap[NAMES];
  unsigned char *marked[NAMES];
  uint64_t snapshots;           /* their number */
};

struct trial {
  struct image_spec spec;
  uint64_t sectors;
  struct disk_options options;
  struct bitmapedit edits[8];
  size_t n;
  const char *snapshot;         /* taken in the same step, or NULL */
  char *source;                 /* the image whose bitmaps are merged, or NULL */
  struct power_cut_trial power;
  uint64_t pushed;              /* length of an extension of the header, or 0 */
  struct blob below;
  struct state before, after, now;
  struct state wanted;          /* what the changes make of `before' */
  struct state other;           /* of the source */
};

static unsigned nr_failed;

static void
look (const struct blob *file, struct state *s)
{
  for (int i = 0; i < NAMES; i++)
    s->there[i] = checker_bitmap (file, names[i], &s->bitmap[i], s->marked[i]);
  s->snapshots = blob_get (file, 60, 4);
}

static bool
same (const struct trial *t, const struct state *a, const struct state *b)
{
  if (a->snapshots != b->snapshots)
    return false;
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
  char *name = t->spec.backing ? reach_backing_in_header (t->spec.backing) : NULL;
  const uint64_t at = blob_get (file, 8, 8);

  if (t->pushed != 0 && !blob_has_pushed (file, t->pushed))
    survivor_fail (file, "an unknown extension of the header has changed");
  if (name && (at == 0 || blob_get (file, 16, 4) != strlen (name) ||
               memcmp (file->data + at, name, strlen (name)) != 0))
    survivor_fail (file, "the backing file has another name");
  free (name);
}

static void
judge (void *opaque, const struct remains *left)
{
  survivor_check (left->file, false, left->when);
  check_header (opaque, left->file);
}

static bool
shows (void *opaque, const struct blob *file, bool after)
{
  struct trial *t = opaque;

  look (file, &t->now);
  return same (t, &t->now, after ? &t->after : &t->before);
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
make (struct trial *t, struct rng *rng)
{
  static const uint64_t sizes[] = { 512, 1024, 4096, 65536 };
  const bool bitmaps = rng_below (rng, 3) != 0;

  unlink (IMAGE);
  t->spec = (struct image_spec) {
    .version = 3, .cluster_size = sizes[rng_below (rng, 4)],
    .refcount_bits = 16, .size = (rng_below (rng, 4096) + 64) * 512,
  };
  if (rng_below (rng, 3) == 0)
    image_over_raw (&t->spec, rng, 65536, 2, &t->below);
  image_create (IMAGE, &t->spec);
  if (bitmaps) {
    image_bitmap (IMAGE, names[OLD], 0);
    image_bitmap (IMAGE, names[STILL], 0);
  }
  image_fill (IMAGE, &t->spec, rng, 6);
  if (bitmaps)
    image_bitmap_disable (IMAGE, names[STILL]);
  if (rng_below (rng, 4) != 0)
    t->pushed = image_push_extensions (IMAGE, rng);
  return bitmaps;
}

/* Another image of that size. */
static void
make_source (struct trial *t, struct rng *rng)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = t->spec.cluster_size, .refcount_bits = 16,
    .size = t->spec.size,
  };
  struct blob file;

  unlink (SOURCE);
  image_create (SOURCE, &spec);
  image_bitmap (SOURCE, names[STILL], 9 + rng_below (rng, 8));
  image_fill (SOURCE, &spec, rng, 3);
  image_bitmap (SOURCE, names[OTHER], 0);
  image_fill (SOURCE, &spec, rng, 3);
  t->source = images_path (SOURCE);
  blob_load (SOURCE, &file);
  look (&file, &t->other);
  blob_free (&file);
}

static void
add (struct trial *t, enum bitmapedit_what what, int name, unsigned granularity_bits)
{
  struct state *w = &t->wanted;

  t->edits[t->n++] = (struct bitmapedit) {
    .what = what, .name = names[name], .granularity_bits = granularity_bits,
  };
  if (what == BITMAP_ADD || what == BITMAP_CLEAR)
    memset (w->marked[name], 0, t->sectors);
  if (what == BITMAP_ADD)
    w->bitmap[name] = (struct checked_bitmap) { .granularity_bits = granularity_bits };
  if (what == BITMAP_ADD || what == BITMAP_ENABLE || what == BITMAP_DISABLE)
    w->bitmap[name].automatic = what != BITMAP_DISABLE;
  w->there[name] = what != BITMAP_REMOVE;
}

/* Where bitmaps are that are merged. */
static const struct state *
source (const struct trial *t)
{
  return t->source ? &t->other : &t->wanted;
}

static void
merge (struct trial *t, int from, int into)
{
  const uint64_t piece = UINT64_C (1) << (t->wanted.bitmap[into].granularity_bits - 9);
  const unsigned char *there = source (t)->marked[from];
  unsigned char *marked = t->wanted.marked[into];

  t->edits[t->n++] = (struct bitmapedit) {
    .what = BITMAP_MERGE, .name = names[into], .merged = names[from],
  };
  for (uint64_t s = 0; s < t->sectors; s++) {
    const uint64_t at = s / piece * piece;

    if (there[s])
      memset (marked + at, 1, min64 (piece, t->sectors - at));
  }
}

static void
choose_change (struct trial *t, struct rng *rng)
{
  static const enum bitmapedit_what changes[] = {
    BITMAP_CLEAR, BITMAP_REMOVE, BITMAP_ENABLE, BITMAP_DISABLE,
  };
  static const unsigned sizes[] = { 9, 12, 14, 16 };
  const int i = rng_below (rng, NAMES), k = rng_below (rng, NAMES);

  if (!t->wanted.there[i])
    add (t, BITMAP_ADD, i, sizes[rng_below (rng, 4)]);
  else if (source (t)->there[k] && rng_below (rng, 2))
    merge (t, k, i);
  else
    add (t, changes[rng_below (rng, 4)], i, 0);
}

static void
choose (struct trial *t, struct rng *rng, bool bitmaps)
{
  if (bitmaps && rng_below (rng, 4) == 0) {
    /* There is nothing left to be written, but the header. */
    add (t, BITMAP_REMOVE, OLD, 0);
    add (t, BITMAP_REMOVE, STILL, 0);
    return;
  }
  if (bitmaps)
    add (t, rng_below (rng, 2) ? BITMAP_CLEAR : BITMAP_DISABLE, OLD, 0);
  add (t, BITMAP_ADD, NEW, 9);
  if (source (t)->there[STILL] && rng_below (rng, 2))
    merge (t, STILL, bitmaps && rng_below (rng, 2) ? OLD : NEW);
  for (unsigned i = rng_below (rng, 5); i > 0; i--)
    choose_change (t, rng);
}

static int
change (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;

  t->options.hooks = hooks;
  return change_bitmaps_at (&t->options, t->snapshot, t->edits, t->n, t->source);
}

static unsigned
one_cut (void *opaque, enum storage_op op)
{
  (void) opaque;
  (void) op;
  return 1;
}

/* Once in peace: it is what was wanted, and QEMU has a word in that. */
static void
change_in_peace (struct trial *t)
{
  struct blob last;

  if (change (t, NULL) == -1)
    FAIL ("it failed without a reason");
  if (image_check (IMAGE) != 0)
    FAIL ("qemu-img check is not content");
  blob_load (IMAGE, &last);
  survivor_check (&last, false, "at the end");
  check_header (t, &last);
  look (&last, &t->after);
  blob_free (&last);
  if (!same (t, &t->wanted, &t->after))
    FAIL ("the bitmaps are not what was wanted");
}

static void
change_with_accidents (struct trial *t, struct rng *rng, bool errors)
{
  struct fault fault =
    power_cut_random_fault (rng, 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC |
                            1 << STORAGE_OP_READ, rng_below (rng, 120));

  power_cut_begin (&t->power, rng_next (rng));
  nr_failed += power_cut_change (&t->power, errors ? &fault : NULL) == -1;
  power_cut_all_ways (&t->power);
  power_cut_end (&t->power);
}

static void
run_trial (struct rng *rng)
{
  struct trial t = { .n = 0 };
  struct blob first;
  bool bitmaps, errors;

  bitmaps = make (&t, rng);
  errors = rng_below (rng, 3) == 0;
  t.options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = change, .judge = judge,
    .shows = shows, .cuts = one_cut,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);
  t.sectors = t.spec.size / 512;
  state_alloc (&t.before, t.sectors);
  state_alloc (&t.after, t.sectors);
  state_alloc (&t.now, t.sectors);
  state_alloc (&t.wanted, t.sectors);
  state_alloc (&t.other, t.sectors);
  blob_load (IMAGE, &first);
  look (&first, &t.before);
  look (&first, &t.wanted);

  if (rng_below (rng, 3) == 0)
    make_source (&t, rng);
  choose (&t, rng, bitmaps);
  if (rng_below (rng, 2)) {
    t.snapshot = "then";
    t.wanted.snapshots++;
  }
  change_in_peace (&t);
  blob_save (IMAGE, &first);
  change_with_accidents (&t, rng, errors);
  power_cut_fail_memory (&t.power);

  state_free (&t.before);
  state_free (&t.after);
  state_free (&t.now);
  state_free (&t.wanted);
  state_free (&t.other);
  blob_free (&first);
  blob_free (&t.below);
  free (t.source);
  free ((char *) t.options.path);
}

int
main (void)
{
  const unsigned done = trials_run ("bitmap-edits", 3, 1, run_trial);

  printf ("%u trials, %u cuts: %u old, %u new; %u failed; "
          "%u times no memory\n", done, power_cuts.cuts, power_cuts.old, power_cuts.new,
          nr_failed, power_cuts.shortages);
  return power_cuts.old > 0 && power_cuts.new > 0 ? 0 : 1;
}
