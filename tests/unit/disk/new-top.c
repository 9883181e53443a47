/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Can a disk get new images on top (external snapshots) while clients use it?
 *
 * Several threads write, flush and read while one puts an image after the other on top,
 * of various cluster sizes, and others come and go.  What each thread has written is
 * there at any time, and at the end in the last image, for us and for qemu-img; all
 * images are clean.  A new image that is taken back leaves nothing.
 *
 * What cannot become the top is refused, and then the disk goes on as before: an image
 * that exists, is too short, lies over another one, or is in use.  On a full host, or if
 * there is no memory for one of the allocations, nothing stays of the new image.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "change/overlay.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define MIB (UINT64_C (1) << 20)
#define THREADS 3
#define SHARE MIB               /* of each thread, in bytes */
#define SIZE (THREADS * SHARE)
#define TOPS 8

static unsigned char model[SIZE];
static struct disk *disk;
static atomic_bool ends;
static atomic_bool full;
static struct rng seeds;

static int
no_space (void *opaque, const char *path, enum storage_op op,
          const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
          bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  if (full && strstr (path, "full") && op == STORAGE_OP_WRITE) {
    errno = ENOSPC;
    return -1;
  }
  return 0;
}

/* --- clients --- */

static void
change (struct export *e, struct rng *rng, uint64_t from)
{
  const uint64_t len = 512 * (1 + rng_below (rng, 200));
  const uint64_t at = from + 512 * rng_below (rng, (SHARE - len) / 512 + 1);
  unsigned char *p = model + at;

  switch (rng_below (rng, 4)) {
  case 0:
    memset (p, 0, len);
    CHECK (export_zero (e, len, at, REQUEST_MAY_TRIM, false) == 0);
    break;
  case 1:
    CHECK (export_flush (e) == 0);
    break;
  default:
    memset (p, 1 + rng_below (rng, 255), len);
    CHECK (export_write (e, p, len, at, rng_below (rng, 4) == 0) == 0);
  }
}

static void
check_share (struct export *e, uint64_t from)
{
  static _Thread_local unsigned char buf[SHARE];

  CHECK (export_read (e, buf, SHARE, from) == 0);
  CHECK (memcmp (buf, model + from, SHARE) == 0);
}

static atomic_uint next_share;

static void *
client (void *unused)
{
  const uint64_t from = SHARE * next_share++;
  struct rng rng;

  rng_init (&rng, 1000 + from, 7);
  (void) unused;
  while (!ends) {
    struct export *e = export_open (disk, "", true);

    CHECK (e && export_is_writable (e));
    for (unsigned i = 0; i < 30; i++) {
      change (e, &rng, from);
      if (i % 10 == 0)
        check_share (e, from);
    }
    check_share (e, from);
    CHECK (export_close (e) == 0);
  }
  return NULL;
}

/* --- new tops --- */

static int
put (const char *name, bool create)
{
  CLEANUP_FREE char *path = images_path (name);
  const struct overlay o = { .path = path, .create = create };

  return overlay_disk (disk, &o);
}

static void
make (const char *name, uint64_t size, unsigned cluster_size, const char *backing)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .refcount_bits = 16, .size = size,
    .backing = backing,
  };

  image_create (name, &spec);
}

static void
check_refused (const char *name, bool create, int err)
{
  CHECK (put (name, create) == -1);
  if (errno != err)
    FAIL ("%s: %m (%s)", name, last_error ());
}

/* TOP: what is the top now. */
static void
check_refusals (const char *top)
{
  const struct overlay same = { .path = disk_get_options (disk)->path };

  quiet_errors = true;
  make ("short.qcow2", SIZE - 512, 65536, top);
  check_refused ("short.qcow2", false, EINVAL);
  check_refused ("short.qcow2", true, EEXIST);
  make ("other.qcow2", SIZE, 65536, NULL);
  check_refused ("other.qcow2", false, EINVAL);
  CHECK (image_check ("other.qcow2") == 0);
  CHECK (overlay_disk (disk, &same) == -1);
  check_refused ("nowhere.qcow2", false, ENOENT);
  full = true;
  check_refused ("full.qcow2", true, ENOSPC);
  full = false;
  CHECK (access ("full.qcow2", F_OK) == -1);
  quiet_errors = false;
}

