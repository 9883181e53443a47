/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a disk that moves to another image (mirror), or to its own backing file
 * (a commit that follows), if the power is cut, at any moment, or if any operation on one
 * of the two files, or an allocation, fails?
 *
 * A client writes, zeroes and flushes while the disk is copied, in small steps, and goes
 * on after it has moved.  Until the move is answered, the old image is the disk: it shows
 * what was flushed, and of what was not, each sector is old or new.  Afterwards the new
 * image is the disk, and the old one shows the instant of the move, without leaks (unless
 * it lies over the new one).  Neither image ever has faults.  If the move fails, the
 * client goes on with the old image.  What the headers name never keeps both from being
 * written, nor the old one before the new one is the disk, and does so afterwards; also
 * if there were such names before, of which nothing was true.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many disks (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "image/overlayref.h"
#include "change/commit.h"
#include "change/mirror.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/powercut.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/checker.h"
#include "lib/trials.h"

#define OLD "old.qcow2"
#define NEW "new.qcow2"
#define MOST (UINT64_C (768) << 10)     /* bytes of a disk */

#define FAULTS 12               /* of each disk, in changes and in reads */

#define CHANGES (1u << STORAGE_OP_WRITE | 1u << STORAGE_OP_SYNC | 1u << STORAGE_OP_PUNCH | \
                 1u << STORAGE_OP_TRUNCATE | 1u << STORAGE_OP_ALLOCATE)

struct trial {
  struct power_cut_trial power;
  struct image_spec old, new;
  bool down;                    /* the new image is the old one's backing file */
  struct blob below;            /* otherwise: what the old one lies over */
  struct disk_options options;
  uint64_t seed;                /* of the client: the same each time */
  bool guarded;                 /* at first the new image may not be written, because it
                                   names the old one */

  /* While it is made: */
  struct disk *disk;
  struct export *client;
  struct rng rng;
  bool moved;
  bool failed;                  /* one of the client's own requests */
  unsigned char flushed[MOST];  /* what a power cut must leave, ... */
  unsigned char now[MOST];      /* ... or this, in each sector */
  unsigned char instant[MOST];  /* when it moved */
};

static unsigned nr_moved, nr_stayed, nr_cut_before, nr_cut_after, nr_down, nr_refused;

/* --- the client --- */

static int
flush (struct trial *t)
{
  if (export_flush (t->client) == -1)
    return -1;
  memcpy (t->flushed, t->now, t->old.size);
  return 0;
}

/* In one half of the disk: so a sector is written once between two flushes. */
static int
write_some (struct trial *t, unsigned half)
{
  const uint64_t share = t->old.size / 1024, len = 512 * (1 + rng_below (&t->rng, 100));
  const uint64_t at = 512 * (half * share + rng_below (&t->rng, share - len / 512 + 1));
  const int value = rng_below (&t->rng, 3) ? 1 + rng_below (&t->rng, 255) : 0;

  memset (t->now + at, value, len);
  return value ? export_write (t->client, t->now + at, len, at, false)
    : export_zero (t->client, len, at, REQUEST_MAY_TRIM, false);
}

static int
write_and_flush (struct trial *t, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (write_some (t, 0) == -1 || (rng_below (&t->rng, 2) && flush (t) == -1) ||
        write_some (t, 1) == -1 || flush (t) == -1) {
      t->failed = true;
      return -1;
    }
  return 0;
}

/* --- the move --- */

static int
copy (struct trial *t, struct follow *f)
{
  uint64_t copied;
  int r = 1;

  for (unsigned i = 0; r == 1 || i < 4; i++)
    if (write_and_flush (t, i < 4) == -1 ||
        (r = follow_step (f, 64 << 10, &copied)) == -1)
      return -1;
  return 0;
}

static void
note_move (struct trial *t)
{
  memcpy (t->instant, t->now, t->old.size);
  t->moved = true;
}

static int
move_to (struct trial *t, struct image *image)
{
  const struct mirror_options o = {
    .target = { .image = image, .backing = BACKING_IGNORE },
  };
  struct mirror *m;
  int r;

  if (mirror_begin (t->disk, &o, &m) == -1)
    return -1;
  r = copy (t, mirror_follow (m));
  if (r == 0 && rng_below (&t->rng, 2))
    mirror_announce (m);
  if (r == 0)
    r = mirror_pivot (m);
  if (r == 0)
    note_move (t);
  KEEP_ERRNO_FOR_BLOCK;
  mirror_end (m);
  return r;
}

