/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare= finds the first sector in which two disks differ, also if several threads meet
 * other differences before, or something that cannot be read behind it; but not if that
 * lies before it.  Whichever operation of the host fails, whichever allocation
 * finds no memory, and whenever the user stops it, it either says the same, or there is
 * no report, and it says why and sets errno.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "change/compare.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"

/* Several threads have something to do. */
#define SIZE (UINT64_C (20) << 20)
#define SECTOR 512
/* What a thread takes at a time (chunks.c). */
#define CHUNK (UINT64_C (4) << 20)
#define ALLOCATIONS 60

static struct {
  struct disk *disk;
  struct disk_options options;
  struct compare compare;
  struct blob contents;
  uint64_t expected;            /* the difference */
  atomic_int countdown;         /* operations until one fails; < 0: none does */
  atomic_bool failed;
  uint64_t unreadable;          /* an offset in "other"; UINT64_MAX: none is */
  int steps;                    /* of the watch until it stops; < 0: it does not */
} t;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) dsync;
  CHECK (op == STORAGE_OP_READ);        /* nothing is changed */
  if (strcmp (path, t.compare.with) == 0 && t.unreadable >= offset &&
      t.unreadable - offset < count) {
    errno = EIO;
    return -1;
  }
  if (t.countdown < 0 || atomic_fetch_sub (&t.countdown, 1) != 0)
    return 0;
  t.failed = true;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static bool
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  (void) opaque;
  CHECK (done <= total && copied == 0);
  return t.steps < 0 || t.steps-- > 0;
}

/* Returns what the comparison returns. */
static int
compare (struct shortage shortage)
{
  const struct chunks_watch watch = { .step = step };
  const unsigned long told = error_count ();
  uint64_t difference;
  int r, err;

  CHECK (unlink ("report") == 0 || errno == ENOENT);
  CHECK (compare_check (&t.compare) == 0);
  shortage_begin (shortage);
  errno = 0;
  r = compare_disk (t.disk, &t.options, &t.compare, &watch, &difference);
  err = errno;
  shortage_end ();
  if (r == 0)
    CHECK (difference == t.expected && access ("report", F_OK) == 0);
  else
    CHECK (err != 0 && error_count () > told && access ("report", F_OK) == -1);
  errno = err;
  return r;
}

/* --- another disk --- */

/* OTHER is saved as "other"; it differs from the disk as the two blobs do. */
static void
expect (const struct blob *other)
{
  const uint64_t longest = other->len > t.contents.len ? other->len : t.contents.len;
  uint64_t i;

  blob_save ("other", other);
  for (i = 0; i < longest; i++)
    if ((i < other->len ? other->data[i] : 0) !=
        (i < t.contents.len ? t.contents.data[i] : 0))
      break;
  t.expected = i == longest ? UINT64_MAX : i / SECTOR * SECTOR;
}

/* The same disk with N different bytes, and another size. */
static void
other_disk (struct rng *rng, unsigned n, uint64_t size)
{
  struct blob other = blob_resized (&t.contents, size);

  for (unsigned i = 0; i < n; i++)
    other.data[rng_below (rng, size)] += 1 + rng_below (rng, 255);
  expect (&other);
  blob_free (&other);
}

static void
find_differences (struct rng *rng)
{
  for (unsigned n = 0; n < 12; n++) {
    other_disk (rng, n < 2 ? n : 1 + rng_below (rng, 40),
                n % 3 ? SIZE : 1 + rng_below (rng, 2 * SIZE));
    CHECK (compare (SHORTAGE_NONE) == 0);
  }
}

/* Each thread meets a difference at about the same time. */
static void
find_at_once (struct rng *rng)
{
  struct blob other;

  for (unsigned n = 0; n < 8; n++) {
    other = blob_copy (&t.contents);
    for (uint64_t chunk = 0; chunk < SIZE; chunk += CHUNK)
      other.data[chunk + rng_below (rng, CHUNK / 8)] ^= 1;
    expect (&other);
    blob_free (&other);
    for (unsigned i = 0; i < 50; i++)
      CHECK (compare (SHORTAGE_NONE) == 0);
  }
}