static void
put_and_take_back (void)
{
  CLEANUP_FREE char *path = images_path ("back.qcow2");
  const struct overlay o = { .path = path, .create = true };
  struct overlaying *c = overlay_prepare (disk, &o);
  const unsigned layers = layers_count (disk_inside (disk).view->layers);
  const char *seen;

  CHECK (c != NULL);
  disk_close_gate (disk);
  CHECK (overlay_make (c) == 0);
  seen = disk_get_options (disk)->path;
  CHECK (strcmp (seen, path) == 0);
  CHECK (overlay_take_back (c) == 0);
  disk_open_gate (disk);
  overlay_end (c, false);
  CHECK (strcmp (seen, path) == 0);     /* others may still look at it */
  CHECK (access ("back.qcow2", F_OK) == -1);
  CHECK (layers_count (disk_inside (disk).view->layers) == layers);
}

static void
put_all (char names[TOPS + 1][24])
{
  for (unsigned i = 1; i <= TOPS; i++) {
    usleep (rng_below (&seeds, 30000));
    snprintf (names[i], sizeof names[i], "top%u.qcow2", i);
    check_refusals (names[i - 1]);
    put_and_take_back ();
    if (i % 2)
      CHECK (put (names[i], true) == 0);
    else {
      make (names[i], SIZE, 512u << rng_below (&seeds, 13), names[i - 1]);
      CHECK (put (names[i], false) == 0);
    }
  }
}

/* --- no memory --- */

/* Puts NAME on top while a client writes, and memory runs out. */
static void
put_without_memory (const char *name, struct shortage shortage)
{
  CLEANUP_FREE char *path = images_path (name);
  const struct overlay o = { .path = path, .create = true };
  struct export *e = export_open (disk, "", true);
  uint64_t failures;
  int r;

  CHECK (e && export_is_writable (e));
  memset (model, 1 + shortage.after % 255, 65536);
  CHECK (export_write (e, model, 65536, 0, false) == 0);
  shortage_begin (shortage);
  r = overlay_disk (disk, &o);
  failures = shortage_end ();
  CHECK (r == 0 || (failures > 0 && access (name, F_OK) == -1));
  check_share (e, 0);
  /* Unless the new top could not become writable, the client goes on. */
  if (export_write (e, model, 512, 65536, false) == 0)
    memcpy (model + 65536, model, 512);
  else
    CHECK (r == 0 && failures > 0 && errno == EIO);
  check_share (e, 0);
  export_close (e);
}

/* The same, from the disk's opening to its end. */
static void
try_without_memory (struct disk_options *options, const char *name,
                    struct shortage shortage)
{
  CHECK (disk_open (options, &disk) == 0);
  put_without_memory (name, shortage);
  if (access (name, F_OK) == 0) {
    free ((char *) options->path);
    options->path = images_path (name);
  }
  disk_close (disk);
  CHECK (image_check (strrchr (options->path, '/') + 1) == 0);
}

static void
test_no_memory (struct disk_options options)
{
  CLEANUP_FREE uint64_t *chosen = NULL;
  char name[40];
  size_t n;

  make ("memory.qcow2", SIZE, 65536, NULL);
  options.path = images_path ("memory.qcow2");
  quiet_errors = true;
  try_without_memory (&options, "memory-none.qcow2", SHORTAGE_NONE);
  chosen = shortage_choose (&seeds, 60, &n);
  CHECK (n > 10);
  for (size_t i = 0; i < n; i++) {
    snprintf (name, sizeof name, "memory%zu.qcow2", i);
    try_without_memory (&options, name, (struct shortage) { chosen[i], 1 });
  }
  quiet_errors = false;
  free ((char *) options.path);
  memset (model, 0, SIZE);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = no_space };
  struct disk_options options = {
    .l2_cache = MIB, .l2_slice = 4096, .lock = true, .discard = true,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  char names[TOPS + 1][24] = { "top0.qcow2" };
  const struct blob shown = { .data = model, .len = SIZE };
  CLEANUP_FREE char *path = NULL;
  pthread_t threads[THREADS];

  images_enter ("new-top");
  rng_init (&seeds, seed_from_env (), 1);
  test_no_memory (options);
  make ("top0.qcow2", SIZE, 65536, NULL);
  options.path = path = images_path ("top0.qcow2");
  CHECK (disk_open (&options, &disk) == 0);
  for (unsigned i = 0; i < THREADS; i++)
    CHECK (pthread_create (&threads[i], NULL, client, NULL) == 0);
  put_all (names);
  ends = true;
  for (unsigned i = 0; i < THREADS; i++)
    CHECK (pthread_join (threads[i], NULL) == 0);
  CHECK (disk_close (disk) == 0);
  for (unsigned i = 0; i <= TOPS; i++)
    CHECK (image_check (names[i]) == 0);
  CHECK (image_shows (names[TOPS], NULL, &shown));
  images_leave ();
  return 0;
}