static int
move_down (struct trial *t)
{
  static const struct commit_layers layers = { .base = 1, .follows = true };
  struct commit *c = commit_new (t->disk, &layers);
  int r = c ? commit_begin (c) : -1;

  if (r == 0)
    r = copy (t, commit_follow (c));
  if (r == 0)
    r = commit_pivot (c);
  if (r == 0)
    note_move (t);
  KEEP_ERRNO_FOR_BLOCK;
  commit_free (c);
  return r;
}

static int
move_aside (struct trial *t)
{
  struct disk_options o = t->options;
  struct image *image;
  int r = -1;

  o.path = t->power.data_path;
  o.backing = BACKING_IGNORE;
  image = disk_open_image (&o);
  if (image && image_load (image) == 0 && image_read_snapshots (image) == 0)
    r = move_to (t, image);
  KEEP_ERRNO_FOR_BLOCK;
  image_close (image);
  return r;
}

static int
move_disk (struct trial *t)
{
  const int r = t->down ? move_down (t) : move_aside (t), err = errno;

  /* Whether it has moved or not, the client goes on. */
  if (!t->failed && write_and_flush (t, 3) == -1)
    return -1;
  errno = err;
  return r;
}

static int
use_disk (struct trial *t)
{
  int r, err;

  t->client = export_open (t->disk, "", true);
  if (t->client == NULL)
    return -1;
  r = export_is_writable (t->client) ? write_and_flush (t, 2) : -1;
  if (r == 0)
    r = move_disk (t);
  err = errno;
  if (export_close (t->client) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  errno = err;
  return r;
}

/* What the image shows, over BELOW or by itself. */
static struct blob
show (const struct blob *file, const struct blob *below)
{
  struct blob b = { .len = blob_get (file, 24, 8) };

  b.data = malloc (b.len);
  CHECK (b.data && checker_read (file, below, b.data, b.len) == 0);
  return b;
}

static void
load (struct trial *t)
{
  struct blob old, new, below = { .data = NULL };

  blob_load (OLD, &old);
  blob_load (NEW, &new);
  if (t->down)
    below = show (&new, NULL);
  CHECK (checker_read (&old, t->down ? &below : &t->below, t->now, t->old.size) == 0);
  blob_free (&old);
  blob_free (&new);
  blob_free (&below);
}

static int
run (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  const bool spared = shortage_spare (true);
  int r, err;

  load (t);
  shortage_spare (spared);
  memcpy (t->flushed, t->now, t->old.size);
  t->moved = t->failed = false;
  rng_init (&t->rng, t->seed, 3);
  t->options.hooks = hooks;
  if (disk_open (&t->options, &t->disk) == -1)
    return -1;
  r = use_disk (t);
  err = errno;
  if (disk_close (t->disk) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  nr_moved += t->moved;
  nr_stayed += !t->moved;
  errno = err;
  return r;
}

/* --- judging --- */

/* Is each sector as in one of these two? */
static void
check_sectors (const struct trial *t, const struct blob *file, const struct blob *below,
               const unsigned char *a, const unsigned char *b, const char *when)
{
  struct blob shown = show (file, below);

  if (shown.len < t->old.size)
    survivor_fail (file, "%s: it is too short", when);
  for (uint64_t at = 0; at < t->old.size; at += 512)
    if (memcmp (shown.data + at, a + at, 512) != 0 &&
        memcmp (shown.data + at, b + at, 512) != 0)
      survivor_fail (file, "%s: the sector at %" PRIu64 " of the %s image is neither what "
                     "was flushed nor what was written", when, at,
                     below ? "old" : "new");
  blob_free (&shown);
}

static struct header
header_of (const struct blob *b, const char *name)
{
  struct header h;

  CHECK (header_parse (name, b->data, b->len, b->len, &h) == 0);
  return h;
}

static bool
is_guarded (const struct trial *t, const struct header *old, const struct header *new)
{
  return new->overlay && (t->down || old->origin);
}

static void
judge_names (const struct trial *t, const struct remains *left)
{
  struct header old = header_of (left->file, OLD), new = header_of (left->data, NEW);
  const bool refused = old.overlay && new.origin, fails = left->fault || left->shortage;

  if (refused && new.overlay)
    survivor_fail (left->file, "%s: neither image can be written", left->when);
  if (refused || (t->guarded && !fails && !is_guarded (t, &old, &new)))
    check_sectors (t, left->data, NULL, t->flushed, t->now, left->when);
  if (t->moved && (new.overlay || (!refused && !fails)))
    survivor_fail (left->file, "%s: the old image can be written", left->when);
  nr_refused += refused;
  header_free (&old);
  header_free (&new);
}

static void
judge (void *opaque, const struct remains *left)
{
  const struct trial *t = opaque;
  struct blob below;

  judge_names (t, left);
  survivor_check (left->file, !t->moved || left->shortage, left->when);
  survivor_check (left->data, true, left->when);
  if (t->moved) {
    if (!t->down)
      check_sectors (t, left->file, &t->below, t->instant, t->instant, left->when);
    check_sectors (t, left->data, NULL, t->flushed, t->now, left->when);
  }
  else if (t->down) {
    below = show (left->data, NULL);
    check_sectors (t, left->file, &below, t->flushed, t->now, left->when);
    blob_free (&below);
  }
  else
    check_sectors (t, left->file, &t->below, t->flushed, t->now, left->when);
  nr_down += t->down && t->moved;
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

static struct image_spec
choose_image (struct rng *rng, uint64_t size)
{
  struct image_spec spec = {
    .version = 2 + (rng_below (rng, 4) > 0), .cluster_size = 512u << rng_below (rng, 8),
    .refcount_bits = 16, .size = size,
  };

  spec.extended = spec.version == 3 && spec.cluster_size >= 16384 && rng_below (rng, 3) == 0;
  return spec;
}

/* As if the disk had moved before, in this direction or back. */
static void
name_others (struct trial *t, struct rng *rng, const char *old, const char *new)
{
  const struct storage_options writable = { .try_writable = true };
  struct image *o = image_open_file (old, &writable), *n = image_open_file (new, &writable);
  const unsigned how = rng_below (rng, 4);

  CHECK (o && n && image_read_header (o) == 0 && image_read_header (n) == 0);
  if (how & 1)
    CHECK (overlayref_set (n, old, false) == 1);
  if (how == 1)
    overlayref_announce (o, new);
  if (how == 1 || how == 3)
    overlayref_announce (n, old);
  if (how == 2)
    CHECK (overlayref_set (o, new, false) == 1);
  image_close (o);
  image_close (n);
  o = image_open_file (old, &writable);
  n = image_open_file (new, &writable);
  CHECK (o && n && image_read_header (o) == 0 && image_read_header (n) == 0);
  /* (There may be no space for a name.) */
  t->guarded = is_guarded (t, &o->header, &n->header);
  image_close (o);
  image_close (n);
}

static void
trial (struct rng *rng)
{
  const uint64_t size = MOST - 512 * rng_below (rng, 300);
  struct trial *t = calloc (1, sizeof *t);
  CLEANUP_FREE char *old = images_path (OLD), *new = images_path (NEW);

  CHECK (t);
  t->old = choose_image (rng, size);
  t->new = choose_image (rng, size);
  t->down = t->old.version == 3 && rng_below (rng, 2);
  if (t->down) {
    t->new.size = size + 512 * rng_below (rng, 200) - 512 * 100;
    t->old.backing = NEW;
  }
  else
    image_over_raw (&t->old, rng, size, 6, &t->below);
  image_create (NEW, &t->new);
  if (t->down || rng_below (rng, 2))
    image_fill (NEW, &t->new, rng, 4);
  image_create (OLD, &t->old);
  image_fill (OLD, &t->old, rng, 6);
  name_others (t, rng, old, new);
  image_print (&t->old);
  printf (t->down ? " over " : " -> ");
  image_print (&t->new);
  printf ("\n");
  t->seed = rng_next (rng);
  t->options = (struct disk_options) {
    .path = old, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .discard = rng_below (rng, 2),
  };
  t->power = (struct power_cut_trial) {
    .path = old, .data_path = new, .opaque = t, .rng = *rng, .change = run,
    .can_fail = CHANGES, .cuts = choose_cuts, .judge = judge,
  };
  power_cut_everywhere (&t->power);
  power_cut_fail_some (&t->power, CHANGES, t->power.operations, FAULTS);
  power_cut_fail_some (&t->power, 1 << STORAGE_OP_READ, t->power.reads, FAULTS);
  power_cut_fail_memory (&t->power);
  blob_free (&t->below);
  free (t);
}

int
main (void)
{
  const unsigned n = trials_run ("mirror", 5, 1, trial);

  printf ("%u disks, moved %u times, stayed %u times; %u power cuts before, %u after "
          "(%u in the backing file; old image refused %u times); %u faults\n", n, nr_moved,
          nr_stayed, nr_cut_before, nr_cut_after, nr_down, nr_refused, power_cuts.faults);
  CHECK (nr_moved > 0 && nr_cut_before > 0 && nr_cut_after > 0 &&
         (nr_stayed > 0 || power_cuts.faults < 8));
  return 0;
}
