/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a disk show the same while, and after, data of the layers below is copied into its
 * top image, or into one of its layers, with clients that use it?
 *
 * Random chains of up to four layers: of both versions, with all kinds of clusters, with
 * zeros over data, longer and shorter than those below.  Several threads write, zero,
 * trim, flush and read.  Meanwhile a layer is streamed over one below it, or over none:
 * in pieces, with stops in the middle, with reads and writes that fail, and with bitmaps
 * that come and go.  Then the disk has those layers that it should, which the headers
 * name, and shows the same, also to qemu-img.  The files that have gone are not needed.
 *
 * Environment: SEED repeats a run (but not the order of threads); ITERATIONS: how many
 * chains (default: as many as are possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "change/bitmapedit.h"
#include "change/stream.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/trials.h"

#define THREADS 3
#define MOST_LAYERS 4

static const char *const names[MOST_LAYERS] = { "top", "one", "two", "three" };

struct trial {
  struct rng rng;
  struct image_spec specs[MOST_LAYERS];
  unsigned n;                   /* layers; and those that are left */
  unsigned left[MOST_LAYERS], nr_left;
  uint64_t total;               /* bytes to look at */
  unsigned char *model;
  uint64_t size;
  bool has_bitmaps;
  struct disk *disk;
  atomic_bool ends;
  atomic_uint next_share;
  atomic_uint faults;           /* operations that fail */
  unsigned steps;
};

static struct trial *now;       /* for the hook */
static unsigned nr_again, nr_below, nr_faults, nr_bitmaps;

/* --- clients --- */

static void
trim (struct trial *t, struct export *e, uint64_t len, uint64_t at)
{
  CLEANUP_FREE unsigned char *got = malloc (len);
  unsigned char *const p = t->model + at;

  CHECK (got && export_trim (e, len, at, false) == 0);
  CHECK (export_read (e, got, len, at) == 0);
  for (uint64_t i = 0; i < len; i++)
    if (got[i] != 0 && got[i] != p[i])
      FAIL ("after a trim, the byte at %" PRIu64 " is %u, not %u", at + i, got[i], p[i]);
  memcpy (p, got, len);
}

static void
use (struct trial *t, struct export *e, struct rng *rng, uint64_t from, uint64_t share)
{
  const uint64_t len = 512 * (1 + rng_below (rng, min64 (300, share / 512)));
  const uint64_t at = from + 512 * rng_below (rng, (share - len) / 512 + 1);
  CLEANUP_FREE unsigned char *got = malloc (len);
  unsigned char *const p = t->model + at;

  CHECK (got != NULL);
  switch (rng_below (rng, 8)) {
  case 0:
    memset (p, 0, len);
    CHECK (export_zero (e, len, at, rng_below (rng, 2) ? REQUEST_MAY_TRIM : 0,
                        false) == 0);
    break;
  case 1: case 2:
    trim (t, e, len, at);
    break;
  case 3:
    CHECK (export_flush (e) == 0);
    break;
  case 4: case 5:
    CHECK (export_read (e, got, len, at) == 0);
    if (memcmp (got, p, len) != 0)
      FAIL ("[%" PRIu64 ", %" PRIu64 ") is wrong", at, at + len);
    break;
  default:
    memset (p, rng_below (rng, 8) ? 1 + rng_below (rng, 255) : 0, len);
    CHECK (export_write (e, p, len, at, false) == 0);
  }
}

static void *
client (void *opaque)
{
  struct trial *t = opaque;
  const uint64_t share = round_down (t->size / THREADS, 512);
  const uint64_t from = share * t->next_share++;
  struct export *e = export_open (t->disk, "", true);
  struct rng rng;

  rng_init (&rng, trials_seed + trials_number, 50 + from);
  CHECK (e && export_is_writable (e));
  while (!t->ends)
    use (t, e, &rng, from, share);
  CHECK (export_close (e) == 0);
  return NULL;
}

/* --- streams --- */

static __thread bool streams;   /* this thread does */

/* Only what the stream does fails. */
static int
fail_some (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
           int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (!streams || now->faults == 0 ||
      (op == STORAGE_OP_READ ? rng_below (&now->rng, 2) : op != STORAGE_OP_ALLOCATE))
    return 0;
  now->faults--;
  nr_faults++;
  errno = op == STORAGE_OP_READ ? EIO : ENOSPC;
  return -1;
}

static void
change_bitmaps (struct trial *t)
{
  const struct bitmapedit add = { .what = BITMAP_ADD, .name = "b" };
  const struct bitmapedit remove = { .what = BITMAP_REMOVE, .name = "b" };

  CHECK (bitmapedit_disk (t->disk, &add, 1, NULL) == 0);
  CHECK (bitmapedit_disk (t->disk, &remove, 1, NULL) == 0);
  nr_bitmaps++;
}

static int
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  struct trial *t = opaque;

  CHECK (done <= total && total == t->total && copied <= total);
  streams = false;
  if (rng_below (&t->rng, 4) == 0)
    usleep (rng_below (&t->rng, 3000));
  if (t->has_bitmaps && rng_below (&t->rng, 10) == 0)
    change_bitmaps (t);
  if (rng_below (&t->rng, 8) == 0)
    t->faults = 1 + rng_below (&t->rng, 3);
  /* (A checkpoint that fails does so for the clients that wait for it, too.) */
  streams = done < total;
  errno = EINTR;
  return t->steps-- == 0 ? -1 : 0;
}

