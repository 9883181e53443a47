/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image if it is being rebased or flattened, and that is interrupted,
 * at any moment?
 *
 * Random images over a raw file, a qcow2 image or nothing are rebased: to another raw
 * file, to a file above or below the old one, or to nothing (flattened).  Where the new
 * file is below the old one, or there is none, this may be done as for a disk in use
 * (stream.c), mostly while a client writes and flushes (writer.c).  It is interrupted
 * in all ways (interrupt.c).
 *
 * Each time the file that is left names either the old backing file or the new one, and
 * shows, over that, the same data as before, but for what the client has written: that
 * is there if it was flushed.  Its metadata has no faults (checker.c, now and then
 * qemu-img), and rebasing it again succeeds, without leaks other than those of the
 * crash.  Unless somebody uses the disk, only units that differ were written in the
 * end.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "format/format.h"
#include "change/stream.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/interrupt.h"
#include "lib/survivor.h"
#include "lib/trials.h"
#include "lib/writer.h"

#define IMAGE "top.qcow2"
#define OLD "below"             /* as image_over_raw names it */
#define OTHER "other"           /* a raw file */
#define BETWEEN "mid.qcow2"     /* over OLD */

struct trial {
  struct image_spec spec;
  struct rebase to;             /* its name as in the header */
  bool streams;                 /* as in use; over this layer then: */
  unsigned base;
  char *from;                   /* the old one */
  struct disk_options options;
  struct interrupt interrupt;
  struct writer writer;         /* idle, unless it streams */
  struct blob contents;
  struct blob old, new;         /* what is shown below; len 0: nothing */
  bool *had;                    /* for each byte, whether the image contained it */
  bool has_bitmap;
  uint64_t pushed;              /* length of an unknown header extension, or 0 */
  unsigned char *buf;
};

static unsigned nr_moved, nr_refused, nr_in_use;

/* --- judging --- */

/* Its format goes with it.  (Extensions follow each other without gaps.) */
static void
check_format (const struct trial *t, const struct blob *b, const char *when)
{
  char *format;

  if (t->spec.version < 3 || t->pushed > 0)
    return;
  format = blob_extension (b, QCOW2_EXT_BACKING_FORMAT);
  if ((format == NULL) != (t->to.format == NULL) ||
      (format && strcmp (format, t->to.format) != 0))
    FAIL ("%s: the format is %s", when, format ? format : "missing");
  free (format);
}

/* Extensions of the header that are not the format's name are kept; and only what a
 * client has written is recorded. */
static void
check_bitmap (struct trial *t, const struct blob *b, const struct blob *shown,
              const char *when)
{
  struct checked_bitmap bitmap;
  uint64_t i;

  if (!checker_bitmap (b, "monday", &bitmap, t->buf))
    FAIL ("%s: the bitmap is lost", when);
  if (!bitmap.automatic || (bitmap.in_use && t->writer.idle))
    FAIL ("%s: the bitmap has other flags", when);
  for (i = 0; !bitmap.in_use && i < t->spec.size / 512; i++)
    if (t->buf[i] ? t->writer.idle
        : memcmp (shown->data + i * 512, t->contents.data + i * 512, 512) != 0)
      FAIL ("%s: sector %" PRIu64 " is %smarked", when, i, t->buf[i] ? "" : "not ");
}

/* Was it rebased?  Nothing has happened if both names are the same. */
static bool
is_moved (const struct trial *t, const struct blob *b, const char *when)
{
  const bool moved = survivor_names (b, t->to.name);

  if (!moved && !survivor_names (b, t->from))
    survivor_fail (b, "%s: another backing file is named", when);
  return moved;
}