/* --- what goes wrong --- */

/* Of two places in which the disks differ, one cannot be read. */
static void
fail_before_or_after (struct rng *rng)
{
  uint64_t first, last;
  struct blob other;

  for (unsigned n = 0; n < 8; n++) {
    other = blob_copy (&t.contents);
    first = rng_below (rng, 3) * CHUNK + rng_below (rng, CHUNK / 2);
    last = first / CHUNK * CHUNK + CHUNK - 1 + rng_below (rng, CHUNK / 2);
    other.data[first] ^= 1;
    other.data[last] ^= 1;
    expect (&other);
    blob_free (&other);
    for (unsigned i = 0; i < 30; i++) {
      t.unreadable = last;
      CHECK (compare (SHORTAGE_NONE) == 0);
      t.unreadable = first;
      CHECK (compare (SHORTAGE_NONE) == -1 && errno == EIO);
    }
    t.unreadable = UINT64_MAX;
  }
}

static void
fail_operations (struct rng *rng)
{
  unsigned n = 0, failures = 0;

  other_disk (rng, 0, SIZE);
  do {
    t.failed = false;
    t.countdown = n;
    /* (Whether the image was preallocated is found out by reading, if possible.) */
    if (compare (SHORTAGE_NONE) == -1) {
      CHECK (t.failed);
      failures++;
    }
    t.countdown = -1;
    n += n < 8 ? 1 : 1 + rng_below (rng, 9);
  } while (t.failed);
  CHECK (failures > 8);
}

static void
fail_allocations (struct rng *rng)
{
  size_t n;
  uint64_t *places;

  CHECK (compare (SHORTAGE_NONE) == 0);
  places = shortage_choose (rng, ALLOCATIONS, &n);
  for (size_t i = 0; i < n; i++)
    compare ((struct shortage) { .after = places[i], .times = 1 });
  free (places);
}

static void
stop (void)
{
  for (t.steps = 0; t.steps < 2; t.steps++) {
    const int steps = t.steps;
    const int r = compare (SHORTAGE_NONE);

    /* (It may have been fast.) */
    CHECK (r == -1 ? errno == EINTR : steps > 0);
    t.steps = steps;
  }
  t.steps = -1;
}

/* --- images --- */

static void
test_image (struct rng *rng)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .compressed = rng_below (rng, 2),
  };
  struct blob below;

  image_over_raw (&spec, rng, SIZE / 2, 4, &below);
  image_create ("disk.qcow2", &spec);
  image_fill ("disk.qcow2", &spec, rng, 8);
  image_contents ("disk.qcow2", NULL, &t.contents);
  t.options = (struct disk_options) {
    .path = images_path ("disk.qcow2"), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .lock = true, .hooks = &hooks,
  };
  t.compare = (struct compare) {
    .report = images_path ("report"), .with = images_path ("other"), .raw = true,
  };
  CHECK (disk_open (&t.options, &t.disk) == 0);
  quiet_errors = true;
  find_differences (rng);
  find_at_once (rng);
  fail_before_or_after (rng);
  fail_operations (rng);
  other_disk (rng, 1, SIZE);
  fail_allocations (rng);
  stop ();

  /* With itself: readers share an image. */
  free (t.compare.with);
  t.compare.with = images_path ("disk.qcow2");
  t.compare.raw = false;
  t.expected = UINT64_MAX;
  CHECK (compare (SHORTAGE_NONE) == 0);
  fail_allocations (rng);
  quiet_errors = false;

  CHECK (disk_close (t.disk) == 0);
  free ((char *) t.options.path);
  free (t.compare.report);
  free (t.compare.with);
  blob_free (&t.contents);
  blob_free (&below);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  const char *iterations = getenv ("ITERATIONS");
  struct rng rng;

  images_enter ("compare");
  t.countdown = t.steps = -1;
  t.unreadable = UINT64_MAX;
  for (int i = 0; i < (iterations ? atoi (iterations) : 2); i++) {
    rng_init (&rng, seed, i);
    test_image (&rng);
  }
  images_leave ();
  return 0;
}
