/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a chain if a commit of the layer below the top one is interrupted, at
 * any moment?
 *
 * The top image of a random chain stays; the one below it is committed into the base, and
 * that is interrupted in all ways (interrupt.c).  Each time the top image names one of
 * these two files as its backing file, and over what is left shows the same data as
 * before.  If the commit had succeeded, it names the base.  The metadata of both files
 * has no faults.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many chains (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <inttypes.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/interrupt.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define TOP "top.qcow2"
#define MIDDLE "middle.qcow2"
#define BASE "base.qcow2"

struct trial {
  struct image_spec top, middle, base;
  struct disk_options options;
  struct interrupt interrupt;
  struct blob contents;         /* of the disk */
  struct blob layer;            /* the file of the middle layer */
};

static unsigned nr_before, nr_after;

static int
commit (void *opaque, const struct storage_hooks *hooks, const struct chunks_watch *watch)
{
  static const struct commit_layers layers = { .top = 1, .base = 2 };
  struct trial *t = opaque;
  struct disk *disk;
  uint64_t copied;

  t->options.hooks = hooks;
  disk = change_open (&t->options);
  return change_close (disk, disk ? commit_disk (disk, &layers, watch, &copied) : -1);
}

/* What the image shows by itself, or over BELOW; the caller frees it. */
static struct blob
show (const struct blob *file, const struct blob *below, const char *when)
{
  struct blob b = { .len = blob_get (file, 24, 8) };

  b.data = malloc (b.len);
  CHECK (b.data != NULL);
  if (checker_read (file, below, b.data, b.len) == -1)
    survivor_fail (file, "%s: the mapping is invalid", when);
  return b;
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  struct trial *t = opaque;
  const bool after = survivor_names (left->file, BASE);
  struct blob below, middle;

  if (!after && (left->done || !survivor_names (left->file, MIDDLE)))
    survivor_fail (left->file, "%s: it names neither file, or the old one", left->when);
  survivor_check (left->file, leaks_allowed, left->when);
  if (!t->base.raw)
    survivor_check (left->data, leaks_allowed, left->when);
  below = t->base.raw ? blob_resized (left->data, left->data->len)
    : show (left->data, NULL, left->when);
  if (!after) {
    middle = show (&t->layer, &below, left->when);
    blob_free (&below);
    below = middle;
  }
  if (!survivor_shows (left->file, &below, &t->contents))
    survivor_fail (left->file, "%s: the contents are others (%s)", left->when,
                   after ? "over the base" : "over the old chain");
  blob_free (&below);
  nr_after += after;
  nr_before += !after;
}

static void
one_chain (struct rng *rng)
{
  struct trial t = { .contents = { .data = NULL } };

  quiet_errors = true;          /* they are what we want */
  interrupt_choose_image (&t.top, rng, 3000);
  interrupt_choose_image (&t.middle, rng, 3000);
  interrupt_choose_image (&t.base, rng, 3000);
  if (rng_below (rng, 4) == 0)
    t.base = (struct image_spec) { .raw = true, .size = t.base.size };
  image_create (BASE, &t.base);
  image_fill (BASE, &t.base, rng, rng_below (rng, 12));
  t.middle.backing = BASE;
  t.middle.backing_raw = t.base.raw;
  image_create (MIDDLE, &t.middle);
  image_fill (MIDDLE, &t.middle, rng, 1 + rng_below (rng, 12));
  t.top.backing = MIDDLE;
  image_create (TOP, &t.top);
  image_fill (TOP, &t.top, rng, rng_below (rng, 6));
  image_contents (TOP, NULL, &t.contents);
  blob_load (MIDDLE, &t.layer);
  t.options = (struct disk_options) {
    .path = images_path (TOP), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t.interrupt = (struct interrupt) {
    .power = { .path = t.options.path, .data_path = images_path (BASE) },
    .opaque = &t, .change = commit, .judge = judge,
  };
  image_print (&t.top);
  printf (" over ");
  image_print (&t.middle);
  printf (" over ");
  image_print (&t.base);
  printf ("\n");
  fflush (stdout);
  interrupt_everywhere (&t.interrupt, rng);
  blob_free (&t.contents);
  blob_free (&t.layer);
  free ((char *) t.options.path);
  free ((char *) t.interrupt.power.data_path);
}

int
main (void)
{
  const unsigned done = trials_run ("commit-below", 5, 1, one_chain);

  printf ("%u chains, %u power cuts, %u judged over the old chain, %u over the new one, "
          "%u times no memory, %u failures\n", done, power_cuts.cuts, nr_before, nr_after,
          power_cuts.shortages, interrupts.failures);
  return 0;
}