static void
judge_file (struct trial *t, const struct blob *b, bool leaks_allowed, const char *when)
{
  const bool moved = is_moved (t, b, when);
  struct blob shown = writer_shown (b, moved ? &t->new : &t->old);

  survivor_check (b, leaks_allowed, when);
  if (!writer_allows (&t->writer, &shown))
    survivor_fail (b, "%s: the contents are others (%s)", when,
                   moved ? "rebased" : "as before");
  if (moved)
    check_format (t, b, when);
  if (t->pushed != 0 && !blob_has_pushed (b, t->pushed))
    survivor_fail (b, "%s: an unknown extension of the header has changed", when);
  nr_moved += moved;
  if (t->has_bitmap)
    check_bitmap (t, b, &shown, when);
  blob_free (&shown);
}

static unsigned char
byte_of (const struct blob *b, uint64_t at)
{
  return at < b->len ? b->data[at] : 0;
}

/* Has it only those units in addition that differ? */
static void
check_written (const struct trial *t, const struct blob *b)
{
  const uint64_t unit = t->spec.cluster_size / (t->spec.extended ? 32 : 1);
  bool *own = malloc (t->spec.size);
  uint64_t at, i, end;

  CHECK (own != NULL);
  checker_own (b, own, t->spec.size);
  for (at = 0; at < t->spec.size; at = end) {
    end = min64 (at + unit, t->spec.size);
    for (i = at; i < end && byte_of (&t->old, i) == byte_of (&t->new, i); i++)
      ;
    if (!t->had[at] && own[at] != (i < end))
      FAIL ("the unit at %" PRIu64 " %s", at, own[at] ? "was copied in vain"
            : "was not copied");
  }
  free (own);
}

/* --- streams --- */

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
stream_top (struct streaming *x)
{
  const struct stream_watch w = { .step = step, .fails = stream_fails, .opaque = x };
  struct trial *const t = x->t;
  struct stream *s = stream_new (x->disk, 0, t->base, t->base ? t->to.name : NULL);
  int r = -1;

  if (s && stream_copy (s, &w) == 0) {
    interrupt_more_cuts (&t->interrupt);
    r = stream_finish (s);
  }
  stream_free (s);
  return r;
}

static int
stream_as_writer (void *opaque)
{
  struct streaming *x = opaque;
  bool writable = true;
  int r;

  if (disk_connect (x->disk, &writable) == -1)
    return -1;
  CHECK (writable);
  r = stream_top (x);
  KEEP_ERRNO_FOR_BLOCK;
  return disk_disconnect (x->disk, true) == -1 ? -1 : r;
}

static int
stream (struct trial *t, const struct disk_options *o, const struct chunks_watch *watch)
{
  const struct disk_options reached = reach_disk (o);
  struct streaming x = { .t = t, .disk = change_open (&reached), .watch = watch };
  const struct disk_inside in = x.disk ? disk_inside (x.disk)
    : (struct disk_inside) { NULL };

  if (x.disk && layers_count (in.view->layers) > (t->base ? 2 : 1)) {
    if (chunks_tell (watch, 0, in.view->size, 0))
      return change_close (x.disk, writer_use (&t->writer, x.disk, t->interrupt.cutting,
                                               stream_as_writer, &x));
    errno = EINTR;
    return change_close (x.disk, -1);
  }
  return change_close (x.disk, x.disk ? 0 : -1);
}

static int
make_change (struct trial *t, const struct disk_options *o,
             const struct chunks_watch *watch)
{
  uint64_t copied;

  return t->streams ? stream (t, o, watch) : change_rebase (o, &t->to, watch, &copied);
}

/* What the disk shows now: a client may have written before. */
static void
begin_writer (struct trial *t, const struct blob *b)
{
  writer_begin (&t->writer, writer_shown (b, survivor_names (b, t->to.name) ? &t->new
                                          : &t->old));
}

