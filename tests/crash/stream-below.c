/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a chain if a layer below the top one comes to lie over another one, and
 * that is interrupted, at any moment?
 *
 * The image below the top one of a random chain is streamed over the base, or over
 * nothing, mostly while a client writes and flushes (writer.c), and that is interrupted
 * in all ways (interrupt.c).  Each time it names its old backing file or the new one,
 * or none, and over that shows the same data as before.  If the stream had succeeded,
 * it is the new one.  Its metadata has no faults.  The top is as it was, but for what
 * the client has written: that is there if it was flushed.
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
#include "lib/writer.h"

#define TOP "top.qcow2"
#define MIDDLE "middle.qcow2"
#define LOWER "lower.qcow2"
#define BASE "base.qcow2"

struct trial {
  struct image_spec top, middle, lower, base;
  bool alone;                   /* in the end it has no backing file */
  struct disk_options options;
  struct interrupt interrupt;
  struct writer writer;
  struct blob file;             /* of the top */
  struct blob contents, old, new;       /* of the middle; of what is below it, before and
                                           after (NULL: nothing is) */
};

static unsigned nr_before, nr_after, nr_in_use;

struct streaming {
  struct trial *t;
  struct disk *disk;
  const struct chunks_watch *watch;
};

static int
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  const struct streaming *x = opaque;

  if (writer_step (&x->t->writer) == -1)
    return -1;
  if (done == total || chunks_tell (x->watch, done, total, copied))
    return 0;
  errno = EINTR;
  return -1;
}

static int
stream_middle (void *opaque)
{
  const struct streaming *x = opaque;
  const struct stream_watch w = { .step = step, .fails = stream_fails, .opaque = opaque };
  struct stream *s = stream_new (x->disk, 1, x->t->alone ? 0 : 3, NULL);
  int r = -1;

  if (s && stream_copy (s, &w) == 0) {
    interrupt_more_cuts (&x->t->interrupt);
    r = stream_finish (s);
  }
  stream_free (s);
  return r;
}

static void
begin_writer (struct trial *t)
{
  struct blob file;

  blob_load (TOP, &file);
  writer_begin (&t->writer, writer_shown (&file, &t->contents));
  blob_free (&file);
}

static int
stream (void *opaque, const struct storage_hooks *hooks, const struct chunks_watch *watch)
{
  struct trial *t = opaque;
  struct streaming x = { .t = t, .watch = watch };
  const bool spared = shortage_spare (true);

  begin_writer (t);
  shortage_spare (spared);
  t->options.hooks = hooks;
  x.disk = change_open (&t->options);
  if (x.disk == NULL || layers_count (disk_inside (x.disk).view->layers) < 4)
    return change_close (x.disk, x.disk ? 0 : -1);
  errno = EINTR;
  return change_close (x.disk, chunks_tell (watch, 0, t->middle.size, 0)
                       ? writer_use (&t->writer, x.disk, t->interrupt.cutting,
                                     stream_middle, &x) : -1);
}

static void
judge_top (struct trial *t, const struct remains *left, bool leaks_allowed)
{
  struct blob shown;

  if (t->writer.idle && !blob_same (left->file, &t->file))
    survivor_fail (left->file, "%s: the top has changed", left->when);
  survivor_check (left->file, leaks_allowed, left->when);
  shown = writer_shown (left->file, &t->contents);
  if (!writer_allows (&t->writer, &shown))
    survivor_fail (left->file, "%s: the contents of the disk are others", left->when);
  blob_free (&shown);
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  struct trial *const t = opaque;
  const bool after = survivor_names (left->data, t->alone ? "" : BASE);
  const struct blob *const below = after ? &t->new : &t->old;

  if (!after && (left->done || !survivor_names (left->data, LOWER)))
    survivor_fail (left->data, "%s: it names neither file, or the old one", left->when);
  survivor_check (left->data, leaks_allowed, left->when);
  if (!survivor_shows (left->data, below->data ? below : NULL, &t->contents))
    survivor_fail (left->data, "%s: the contents are others (%s)", left->when,
                   after ? "over the new base" : "over the old chain");
  judge_top (t, left, leaks_allowed);
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
  t.writer = (struct writer) {
    .spec = t.top, .trims = t.options.discard, .seed = rng_next (rng),
    .idle = rng_below (rng, 4) == 0,
  };
  nr_in_use += !t.writer.idle;
  t.interrupt = (struct interrupt) {
    .power = { .path = t.options.path, .data_path = images_path (MIDDLE) },
    .opaque = &t, .change = stream, .judge = judge,
  };
  interrupt_everywhere (&t.interrupt, rng);
  writer_free (&t.writer);
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

  printf ("%u chains (%u in use), %u power cuts, %u judged over the old chain, "
          "%u over the new one, %u times no memory, %u failures\n", done, nr_in_use,
          power_cuts.cuts, nr_before, nr_after, power_cuts.shortages,
          interrupts.failures);
  return 0;
}
