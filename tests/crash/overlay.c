/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a disk that gets a new image on top (an external snapshot), if the
 * power is cut, at any moment, or if any operation on one of the two files, or an
 * allocation, fails?
 *
 * A client writes and flushes all the time (writer.c).  The new image is there, or is
 * created; now and then it is taken back.  Until that is done, the old image is the
 * disk; over it, the new image shows the same, as soon as it is complete.  Afterwards
 * the new image is the disk, and the old one does not change any more: it has no leaks,
 * and its bitmap is complete.  Neither image ever has faults.  If it fails, the client
 * goes on with the old image, and no file is left that was created.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many disks (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "change/overlay.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/interrupt.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/trials.h"
#include "lib/writer.h"

#define OLD "old.qcow2"
#define NEW "new.qcow2"
#define FAULTS 12               /* of each disk, in changes and in reads */

#define CHANGES (1u << STORAGE_OP_WRITE | 1u << STORAGE_OP_SYNC | 1u << STORAGE_OP_PUNCH | \
                 1u << STORAGE_OP_TRUNCATE | 1u << STORAGE_OP_ALLOCATE | \
                 1u << STORAGE_OP_LINK | 1u << STORAGE_OP_SYNC_DIR)

struct trial {
  struct power_cut_trial power;
  struct image_spec old, new;
  struct blob below;            /* what the old image lies over */
  bool creates, takes_back, has_bitmap;
  bool beside;                  /* the client is a thread of its own */
  struct disk_options options;
  struct writer writer;

  /* While it is made: */
  struct disk *disk;
  atomic_bool complete;         /* the new image */
  atomic_bool moving;           /* it may be the top */
  atomic_bool moved;            /* it is */
  struct blob rest;             /* what the old image shows since then */
};

static unsigned nr_moved, nr_stayed, nr_cut_before, nr_cut_after;

/* --- the change --- */

/* (If it cannot be taken back, it stays.) */
static int
put_and_take_back (struct trial *t, struct overlaying *c)
{
  bool moved;
  int r;

  disk_close_gate (t->disk);
  r = overlay_make (c);
  moved = r == 0;
  if (moved)
    r = overlay_take_back (c);
  KEEP_ERRNO_FOR_BLOCK;
  t->moved = moved && r == -1;
  disk_open_gate (t->disk);
  return r;
}

static int
put (struct trial *t, struct overlaying *c)
{
  int r;

  t->complete = true;
  if (writer_step (&t->writer) == -1)
    return -1;
  if (t->takes_back)
    return put_and_take_back (t, c);
  t->moving = true;
  r = overlay_make (c);
  t->moved = r == 0;
  t->moving = false;
  return r;
}

static int
put_on_top (void *opaque)
{
  struct trial *t = opaque;
  const struct overlay o = { .path = t->power.data_path, .create = t->creates };
  struct overlaying *c;
  int r;

  if (t->moved)
    return 0;
  c = overlay_prepare (t->disk, &o);
  r = c ? put (t, c) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  t->complete &= !t->creates || t->moved;
  overlay_end (c, t->moved);
  return r;
}

/* --- runs --- */

/* Has anything been written to it? */
static bool
has_tables (const struct blob *image)
{
  const uint64_t l1 = blob_get (image, 40, 8), n = blob_get (image, 36, 4);
  bool found = false;

  for (uint64_t i = 0; !found && i < n; i++)
    found = blob_get (image, l1 + i * 8, 8) != 0;
  return found;
}

/* What the files are: an earlier run may have failed after it had put the new image on
 * top. */
static void
begin (struct trial *t)
{
  const bool spared = shortage_spare (true);
  struct blob old, new, shown;

  blob_load (OLD, &old);
  shown = writer_shown (&old, &t->below);
  t->moved = t->moving = false;
  t->complete = !t->creates;
  blob_free (&t->rest);
  if (!t->creates) {
    blob_load (NEW, &new);
    t->moved = has_tables (&new);
    if (t->moved) {
      t->rest = shown;
      shown = writer_shown (&new, &t->rest);
    }
    blob_free (&new);
  }
  writer_begin (&t->writer, shown);
  blob_free (&old);
  shortage_spare (spared);
}

static int
run (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  struct disk_options options = t->options;
  int r;

  begin (t);
  options.hooks = hooks;
  if (t->moved)
    options.path = t->power.data_path;
  if (disk_open (&options, &t->disk) == -1)
    return -1;
  r = writer_use (&t->writer, t->disk, t->beside, put_on_top, t);
  KEEP_ERRNO_FOR_BLOCK;
  disk_close (t->disk);
  nr_moved += t->moved;
  nr_stayed += !t->moved;
  if (t->creates && (unlink (NEW) == 0) != t->moved)
    FAIL (t->moved ? "the new image is not there" : "the new image is left");
  return r;
}

