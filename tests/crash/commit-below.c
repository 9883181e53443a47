/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a chain if a commit of the layer below the top one is interrupted, at
 * any moment?
 *
 * The top image of a random chain stays; the one below it is committed into the base,
 * mostly while a client writes and flushes (writer.c), and that is interrupted in all
 * ways (interrupt.c).  Each time the top image names one of these two files as its
 * backing file, and over what is left shows the same data as before, but for what the
 * client has written: that is there if it was flushed.  If the commit had succeeded, it
 * names the base.  The metadata of both files has no faults.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many chains (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/interrupt.h"
#include "lib/survivor.h"
#include "lib/trials.h"
#include "lib/writer.h"

#define TOP "top.qcow2"
#define MIDDLE "middle.qcow2"
#define BASE "base.qcow2"

struct trial {
  struct image_spec top, middle, base;
  struct disk_options options;
  struct interrupt interrupt;
  struct writer writer;
  struct blob layer;            /* the file of the middle layer */
};

static unsigned nr_before, nr_after, nr_in_use;

#define STEP (UINT64_C (64) << 10)

struct committing {
  struct trial *t;
  struct disk *disk;
  const struct chunks_watch *watch;
};

static const struct commit_layers layers = { .top = 1, .base = 2 };

static int
copy (const struct committing *x, struct commit *c)
{
  const uint64_t size = commit_size (c);
  uint64_t copied = 0;

  for (uint64_t at = 0; at < size; at += STEP) {
    if (commit_range (c, at, min64 (at + STEP, size), &copied, NULL) == -1 ||
        writer_step (&x->t->writer) == -1)
      return -1;
    if (at + STEP < size && !chunks_tell (x->watch, at + STEP, size, copied)) {
      errno = EINTR;
      return -1;
    }
  }
  return 0;
}

static int
commit_in_use (void *opaque)
{
  const struct committing *x = opaque;
  struct commit *c = commit_new (x->disk, &layers);
  int r = c ? copy (x, c) : -1;

  if (r == 0) {
    interrupt_more_cuts (&x->t->interrupt);
    r = commit_finish (c);
  }
  commit_free (c);
  return r;
}

/* What the image shows over the layers below it; the caller frees it. */
static struct blob
show_disk (const struct trial *t, const struct blob *file, const struct blob *base)
{
  struct blob shown, middle, below = t->base.raw ? blob_resized (base, base->len)
    : writer_shown (base, NULL);

  if (!survivor_names (file, BASE)) {
    middle = writer_shown (&t->layer, &below);
    blob_free (&below);
    below = middle;
  }
  shown = writer_shown (file, &below);
  blob_free (&below);
  return shown;
}

static void
begin_writer (struct trial *t)
{
  struct blob file, base;

  blob_load (TOP, &file);
  blob_load (BASE, &base);
  writer_begin (&t->writer, show_disk (t, &file, &base));
  blob_free (&file);
  blob_free (&base);
}

static int
commit (void *opaque, const struct storage_hooks *hooks, const struct chunks_watch *watch)
{
  struct trial *t = opaque;
  struct committing x = { .t = t, .watch = watch };
  const bool spared = shortage_spare (true);
  uint64_t copied;

  begin_writer (t);
  shortage_spare (spared);
  t->options.hooks = hooks;
  x.disk = change_open (&t->options);
  if (x.disk == NULL || layers_count (disk_inside (x.disk).view->layers) < 3)
    return change_close (x.disk, x.disk ? 0 : -1);
  if (t->writer.idle)
    return change_close (x.disk, commit_disk (x.disk, &layers, watch, &copied));
  errno = EINTR;
  return change_close (x.disk, chunks_tell (watch, 0, t->top.size, 0)
                       ? writer_use (&t->writer, x.disk, t->interrupt.cutting,
                                     commit_in_use, &x) : -1);
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  struct trial *t = opaque;
  const bool after = survivor_names (left->file, BASE);
  struct blob shown;

  if (!after && (left->done || !survivor_names (left->file, MIDDLE)))
    survivor_fail (left->file, "%s: it names neither file, or the old one", left->when);
  survivor_check (left->file, leaks_allowed, left->when);
  if (!t->base.raw)
    survivor_check (left->data, leaks_allowed, left->when);
  shown = show_disk (t, left->file, left->data);
  if (!writer_allows (&t->writer, &shown))
    survivor_fail (left->file, "%s: the contents are others (%s)", left->when,
                   after ? "over the base" : "over the old chain");
  blob_free (&shown);
  nr_after += after;
  nr_before += !after;
}

static void
one_chain (struct rng *rng)
{
  struct trial t = { .layer = { .data = NULL } };

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
  blob_load (MIDDLE, &t.layer);
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
    .power = { .path = t.options.path, .data_path = images_path (BASE) },
    .opaque = &t, .change = commit, .judge = judge,
  };
  image_print (&t.top);
  printf (" over ");
  image_print (&t.middle);
  printf (" over ");
  image_print (&t.base);
  printf (t.writer.idle ? "\n" : ", in use\n");
  fflush (stdout);
  interrupt_everywhere (&t.interrupt, rng);
  writer_free (&t.writer);
  blob_free (&t.layer);
  free ((char *) t.options.path);
  free ((char *) t.interrupt.power.data_path);
}

int
main (void)
{
  const unsigned done = trials_run ("commit-below", 5, 1, one_chain);

  printf ("%u chains (%u in use), %u power cuts, %u judged over the old chain, "
          "%u over the new one, %u times no memory, %u failures\n", done, nr_in_use,
          power_cuts.cuts, nr_before, nr_after, power_cuts.shortages,
          interrupts.failures);
  return 0;
}
