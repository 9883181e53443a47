/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is an image created on a device completely or not at all?
 *
 * The device contains zeros (with or without holes), an older image, or anything.  While
 * a random image is created there, the power is cut at every operation, and each
 * operation fails once, and some allocations; and the user stops it; and it is withdrawn
 * again, in which something fails.
 * What is left is the old image, untouched; no image; or the new one, without faults or
 * leaks, whose disk reads as zeros.  It is the new one once that was reported.  A failure
 * on a device that had zeros leaves zeros.
 *
 * The device is a file that the functions below call a block device.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "change/create.h"
#include "change/newimage.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define DEVICE "device"
#define DEVICE_SIZE (UINT64_C (1) << 20)

static ino_t device_ino;

static void
pretend (struct stat *st)
{
  if (st->st_ino == device_ino)
    st->st_mode = S_IFBLK | 0600;
}

int
stat (const char *path, struct stat *st)
{
  const int r = fstatat (AT_FDCWD, path, st, 0);

  pretend (st);
  return r;
}

int
fstat (int fd, struct stat *st)
{
  const int r = fstatat (fd, "", st, AT_EMPTY_PATH);

  pretend (st);
  return r;
}

struct trial {
  struct create_options options;
  struct newimage plan;
  unsigned char first[512];     /* of the new image */
  struct blob old, zeros;       /* zeros: the disk */
  bool old_image;
  bool solid;                   /* the device has no holes */
  unsigned steps, stop_at;      /* of the progress; 0: it is not stopped */
  struct power_cut_trial power;
};

static unsigned whole, none, untouched;

static int
step (void *opaque, uint64_t done, uint64_t total)
{
  struct trial *t = opaque;

  CHECK (t->steps == 0 || done <= total);
  if (++t->steps != t->stop_at)
    return 0;
  errno = EINTR;
  return -1;
}

static int
change (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  struct created *created;

  t->options.file.hooks = hooks;
  t->steps = 0;
  if (create_image (&t->options, &created) == -1)
    return -1;
  created_keep (created);
  return 0;
}

static void
judge (void *opaque, const struct remains *r)
{
  struct trial *t = opaque;
  const struct blob *b = r->file;

  if (memcmp (b->data, t->first, sizeof t->first) == 0) {
    survivor_check (b, false, r->when);
    if (!survivor_shows (b, NULL, &t->zeros))
      survivor_fail (b, "%s: the new disk contains old data", r->when);
    whole++;
    return;
  }
  if (r->done)
    survivor_fail (b, "%s: there is no image", r->when);
  if (blob_get (b, 0, 4) != 0x514649fb)
    none++;
  else if (t->old_image && blob_same (b, &t->old))
    untouched++;
  else
    survivor_fail (b, "%s: a part of the old image is left", r->when);
}

/* A failure on a device that had zeros, if nothing else fails, leaves zeros. */
static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;
  const struct blob *b = simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL);

  if (fault && !t->power.done && !t->options.overwrite && !t->power.lasting &&
      !bytes_are_zero (b->data, b->len))
    survivor_fail (b, "after a failure the device does not read as zeros");
}

/* The user stops it, at each step. */
static void
stop (struct trial *t)
{
  struct power_cut_trial *p = &t->power;
  unsigned steps;

  power_cut_begin (p, 0);
  p->cuts_left = 0;
  power_cut_change (p, NULL);
  power_cut_end (p);
  steps = t->steps;
  for (t->stop_at = 1; t->stop_at <= steps; t->stop_at++) {
    power_cut_begin (p, t->stop_at);
    p->cuts_left = 0;
    CHECK (change (t, simdisk_hooks (p->sim)) == -1 && errno == EINTR);
    p->fault = true;
    power_cut_now (p, CUT_NOTHING);
    ended (t, true);
    power_cut_now (p, CUT_ALL);
    power_cut_end (p);
  }
  t->stop_at = 0;
}

/* It is withdrawn again.  If something fails meanwhile, it may stay. */
static int
change_back (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  struct created *created;

  t->options.file.hooks = hooks;
  if (create_image (&t->options, &created) == -1)
    return -1;
  created_withdraw (created);
  return 0;
}

static void
judge_withdrawn (void *opaque, const struct remains *r)
{
  struct trial *t = opaque;
  struct remains left = *r;

  left.done = false;
  judge (t, &left);
  if (r->done && !r->fault && !r->shortage &&
      memcmp (r->file->data, t->first, sizeof t->first) == 0)
    survivor_fail (r->file, "%s: the image was not withdrawn", r->when);
}

