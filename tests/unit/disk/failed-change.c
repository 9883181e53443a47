/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a disk go on as before if a change of it fails?
 *
 * A client writes, trims and reads, while snapshots are taken and deleted, bitmaps are
 * added, cleared, merged and removed, the disk grows, and other refcounts are used.  Each
 * operation on the file up to the switch of each change fails once, and then
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
#include "change/amend.h"
#include "change/bitmapedit.h"
#include "change/edit.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define IMAGE "disk.qcow2"
#define SIZE (UINT64_C (2) << 20)
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
static struct shortage shortage = { .times = 0 };
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

enum kind {
  TAKE_SNAPSHOT, GROW, DELETE_SNAPSHOT, ADD_BITMAP, CLEAR_BITMAP, DIVIDE_BITMAP,
  JOIN_BITMAPS, REMOVE_BITMAP, WIDEN_COUNTS, NARROW_COUNTS, KINDS
};

static int
edit (const struct edit *edit)
{
  const struct edit_options o = { .preallocation = PREALLOCATION_METADATA };

  return edit_disk (disk, &o, edit, 1);
}

static int
amend (unsigned refcount_bits, enum amend_choice lazy)
{
  const struct amend a = { .refcount_bits = refcount_bits, .lazy_refcounts = lazy };

  return amend_disk (disk, &a);
}

static int
make (enum kind kind)
{
  static const struct edit take = { .kind = EDIT_SNAPSHOT_CREATE, .name = "s" };
  static const struct edit delete = { .kind = EDIT_SNAPSHOT_DELETE, .name = "s" };
  static const struct edit grow = { .kind = EDIT_RESIZE, .sign = 1, .size = GROWTH };
  static const struct bitmapedit
    add = { .what = BITMAP_ADD, .name = "b" },
    clear = { .what = BITMAP_CLEAR, .name = "b" },
    remove = { .what = BITMAP_REMOVE, .name = "b" },
    divide[] = {
      { .what = BITMAP_DISABLE, .name = "b" }, { .what = BITMAP_ADD, .name = "next" },
    },
    join[] = {
      { .what = BITMAP_ENABLE, .name = "b" },
      { .what = BITMAP_MERGE, .name = "b", .merged = "next" },
      { .what = BITMAP_REMOVE, .name = "next" },
    };

  switch (kind) {
  case TAKE_SNAPSHOT: return edit (&take);
  case GROW: return edit (&grow);
  case DELETE_SNAPSHOT: return edit (&delete);
  case ADD_BITMAP: return bitmapedit_disk (disk, &add, 1, NULL);
  case CLEAR_BITMAP: return bitmapedit_disk (disk, &clear, 1, NULL);
  case DIVIDE_BITMAP: return bitmapedit_with_snapshot (disk, NULL, divide, 2, NULL);
  case JOIN_BITMAPS: return bitmapedit_disk (disk, join, 3, NULL);
  case REMOVE_BITMAP: return bitmapedit_disk (disk, &remove, 1, NULL);
  case WIDEN_COUNTS: return amend (32, AMEND_ON);
  default: return amend (16, AMEND_OFF);
  }
}

static void
stop_failing (void)
{
  if (in_change)
    nr_failures += shortage_end ();
  in_change = false;
}

/* The time to fail is when the image is at rest, and not changed yet. */
static void
notice_step (const char *text)
{
  if (strstr (text, "the image is at rest")) {
    in_change = true;
    switching = false;
    operations = 0;
    shortage_begin (shortage);
  }
  else if (strstr (text, "the image is switched") || strstr (text, "nothing is changed"))
    stop_failing ();
}

/* Returns whether it was made. */
static bool
try (enum kind kind)
{
  const unsigned failures = nr_failures;
  const struct view *const before = disk_inside (disk).view;
  int r;

  use ();
  quiet_errors = true;
  r = make (kind);
  quiet_errors = false;
  stop_failing ();              /* (There may have been no memory to tell that.) */
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
make_each (enum kind kind)
{
  uint64_t i;

  for (i = 0; ; i++) {
    trials_about ("change %d, operation %" PRIu64 " fails", kind, i);
    fails_at = i;
    if (try (kind))
      break;
  }
  fails_at = NEVER;
  printf ("change %d: %" PRIu64 " operations failed\n", kind, i);
}

/* The next change of this kind, when the other ones have been made. */
static void
make_each_without_memory (enum kind kind)
{
  uint64_t i, failed = 0;

  for (i = 0; ; i++) {
    const unsigned failures = nr_failures;

    trials_about ("change %d, allocation %" PRIu64 " fails", kind, i);
    shortage = (struct shortage) { i, 1 };
    if (try (kind))
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
  trace_changes = notice_step;
  image_create (IMAGE, &spec);
  options.path = path = images_path (IMAGE);
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  for (enum kind kind = 0; kind < KINDS; kind++)
    make_each (kind);
  for (enum kind kind = 0; kind < KINDS; kind++)
    make_each_without_memory (kind);
  CHECK (nr_failures > 100);
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check (IMAGE) == 0);
  images_leave ();
  return 0;
}