static int
fails (void *opaque, bool reads, int err)
{
  (void) opaque;
  if (err != (reads ? EIO : ENOSPC) && err != EIO)
    FAIL ("a piece fails: %s (%s)", strerror (err), last_error ());
  return 0;
}

/* LAYER over layer BASE. */
static void
stream_over (struct trial *t, unsigned layer, unsigned base)
{
  const struct stream_watch watch = { .step = step, .fails = fails, .opaque = t };
  struct stream *s;
  bool writable = true;
  int r = -1;

  if (layer == 0)
    CHECK (disk_connect (t->disk, &writable) == 0 && writable);
  for (unsigned tries = 0; r == -1; tries++) {
    t->steps = tries < 2 ? rng_below (&t->rng, 40) : UINT32_MAX;
    s = stream_new (t->disk, layer, base, NULL);
    if (s == NULL)
      FAIL ("it cannot begin: %s", last_error ());
    t->total = stream_size (s);
    streams = true;
    r = stream_copy (s, &watch);
    streams = false;
    t->faults = 0;
    if (r == 0)
      CHECK (stream_finish (s) == 0);
    else
      CHECK (errno == EINTR);
    stream_free (s);
    nr_again += tries > 0;
    nr_below += layer > 0;
  }
  if (layer == 0)
    CHECK (disk_disconnect (t->disk, true) == 0);
}

/* --- images --- */

static void
choose_spec (struct trial *t, unsigned i)
{
  static const unsigned bits[] = { 9, 12, 14, 16 };
  struct image_spec *const spec = &t->specs[i];
  struct rng *const rng = &t->rng;

  *spec = (struct image_spec) {
    .version = rng_below (rng, 3) ? 3 : 2,
    .cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)],
    .refcount_bits = 16,
    .compressed = rng_below (rng, 4) == 0,
    .size = i == 0 || rng_below (rng, 2) ? t->size
      : 512 * (1 + rng_below (rng, t->size * 5 / 4 / 512)),
    .backing = i + 1 < t->n ? names[i + 1] : NULL,
  };
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->raw = i > 0 && i + 1 == t->n && rng_below (rng, 2);
  if (spec->raw)
    *spec = (struct image_spec) { .raw = true, .size = spec->size };
  else if (i + 2 == t->n)
    spec->backing_raw = t->specs[i + 1].raw;
}

static void
make_images (struct trial *t)
{
  struct blob b;

  for (unsigned i = t->n; i-- > 0; ) {
    choose_spec (t, i);
    image_create (names[i], &t->specs[i]);
    image_fill (names[i], &t->specs[i], &t->rng, rng_below (&t->rng, i ? 20 : 6));
  }
  t->has_bitmaps = t->specs[0].version == 3;
  image_contents (names[0], NULL, &b);
  CHECK (b.len == t->size);
  t->model = b.data;
}