/* Somebody finds what is left, and begins again. */
static void
rebase_again (void *opaque, const struct remains *left)
{
  struct trial *const first = opaque;
  /* (Not all of it: other threads still use some.) */
  struct trial t = {
    .spec = first->spec, .to = first->to, .streams = first->streams, .base = first->base,
    .from = first->from, .contents = first->contents, .old = first->old,
    .new = first->new, .had = first->had, .has_bitmap = first->has_bitmap,
    .pushed = first->pushed, .buf = first->buf,
    .interrupt.cutting = first->interrupt.cutting,
  };
  const unsigned long leaks = survivor_check (left->file, true, left->when);
  struct disk_options options = first->options;
  struct blob after;
  int r;

  t.writer = (struct writer) { .spec = t.spec, .idle = true };
  begin_writer (&t, left->file);
  t.has_bitmap &= first->writer.idle;
  blob_save (SURVIVOR, left->file);
  if (rng_below (&first->interrupt.power.rng, 4) == 0) {
    r = image_check (SURVIVOR);
    if (r != 0 && r != 3)
      FAIL ("qemu-img check of what is left: exit status %d", r);
  }
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (make_change (&t, &options, NULL) == -1)
    FAIL ("what is left can't be rebased: %m (%s)", last_error ());
  blob_load (SURVIVOR, &after);
  if (!survivor_names (&after, t.to.name))
    FAIL ("what is left has been rebased, but is not");
  judge_file (&t, &after, true, "rebased again");
  if (!t.streams)
    check_written (&t, &after);
  if (survivor_check (&after, true, "rebased again") > leaks)
    FAIL ("%lu leaks have become more", leaks);
  if (rng_below (&first->interrupt.power.rng, 4) == 0 &&
      !image_shows (SURVIVOR, NULL, &t.writer.image.initial))
    FAIL ("qemu-img convert reads something else in the end");
  blob_free (&after);
  writer_free (&t.writer);
  free ((char *) options.path);
}

static void
judge (void *opaque, const struct remains *left, bool leaks_allowed)
{
  struct trial *const t = opaque;

  judge_file (t, left->file, leaks_allowed, left->when);
  if (left->done && !survivor_names (left->file, t->to.name))
    FAIL ("%s: not rebased", left->when);
  if (left->done && left->kind == CUT_ALL && !t->streams)
    check_written (t, left->file);
}

/* --- runs --- */

static int
rebase (void *opaque, const struct storage_hooks *hooks,
        const struct chunks_watch *watch)
{
  struct trial *t = opaque;
  const bool spared = shortage_spare (true);
  struct blob file;

  blob_load (IMAGE, &file);
  begin_writer (t, &file);
  blob_free (&file);
  shortage_spare (spared);
  t->options.hooks = hooks;
  return make_change (t, &t->options, watch);
}

/* A raw file that differs from OLD here and there, and is longer or shorter. */
static void
make_other (struct trial *t, struct rng *rng)
{
  const struct image_spec raw = {
    .raw = true, .size = 512 * (1 + rng_below (rng, t->spec.size * 3 / 2 / 512)),
  };
  struct blob b = { .data = calloc (1, raw.size), .len = raw.size };

  CHECK (b.data != NULL);
  if (t->old.len > 0)
    memcpy (b.data, t->old.data, min64 (b.len, t->old.len));
  blob_save (OTHER, &b);
  blob_free (&b);
  image_remember (OTHER, &raw);
  image_fill (OTHER, &raw, rng, rng_below (rng, 6));
}

/* An image over OLD. */
static void
make_between (struct trial *t, struct rng *rng)
{
  struct image_spec mid = {
    .version = 3, .cluster_size = 4096 << 4 * rng_below (rng, 2), .refcount_bits = 16,
    .size = 512 * (1 + rng_below (rng, t->spec.size * 3 / 2 / 512)), .backing = OLD,
    .backing_raw = true,
  };

  image_create (BETWEEN, &mid);
  image_fill (BETWEEN, &mid, rng, rng_below (rng, 6));
}

/* The contents of the files below, as far as the disk shows them. */
static void
contents_of (const char *name, struct blob *b)
{
  *b = (struct blob) { NULL, 0 };
  if (name == NULL)
    b->data = calloc (1, 1);
  else if (strcmp (name, BETWEEN) == 0)
    image_contents (name, NULL, b);
  else
    blob_load (name, b);
}

static char *
name_in_header (const char *name)
{
  return name ? reach_backing_in_header (name) : strdup ("");
}

