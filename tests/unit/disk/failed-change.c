/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a disk go on as before if a change of it fails?
 *
 * A client writes, trims and reads, while snapshots are taken and deleted and the disk
 * grows.  Each operation on the file up to the switch of each change fails once, and then
 * each allocation.  The change fails, and nothing else: the same generation of the disk
 * goes on, without reading the file again, and shows what the client has written (also in
 * clusters that were free and contained zeros, before the change wrote to them).  In the
 * end the image is clean, without leaks.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/cleanup.h"
#include "change/resize.h"
#include "change/snapedit.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define IMAGE "disk.qcow2"
#define SIZE (UINT64_C (4) << 20)
#define GROWTH (UINT64_C (64) << 10)
#define CLUSTER 1024
#define NEVER UINT64_MAX

static unsigned char model[SIZE], seen[SIZE];
static struct disk *disk;
static struct export *client;
static struct rng rng;

/* Operations of the change on the file, before the switch. */
static bool in_change, switching;
static uint64_t operations, fails_at = NEVER;
static unsigned nr_failures;

static int
fail_one (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
          int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) count, (void) dsync;
  if (!in_change)
    return 0;
  switching |= op == STORAGE_OP_WRITE && offset < 512;
  if (switching || operations++ != fails_at)
    return 0;
  nr_failures++;
  errno = op != STORAGE_OP_READ && rng_below (&rng, 2) ? ENOSPC : EIO;
  return -1;
}

/* --- the client --- */

static void
use (void)
{
  for (unsigned i = 0; i < 12; i++) {
    const uint64_t len = 512 * (1 + rng_below (&rng, 16));
    const uint64_t at = 512 * rng_below (&rng, (SIZE - len) / 512 + 1);

    if (rng_below (&rng, 3) == 0) {
      memset (model + at, 0, len);
      CHECK (export_zero (client, len, at, REQUEST_MAY_TRIM, false) == 0);
    }
    else {
      memset (model + at, 1 + rng_below (&rng, 255), len);
      CHECK (export_write (client, model + at, len, at, false) == 0);
    }
    if (rng_below (&rng, 4) == 0)
      CHECK (export_flush (client) == 0);
  }
}

static void
check_disk (void)
{
  CHECK (export_read (client, seen, SIZE, 0) == 0);
  for (uint64_t i = 0; i < SIZE; i++)
    if (seen[i] != model[i])
      FAIL ("byte %" PRIu64 " of the disk is 0x%02x instead of 0x%02x", i, seen[i],
            model[i]);
}

/* --- the changes --- */

struct change {
  enum { TAKE_SNAPSHOT, GROW, DELETE_SNAPSHOT, KINDS } kind;
  struct shortage shortage;
  struct shadow *done;
};

static int
make_one (struct change *c, const struct image *image)
{
  const struct resize_options larger = {
    .size = image->header.size + GROWTH, .discard = true,
    .preallocation = PREALLOCATION_METADATA,
  };

  switch (c->kind) {
  case TAKE_SNAPSHOT: return snapedit_create (image, true, "s", NULL, &c->done);
  case DELETE_SNAPSHOT: return snapedit_delete (image, true, "s", &c->done);
  default: return resize_image (image, &larger, &c->done);
  }
}

static int
make (void *opaque, struct image *image)
{
  struct change *const c = opaque;
  int r;

  in_change = true;
  switching = false;
  operations = 0;
  shortage_begin (c->shortage);
  r = make_one (c, image);
  nr_failures += shortage_end ();
  in_change = false;
  return r;
}

static void
release (void *opaque, struct alloc *alloc)
{
  shadow_release (((struct change *) opaque)->done, alloc);
}

/* Returns whether it was made. */
static bool
try (int kind, struct shortage shortage)
{
  struct change c = { .kind = kind, .shortage = shortage };
  const struct disk_change dc = { .opaque = &c, .make = make, .release = release };
  const unsigned failures = nr_failures;
  const struct view *const before = disk_inside (disk).view;
  int r;

  use ();
  quiet_errors = true;
  r = disk_change (disk, &dc);
  quiet_errors = false;
  shadow_free (c.done);
  if (r == -1 && nr_failures == failures)
    FAIL ("the change failed without a reason: %m (%s)", last_error ());
  if (disk_check (disk) == -1)
    FAIL ("the disk has failed: %s", last_error ());
  CHECK ((disk_inside (disk).view == before) == (r == -1));
  check_disk ();
  use ();
  check_disk ();
  return r == 0;
}

static void
make_each (int kind)
{
  uint64_t i;

  for (i = 0; ; i++) {
    trials_about ("change %d, operation %" PRIu64 " fails", kind, i);
    fails_at = i;
    if (try (kind, SHORTAGE_NONE))
      break;
  }
  fails_at = NEVER;
  printf ("change %d: %" PRIu64 " operations failed\n", kind, i);
}

/* The next change of this kind, when the other ones have been made. */
static void
make_each_without_memory (int kind)
{
  uint64_t i, failed = 0;

  for (i = 0; ; i++) {
    const unsigned failures = nr_failures;

    trials_about ("change %d, allocation %" PRIu64 " fails", kind, i);
    if (try (kind, (struct shortage) { i, 1 }))
      break;
    failed += nr_failures - failures;
  }
  printf ("change %d: %" PRIu64 " allocations failed\n", kind, failed);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = fail_one };
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  CLEANUP_FREE char *path = NULL;
  struct disk_options options = {
    .l2_cache = UINT64_C (1) << 20, .l2_slice = 1024, .lock = true,
    .discard = true, .backing = BACKING_FOLLOW, .hooks = &hooks,
  };

  images_enter ("failed-change");
  rng_init (&rng, seed_from_env (), 1);
  image_create (IMAGE, &spec);
  options.path = path = images_path (IMAGE);
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  for (int kind = 0; kind < KINDS; kind++)
    make_each (kind);
  for (int kind = 0; kind < KINDS; kind++)
    make_each_without_memory (kind);
  CHECK (nr_failures > 100);
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check (IMAGE) == 0);
  images_leave ();
  return 0;
}