static bool
is_left (const struct trial *t, unsigned i)
{
  for (unsigned k = 0; k < t->nr_left; k++)
    if (t->left[k] == i)
      return true;
  return false;
}

/* The files that have gone are not there when the others are looked at. */
static void
check_images (const struct trial *t)
{
  const struct blob shown = { .data = t->model, .len = t->size };

  for (unsigned i = 0; i < t->n; i++)
    if (!is_left (t, i))
      CHECK (unlink (names[i]) == 0);
  for (unsigned i = 0; i < t->n; i++)
    if (is_left (t, i) && !t->specs[i].raw && image_check (names[i]) != 0)
      FAIL ("%s is not clean", names[i]);
  if (!image_shows (names[0], NULL, &shown))
    FAIL ("qemu-img reads something else in the end");
}

/* Some layer over one of those below it, or over none. */
static void
stream_some (struct trial *t)
{
  const unsigned qcow = t->nr_left - t->specs[t->left[t->nr_left - 1]].raw;
  const unsigned layer = rng_below (&t->rng, 2) ? rng_below (&t->rng, qcow) : 0;
  const unsigned below = t->nr_left - layer - 1;
  const unsigned base = below > 0 && rng_below (&t->rng, 3)
    ? layer + 1 + rng_below (&t->rng, below) : 0;
  const unsigned end = base > 0 ? base : t->nr_left;

  stream_over (t, layer, base);
  memmove (t->left + layer + 1, t->left + end, (t->nr_left - end) * sizeof *t->left);
  t->nr_left -= end - layer - 1;
  CHECK (layers_count (disk_inside (t->disk).view->layers) == t->nr_left);
}

static void
one_chain (struct rng *rng)
{
  static const struct storage_hooks hooks = { .before = fail_some };
  struct trial t = { .n = 2 + rng_below (rng, MOST_LAYERS - 1) };
  struct disk_options options = {
    .l2_cache = rng_below (rng, 2) ? 32 << 20 : 0, .l2_slice = 512, .lock = true,
    .discard = rng_below (rng, 4) > 0, .backing = BACKING_FOLLOW, .hooks = &hooks,
    .copy_on_read = rng_below (rng, 3) == 0,
  };
  CLEANUP_FREE char *path = images_path (names[0]);
  pthread_t threads[THREADS];

  quiet_errors = true;          /* of the faults */
  now = &t;
  rng_init (&t.rng, rng_next (rng), 9);
  t.size = 512 * (THREADS * 10 + rng_below (rng, 6000));
  make_images (&t);
  printf ("%u: %u layers, ", trials_number, t.n);
  image_print (&t.specs[0]);
  printf ("\n");
  fflush (stdout);
  for (t.nr_left = 0; t.nr_left < t.n; t.nr_left++)
    t.left[t.nr_left] = t.nr_left;
  options.path = path;
  CHECK (disk_open (&options, &t.disk) == 0);
  for (unsigned i = 0; i < THREADS; i++)
    CHECK (pthread_create (&threads[i], NULL, client, &t) == 0);
  do
    stream_some (&t);
  while (t.nr_left > 1 && rng_below (&t.rng, 3));
  usleep (rng_below (rng, 5000));
  t.ends = true;
  for (unsigned i = 0; i < THREADS; i++)
    CHECK (pthread_join (threads[i], NULL) == 0);
  CHECK (disk_close (t.disk) == 0);
  check_images (&t);
  for (unsigned i = 0; i < t.n; i++)
    unlink (names[i]);
  free (t.model);
}

int
main (void)
{
  const unsigned done = trials_run ("stream", 5, 2, one_chain);

  printf ("%u chains, %u times again, %u below the top, %u faults, %u changes of bitmaps\n",
          done, nr_again, nr_below, nr_faults, nr_bitmaps);
  return 0;
}
