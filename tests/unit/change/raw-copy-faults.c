/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A raw copy appears completely or not at all: whichever operation of the host fails,
 * whichever allocation finds no memory, and whenever the user stops it.  It says why, and
 * sets errno.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "change/rawcopy.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"

/* Several threads have something to do. */
#define SIZE (UINT64_C (12) << 20)
#define ALLOCATIONS 40

static struct {
  struct disk *disk;
  struct disk_options options;
  char *copy;
  struct blob contents;
  atomic_int countdown;         /* operations until one fails; < 0: none does */
  atomic_bool failed;
  enum storage_op op;           /* which failed */
  int steps;                    /* of the watch until it stops; < 0: it does not */
} t;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (t.countdown < 0 || atomic_fetch_sub (&t.countdown, 1) != 0)
    return 0;
  t.op = op;
  t.failed = true;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static bool
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  (void) opaque;
  CHECK (done <= total && total == SIZE && copied <= total);
  return t.steps < 0 || t.steps-- > 0;
}

/* Nothing is left, not even under another name. */
static void
check_nothing (void)
{
  DIR *d = opendir (".");
  struct dirent *e;

  CHECK (d != NULL);
  while ((e = readdir (d)) != NULL)
    CHECK (strcmp (e->d_name, "copy") != 0 &&
           strncmp (e->d_name, ".qcow2-new", strlen (".qcow2-new")) != 0);
  closedir (d);
}

static void
check_copy (void)
{
  struct blob copy;

  blob_load ("copy", &copy);
  CHECK (blob_same (&copy, &t.contents));
  blob_free (&copy);
  CHECK (unlink ("copy") == 0);
}

/* Returns what the copying returns, and looks at what there is afterwards. */
static int
copy (struct shortage shortage)
{
  const struct chunks_watch watch = { .step = step };
  const unsigned long told = error_count ();
  uint64_t copied;
  int r, err;

  shortage_begin (shortage);
  errno = 0;
  r = rawcopy_disk (t.disk, &t.options, t.copy, &watch, &copied);
  err = errno;
  shortage_end ();
  if (r == 0)
    check_copy ();
  else {
    CHECK (err != 0 && error_count () > told);
    check_nothing ();
  }
  errno = err;
  return r;
}

/* --- what goes wrong --- */

static void
fail_operations (struct rng *rng)
{
  unsigned n = 0;
  int r;

  do {
    t.failed = false;
    t.countdown = n;
    r = copy (SHORTAGE_NONE);
    /* (Whether the image was preallocated is found out by reading, if possible.) */
    CHECK (r == -1 ? t.failed : !t.failed || t.op == STORAGE_OP_READ);
    t.countdown = -1;
    n += n < 8 ? 1 : 1 + rng_below (rng, 9);
  } while (t.failed);
  CHECK (n > 20);
}

static void
fail_allocations (struct rng *rng)
{
  size_t n;
  uint64_t *places;

  CHECK (copy (SHORTAGE_NONE) == 0);
  places = shortage_choose (rng, ALLOCATIONS, &n);
  for (size_t i = 0; i < n; i++)
    copy ((struct shortage) { .after = places[i], .times = 1 });
  free (places);
}

static void
stop (void)
{
  for (t.steps = 0; t.steps < 2; t.steps++) {
    const int steps = t.steps;
    const int r = copy (SHORTAGE_NONE);

    /* (It may have been fast.) */
    CHECK (r == -1 ? errno == EINTR : steps > 0);
    t.steps = steps;
  }
  t.steps = -1;
}

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
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  t.copy = images_path ("copy");
  CHECK (disk_open (&t.options, &t.disk) == 0);
  quiet_errors = true;
  fail_operations (rng);
  fail_allocations (rng);
  stop ();
  quiet_errors = false;
  CHECK (copy (SHORTAGE_NONE) == 0);
  CHECK (disk_close (t.disk) == 0);
  free ((char *) t.options.path);
  free (t.copy);
  blob_free (&t.contents);
  blob_free (&below);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  const char *iterations = getenv ("ITERATIONS");
  struct rng rng;

  images_enter ("raw-copy-faults");
  t.countdown = t.steps = -1;
  for (int i = 0; i < (iterations ? atoi (iterations) : 2); i++) {
    rng_init (&rng, seed, i);
    test_image (&rng);
  }
  images_leave ();
  return 0;
}