/* --- judging --- */

/* From the move on, it shows the same. */
static void
judge_rest (struct trial *t, const struct remains *left, const struct blob *old)
{
  struct checked_bitmap bitmap;

  survivor_check (left->file, left->shortage, left->when);
  if (t->rest.data == NULL)
    t->rest = blob_copy (old);
  if (!blob_same (old, &t->rest))
    survivor_fail (left->file, "%s: the old image has changed", left->when);
  if (t->has_bitmap && !left->fault && !left->shortage &&
      (!checker_bitmap (left->file, "monday", &bitmap, NULL) || bitmap.in_use))
    survivor_fail (left->file, "%s: its bitmap is lost, or in use", left->when);
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  struct blob old, new;

  survivor_check (left->file, true, left->when);
  old = writer_shown (left->file, &t->below);
  if (t->moved)
    judge_rest (t, left, &old);
  else if (!t->moving && !writer_allows (&t->writer, &old))
    survivor_fail (left->file, "%s: the old image shows something else", left->when);
  if (t->complete) {
    survivor_check (left->data, true, left->when);
    new = writer_shown (left->data, &old);
    if (!writer_allows (&t->writer, &new))
      survivor_fail (left->data, "%s: the new image shows something else", left->when);
    blob_free (&new);
  }
  blob_free (&old);
  nr_cut_before += !t->moved;
  nr_cut_after += t->moved;
}

static unsigned
choose_cuts (void *opaque, enum storage_op op)
{
  (void) opaque, (void) op;
  return 2;
}

/* --- trials --- */

static void
make_images (struct trial *t, struct rng *rng)
{
  interrupt_choose_image (&t->old, rng, 3000);
  interrupt_choose_image (&t->new, rng, 3000);
  image_over_raw (&t->old, rng, t->old.size, 6, &t->below);
  image_create (OLD, &t->old);
  image_fill (OLD, &t->old, rng, rng_below (rng, 8));
  t->has_bitmap = t->old.version == 3 && rng_below (rng, 2);
  if (t->has_bitmap)
    image_bitmap (OLD, "monday", 0);
  image_print (&t->old);
  t->creates = rng_below (rng, 2);
  if (t->creates) {
    t->new = t->old;
    unlink (NEW);
  }
  else {
    t->new.size = t->old.size;
    t->new.backing = OLD;
    image_create (NEW, &t->new);
    printf (" under ");
    image_print (&t->new);
  }
  printf ("%s%s\n", t->has_bitmap ? ", bitmap" : "", t->takes_back ? ", taken back" : "");
  fflush (stdout);
}

static void
interrupt (struct trial *t)
{
  t->beside = true;
  power_cut_everywhere (&t->power);
  t->beside = false;
  power_cut_everywhere (&t->power);
  power_cut_fail_some (&t->power, CHANGES, t->power.operations, FAULTS);
  power_cut_fail_some (&t->power, 1 << STORAGE_OP_READ, t->power.reads, FAULTS);
  if (!t->creates)              /* (unit/disk/new-top does that.) */
    power_cut_fail_memory (&t->power);
}

static void
trial (struct rng *rng)
{
  struct trial t = { .takes_back = rng_below (rng, 4) == 0 };
  CLEANUP_FREE char *old = images_path (OLD), *new = images_path (NEW);

  quiet_errors = true;          /* they are what we want */
  make_images (&t, rng);
  t.options = (struct disk_options) {
    .path = old, .l2_cache = rng_below (rng, 2) ? 1 << 20 : 0, .l2_slice = 512,
    .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t.writer = (struct writer) {
    .spec = t.old, .trims = t.options.discard, .seed = rng_next (rng),
  };
  /* Of both: only whole clusters are trimmed. */
  t.writer.spec.version = min64 (t.old.version, t.new.version);
  t.writer.spec.cluster_size = max64 (t.old.cluster_size, t.new.cluster_size);
  t.power = (struct power_cut_trial) {
    .path = old, .data_path = new, .opaque = &t, .change = run, .can_fail = CHANGES,
    .cuts = choose_cuts, .judge = judge,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);
  interrupt (&t);
  writer_free (&t.writer);
  blob_free (&t.rest);
  blob_free (&t.below);
}

int
main (void)
{
  const unsigned n = trials_run ("overlay", 5, 2, trial);

  printf ("%u disks, moved %u times, stayed %u times; %u power cuts before, %u after; "
          "%u faults, %u times no memory\n", n, nr_moved, nr_stayed, nr_cut_before,
          nr_cut_after, power_cuts.faults, power_cuts.shortages);
  /* (On a slow machine there are few faults, which may all come after the switch.) */
  CHECK (nr_cut_before > 0 && (nr_stayed > 0 || power_cuts.faults < 8));
  return 0;
}