static void
choose_chains (struct trial *t, struct rng *rng)
{
  struct image_spec *const spec = &t->spec;
  const char *to = OTHER;

  image_over_raw (spec, rng, 512 * (1 + rng_below (rng, spec->size * 3 / 2 / 512)), 8,
                  &t->old);
  switch (rng_below (rng, 5)) {
  case 0:
    to = NULL;
    t->streams = rng_below (rng, 4) > 0;
    break;
  case 1:
    make_between (t, rng);
    to = BETWEEN;
    break;
  case 2:
    make_between (t, rng);
    spec->backing = BETWEEN;
    spec->backing_raw = false;
    to = OLD;
    t->streams = rng_below (rng, 4) > 0;
    t->base = 2;
    break;
  case 3:
    spec->backing = NULL;
    t->old.len = 0;
    /* fall through */
  default:
    make_other (t, rng);
  }
  free (t->old.data);
  contents_of (spec->backing, &t->old);
  contents_of (to, &t->new);
  t->from = name_in_header (spec->backing);
  t->to.name = name_in_header (to);
  t->to.format = to == NULL ? NULL : strcmp (to, BETWEEN) == 0 ? "qcow2" : "raw";
}

/* Is there space for the new name?  If not, that is refused at once. */
static bool
fits (const struct trial *t)
{
  struct disk_options options = t->options;
  struct blob before, after;
  uint64_t copied;
  int r;

  blob_load (IMAGE, &before);
  blob_save (SURVIVOR, &before);
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  r = change_rebase (&options, &t->to, NULL, &copied);
  if (r == -1) {
    CHECK (errno == ENOSPC && copied == 0);
    blob_load (SURVIVOR, &after);
    CHECK (blob_same (&before, &after));
    blob_free (&after);
    nr_refused++;
  }
  blob_free (&before);
  free ((char *) options.path);
  return r == 0;
}

static void
make_trial (struct trial *t, struct rng *rng)
{
  struct image_spec *spec = &t->spec;
  struct blob file;

  interrupt_choose_image (spec, rng, 6000);
  choose_chains (t, rng);
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
  blob_load (IMAGE, &file);
  t->had = malloc (spec->size);
  CHECK (t->had != NULL);
  checker_own (&file, t->had, spec->size);
  blob_free (&file);

  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 2),
  };
  t->writer = (struct writer) {
    .spec = *spec, .trims = t->options.discard, .seed = rng_next (rng),
    .idle = !t->streams || rng_below (rng, 4) == 0,
  };
  nr_in_use += !t->writer.idle;
  t->interrupt = (struct interrupt) {
    .power = { .path = t->options.path },
    .opaque = t, .change = rebase, .judge = judge, .again = rebase_again,
  };
  printf ("%u: ", trials_number);
  image_print (spec);
  printf ("%s%s%s, extension of %" PRIu64 " bytes, from \"%s\" to \"%s\"\n",
          !t->streams ? "" : t->writer.idle ? ", streamed" : ", streamed in use",
          spec->compressed ? ", compressed" : "", t->has_bitmap ? ", bitmap" : "", t->pushed,
          t->from, t->to.name);
  fflush (stdout);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .has_bitmap = false };

  quiet_errors = true;          /* they are what we want */
  make_trial (&t, rng);
  if (fits (&t))
    interrupt_everywhere (&t.interrupt, rng);

  writer_free (&t.writer);
  blob_free (&t.contents);
  free (t.from);
  free ((char *) t.to.name);
  blob_free (&t.old);
  blob_free (&t.new);
  free (t.buf);
  free (t.had);
  free ((char *) t.options.path);
}

int
main (void)
{
  const unsigned done = trials_run ("rebase", 5, 1, one_image);

  printf ("%u images (%u in use), %u power cuts, %u judged over their new backing file, "
          "%u rebased again, %u failures, %u times no memory, "
          "%u without space in the header\n", done, nr_in_use, power_cuts.cuts, nr_moved,
          interrupts.again, interrupts.failures, power_cuts.shortages, nr_refused);
  return 0;
}