static void
withdraw (struct trial *t)
{
  t->power.change = change_back;
  t->power.judge = judge_withdrawn;
  power_cut_everywhere (&t->power);
  power_cut_fail_each (&t->power);
}

static void
choose_image (struct trial *t, struct rng *rng)
{
  struct newimage_options *i = &t->options.image;
  uint64_t i_size;

  do {
    *i = (struct newimage_options) {
      .version = 2 + (rng_below (rng, 4) != 0), .refcount_bits = 16,
      .cluster_size = UINT64_C (512) << rng_below (rng, 8),
      .preallocation = rng_below (rng, 4),
    };
    i_size = rng_below (rng, 2) ? DEVICE_SIZE * 3 / 4 : 64 * i->cluster_size;
    i->size = round_up (1 + rng_below (rng, i_size), 512);
    i->extended_l2 = i->version == 3 && i->cluster_size >= 16384 && rng_below (rng, 2);
    CHECK (newimage_plan (i, &t->plan) == 0);
  } while (t->plan.file_size > DEVICE_SIZE);
  newimage_fill (&t->plan, 0, t->first, sizeof t->first);
  t->zeros = (struct blob) { calloc (1, i->size), i->size };
  CHECK (t->zeros.data != NULL);
}

/* What the device contains before. */
static void
choose_old (struct trial *t, struct rng *rng)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = UINT64_C (512) << rng_below (rng, 8),
    .refcount_bits = 16, .size = DEVICE_SIZE / 4,
  };
  struct blob image;

  t->old = (struct blob) { calloc (1, DEVICE_SIZE), DEVICE_SIZE };
  CHECK (t->old.data != NULL);
  t->options.overwrite = true;
  switch (trials_number % 4) {
  case 0:
    t->solid = trials_number % 8 == 0;
    t->options.overwrite = !t->solid && rng_below (rng, 2);
    break;
  case 1:
    for (uint64_t i = 0; i < DEVICE_SIZE; i++)
      t->old.data[i] = 1 + i / 512 % 255;
    break;
  default:
    unlink ("old.qcow2");
    image_create ("old.qcow2", &spec);
    image_fill ("old.qcow2", &spec, rng, 8);
    blob_load ("old.qcow2", &image);
    CHECK (image.len <= DEVICE_SIZE);
    memset (t->old.data, 0xee, DEVICE_SIZE);
    memcpy (t->old.data, image.data, image.len);
    blob_free (&image);
    t->old_image = true;
    break;
  }
}

/* Writes every byte of FILE. */
static void
fill_holes (const char *file, const struct blob *b)
{
  const int fd = open (file, O_WRONLY | O_CLOEXEC);

  CHECK (fd >= 0);
  CHECK (pwrite (fd, b->data, b->len, 0) == (ssize_t) b->len);
  close (fd);
}

static void
run_trial (struct rng *rng)
{
  struct trial t = {
    .options = { .path = images_path (DEVICE), .progress = step, .opaque = &t },
    .power = {
      .change = change, .judge = judge, .ended = ended,
      .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC | 1 << STORAGE_OP_PUNCH,
    },
  };
  struct stat st;

  choose_old (&t, rng);
  choose_image (&t, rng);
  printf ("%u: a disk of %" PRIu64 " bytes, clusters of %" PRIu64 ", preallocation %d, "
          "over %s%s\n", trials_number, t.options.image.size,
          t.options.image.cluster_size, t.options.image.preallocation,
          t.old_image ? "an image" : "no image",
          t.options.overwrite ? ", overwriting" : "");
  fflush (stdout);
  blob_save (DEVICE, &t.old);
  if (t.solid)
    fill_holes (DEVICE, &t.old);
  CHECK (fstatat (AT_FDCWD, DEVICE, &st, 0) == 0);
  device_ino = st.st_ino;
  t.power.path = t.options.path;
  t.power.opaque = &t;
  rng_init (&t.power.rng, rng_next (rng), 0);
  power_cut_everywhere (&t.power);
  power_cut_fail_each (&t.power);
  stop (&t);
  withdraw (&t);
  device_ino = 0;
  blob_free (&t.old);
  blob_free (&t.zeros);
  free ((char *) t.options.path);
}

int
main (void)
{
  trials_run ("create-device", 3, 4, run_trial);
  printf ("%u power cuts, %u failed operations, %u times no memory: "
          "%u times the new image, %u times none, %u times the old one\n",
          power_cuts.cuts, power_cuts.faults, power_cuts.shortages, whole, none,
          untouched);
  CHECK (whole > 0 && none > 0);
  return 0;
}
