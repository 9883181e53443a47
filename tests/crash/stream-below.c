/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a chain if a layer below the top one comes to lie over another one, and
 * that is interrupted, at any moment?
 *
 * The image below the top one of a random chain is streamed over the base, or over
 * nothing, and that is interrupted in all ways (interrupt.c).  Each time it names its old
 * backing file or the new one, or none, and over that shows the same data as before.  If
 * the stream had succeeded, it is the new one.  Its metadata has no faults, and the top
 * is as it was.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many chains (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "change/stream.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/interrupt.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define TOP "top.qcow2"
#define MIDDLE "middle.qcow2"
#define LOWER "lower.qcow2"
#define BASE "base.qcow2"

struct trial {
  struct image_spec top, middle, lower, base;
  bool alone;                   /* in the end it has no backing file */
  struct disk_options options;
  struct interrupt interrupt;
  struct blob file;             /* of the top */
  struct blob contents, old, new;       /* of the middle; of what is below it, before and
                                           after (NULL: nothing is) */
};

static unsigned nr_before, nr_after;

static int
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  if (done == total || chunks_tell (opaque, done, total, copied))
    return 0;
  errno = EINTR;
  return -1;
}

static int
fails (void *opaque, bool reads, int err)
{
  (void) opaque, (void) reads;
  errno = err;
  return -1;
}

static int
stream_middle (const struct trial *t, struct disk *disk, const struct chunks_watch *watch)
{
  const struct stream_watch w = { .step = step, .fails = fails, .opaque = (void *) watch };
  struct stream *s;
  int r = -1;

  errno = EINTR;
  if (!chunks_tell (watch, 0, t->middle.size, 0))
    return -1;
  s = stream_new (disk, 1, t->alone ? 0 : 3, NULL);
  if (s && stream_copy (s, &w) == 0)
    r = stream_finish (s);
  stream_free (s);
  return r;
}

static int
stream (void *opaque, const struct storage_hooks *hooks, const struct chunks_watch *watch)
{
  struct trial *t = opaque;
  struct disk *disk;
  bool done;

  t->options.hooks = hooks;
  disk = change_open (&t->options);
  done = disk && layers_count (disk_inside (disk).view->layers) < 4;
  return change_close (disk, disk == NULL ? -1 : done ? 0
                       : stream_middle (t, disk, watch));
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  const struct trial *t = opaque;
  const bool after = survivor_names (left->data, t->alone ? "" : BASE);
  const struct blob *const below = after ? &t->new : &t->old;

  if (!after && (left->done || !survivor_names (left->data, LOWER)))
    survivor_fail (left->data, "%s: it names neither file, or the old one", left->when);
  survivor_check (left->data, leaks_allowed, left->when);
  if (!survivor_shows (left->data, below->data ? below : NULL, &t->contents))
    survivor_fail (left->data, "%s: the contents are others (%s)", left->when,
                   after ? "over the new base" : "over the old chain");
  if (!blob_same (left->file, &t->file))
    survivor_fail (left->file, "%s: the top has changed", left->when);
  nr_after += after;
  nr_before += !after;
}

static void
make_image (const char *name, struct image_spec *spec, const char *over, struct rng *rng)
{
  interrupt_choose_image (spec, rng, 3000);
  spec->backing = over;
  image_create (name, spec);
  image_fill (name, spec, rng, rng_below (rng, 12));
  image_print (spec);
  printf (strcmp (name, TOP) == 0 ? "\n" : " under ");
}

static void
one_chain (struct rng *rng)
{
  struct trial t = { .alone = rng_below (rng, 2) };

  quiet_errors = true;          /* they are what we want */
  make_image (BASE, &t.base, NULL, rng);
  make_image (LOWER, &t.lower, BASE, rng);
  make_image (MIDDLE, &t.middle, LOWER, rng);
  make_image (TOP, &t.top, MIDDLE, rng);
  fflush (stdout);
  image_contents (MIDDLE, NULL, &t.contents);
  image_contents (LOWER, NULL, &t.old);
  if (!t.alone)
    image_contents (BASE, NULL, &t.new);
  blob_load (TOP, &t.file);
  t.options = (struct disk_options) {
    .path = images_path (TOP), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t.interrupt = (struct interrupt) {
    .power = { .path = t.options.path, .data_path = images_path (MIDDLE) },
    .opaque = &t, .change = stream, .judge = judge,
  };
  interrupt_everywhere (&t.interrupt, rng);
  blob_free (&t.contents);
  blob_free (&t.old);
  blob_free (&t.new);
  blob_free (&t.file);
  free ((char *) t.options.path);
  free ((char *) t.interrupt.power.data_path);
}

int
main (void)
{
  const unsigned done = trials_run ("stream-below", 5, 1, one_chain);

  printf ("%u chains, %u power cuts, %u judged over the old chain, %u over the new one, "
          "%u times no memory, %u failures\n", done, power_cuts.cuts, nr_before, nr_after,
          power_cuts.shortages, interrupts.failures);
  return 0;
}
