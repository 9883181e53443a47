/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What changes of an image are there, and what can they meet?
 *
 * The clusters are the smallest ones, so that there are several tables and refcount
 * blocks of each kind; or so large that a buffer has space for one.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "check/check.h"
#include "disk/export.h"
#include "format/format.h"
#include "format/luks.h"
#include "lib/changes.h"
#include "lib/eachchange.h"
#include "lib/shortage.h"
#include "lib/trials.h"
#include "lib/uses.h"

#define IMAGE EACHCHANGE_IMAGE
#define BELOW "below"           /* raw; longer than most of the disks */
#define BASE "base.qcow2"       /* what is committed to */
#define OTHER "other.qcow2"     /* has bitmaps to be merged */
#define DATA "data"
#define MIB (UINT64_C (1) << 20)
#define BELOW_SIZE (3 * MIB)

/* Of another file.  (Memory may have run out for the change, but not for the test.) */
static char *
path_of (const char *name)
{
  const bool was_spared = shortage_spare (true);
  char *path = images_path (name);

  shortage_spare (was_spared);
  return path;
}

/* --- images --- */

/* Requests of qemu-io, up to a NULL. */
static void
io (const char *name, ...)
{
  struct command c = { .n = 0 };
  const char *request;
  va_list args;

  command_words (&c, "qemu-io -t unsafe -d unmap -f qcow2");
  va_start (args, name);
  while ((request = va_arg (args, const char *)) != NULL) {
    command_add (&c, "-c");
    command_add (&c, "%s", request);
  }
  va_end (args);
  command_add (&c, "%s", name);
  command_must (&c);
}

static void
make_below (void)
{
  struct blob b = { calloc (1, BELOW_SIZE), BELOW_SIZE };

  CHECK (b.data != NULL);
  for (uint64_t i = 0; i < BELOW_SIZE; i += 64 << 10)
    memset (b.data + i, 1 + i / (64 << 10), 4096);
  blob_save (BELOW, &b);
  blob_free (&b);
}

const struct blob *
each_change_below (void)
{
  static struct blob b;

  if (b.data == NULL)
    blob_load (BELOW, &b);
  return &b;
}

/* Over BELOW. */
static void
create (unsigned version, uint64_t cluster_size, unsigned refcount_bits)
{
  const struct image_spec spec = {
    .version = version, .cluster_size = cluster_size, .refcount_bits = refcount_bits,
    .size = 2 * MIB + 512, .backing = BELOW, .backing_raw = true,
  };

  make_below ();
  unlink (IMAGE);
  image_create (IMAGE, &spec);
}

/* Data, zeros and compressed clusters, in several L2 tables. */
static void
fill (const char *zeros)
{
  io (IMAGE, "write -P 1 0 40k", zeros, "write -c -P 5 128k 512", "write -c -P 6 131584 512",
      "write -P 2 2094592 3k", NULL);
}

static void
make_snapshots (void)
{
  create (3, 512, 64);
  fill ("write -z 100k 8k");
  image_snapshot (IMAGE, "s");
  io (IMAGE, "write -P 3 2k 33k", "write -P 4 1M 1k", NULL);
}

static void
make_bitmaps (void)
{
  create (3, 512, 64);
  image_bitmap (IMAGE, "a", 9);
  fill ("write -z 100k 8k");
  image_bitmap_disable (IMAGE, "a");
  image_bitmap (IMAGE, "b", 12);
}

static void
make_snapshots_and_bitmaps (void)
{
  make_bitmaps ();
  image_snapshot (IMAGE, "s");
  io (IMAGE, "write -P 3 2k 33k", "write -P 4 1M 1k", NULL);
}

/* Refcount blocks are no longer where they count themselves: the first edit moves all of
 * them, the second a few. */
static void
make_edited (void)
{
  const struct edit_options edit_options = { .shrink = false };
  const struct edit edits[] = {
    { .kind = EDIT_SNAPSHOT_CREATE, .name = "u" },
    { .kind = EDIT_RESIZE, .size = 3 * MIB },
  };
  char *path;
  struct disk_options options;

  make_snapshots_and_bitmaps ();
  path = path_of (IMAGE);
  options = each_change_options (path, &without_sync);
  for (unsigned i = 0; i < sizeof edits / sizeof edits[0]; i++)
    CHECK (change_edit (&options, &edit_options, &edits[i]) == 0);
  free (path);
}

static void
make_bitmaps_and_other (void)
{
  const struct image_spec other = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 2 * MIB + 512,
  };

  make_bitmaps ();
  io (IMAGE, "write -P 3 2k 33k", "write -P 4 1M 1k", NULL);
  unlink (OTHER);
  image_create (OTHER, &other);
  image_bitmap (OTHER, "o", 9);
  io (OTHER, "write -P 1 0 40k", "write -P 1 2M 512", NULL);
}

static void
make_zeros (void)
{
  create (3, 512, 16);
  fill ("write -z 100k 8k");
}

/* The disk and the snapshot share some tables, and not others. */
static void
make_zeros_in_snapshot (void)
{
  make_zeros ();
  image_snapshot (IMAGE, "s");
  io (IMAGE, "write -P 3 1M 1k", "write -z 1100k 4k", NULL);
}

/* The disk ends within a cluster. */
static void
make_tail (void)
{
  create (3, 4096, 16);
  io (IMAGE, "write -P 1 0 40k", "write -P 2 2094592 3k", NULL);
}

static void
make_version_2 (void)
{
  create (2, 512, 16);
  fill ("write -P 7 100k 8k");
}

/* The snapshot needs nothing of BELOW. */
static void
make_covered (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 64 << 10,
    .backing = BELOW, .backing_raw = true,
  };

  make_below ();
  unlink (IMAGE);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 0 64k", NULL);
  image_snapshot (IMAGE, "s");
}

static void
make_version_2_with_snapshot (void)
{
  make_version_2 ();
  image_snapshot (IMAGE, "s");
}

/* Each buffer has space for one L2 table, or one refcount block. */
static void
make_large_clusters (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = MIB, .refcount_bits = 16, .size = 512 * 1024 * MIB,
  };

  unlink (IMAGE);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 0 512", "write -P 1 150G 512", "write -P 1 300G 512", NULL);
}

/* Something of everything: layers, a snapshot, a bitmap. */
static void
make_layers (void)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 40 << 10,
    .backing = BELOW, .backing_raw = true,
  };

  make_below ();
  image_create (BASE, &spec);
  io (BASE, "write -P 9 4k 12k", NULL);
  spec.backing = BASE;
  spec.backing_raw = false;
  unlink (IMAGE);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 8k 5k", "write -z 20k 4k", NULL);
  image_snapshot (IMAGE, "s");
  image_bitmap (IMAGE, "a", 9);
  io (IMAGE, "write -P 2 10k 9k", NULL);
}

/* An L1 table that is longer than what is read at once. */
static void
make_long_table (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 5120 * MIB,
  };

  unlink (IMAGE);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 0 512", "write -P 1 5119M 512", NULL);
}

static void
make_over_base (void)
{
  const struct image_spec base = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = MIB,
  };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = MIB + 64 * 1024,
    .backing = BASE,
  };

  unlink (BASE);
  image_create (BASE, &base);
  io (BASE, "write -P 9 0 512k", NULL);
  unlink (IMAGE);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 0 40k", "write -z 100k 8k", "write -P 2 1M 3k", NULL);
}

/* The file is longer than the disk. */
static void
make_data_file (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 64 << 10,
    .data_file = DATA, .data_file_raw = true,
  };
  struct blob b, longer;

  unlink (IMAGE);
  unlink (DATA);
  image_create (IMAGE, &spec);
  io (IMAGE, "write -P 1 0 16k", NULL);
  blob_load (DATA, &b);
  longer = blob_resized (&b, 128 << 10);
  memset (longer.data + (64 << 10), 0xee, 64 << 10);
  blob_save (DATA, &longer);
  blob_free (&longer);
  blob_free (&b);
}

/* A crash has left something in a key slot that is not in use. */
static void
make_luks (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = MIB,
    .encrypt = "luks",
  };
  uint64_t at = 0;
  struct blob b;

  unlink (IMAGE);
  image_create (IMAGE, &spec);
  blob_load (IMAGE, &b);
  while (memcmp (b.data + at, LUKS_MAGIC, sizeof (LUKS_MAGIC) - 1) != 0)
    at += spec.cluster_size;
  blob_put (&b, at + offsetof (struct luks_header, slots) +
            3 * sizeof (struct luks_slot_header) +
            offsetof (struct luks_slot_header, salt), 0x1234, 2);
  blob_save (IMAGE, &b);
  blob_free (&b);
}

/* Raises N refcounts, of a block each, behind the end of the image. */
static void
leak (unsigned n)
{
  struct blob b;

  blob_load (IMAGE, &b);
  for (unsigned i = 0; i < n; i++) {
    const uint64_t block = blob_get (&b, blob_get (&b, 48, 8) + i * 8, 8);
    uint64_t at = block + 504;

    CHECK (block != 0);
    blob_put (&b, at, blob_get (&b, at, 8) + 1, 8);
  }
  blob_save (IMAGE, &b);
  blob_free (&b);
}

static void
make_leaks (void)
{
  make_snapshots_and_bitmaps ();
  leak (3);
}

static void
make_interrupted (void)
{
  make_leaks ();
  image_mark (IMAGE, 88, QCOW2_AUTOCLEAR_IN_USE);
}

static void
make_dirty (void)
{
  make_leaks ();
  image_mark (IMAGE, 72, QCOW2_INCOMPAT_DIRTY);
}

/* --- changes --- */

static int
edit (const struct disk_options *o, struct edit e)
{
  const struct edit_options options = { .shrink = true };

  return change_edit (o, &options, &e);
}

static int
snapshot_create (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_SNAPSHOT_CREATE, .name = "t" });
}

static int
snapshot_apply (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_SNAPSHOT_APPLY, .name = "s" });
}

static int
snapshot_delete (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_SNAPSHOT_DELETE, .name = "s" });
}

static int
shrink (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_RESIZE, .size = 30 << 10 });
}

static int
grow (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_RESIZE, .size = 5 * MIB });
}

/* After make_edited, this moves a refcount block whose old place is counted by a block
 * that nothing else in this change needs. */
static int
grow_little (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_RESIZE, .size = 4 * MIB });
}

static int
grow_allocated (const struct disk_options *o)
{
  const struct edit e = { .kind = EDIT_RESIZE, .size = 2 * MIB + 64 * 1024 };
  const struct edit_options options = { .preallocation = PREALLOCATION_FALLOC };

  return change_edit (o, &options, &e);
}

static int
grow_written (const struct disk_options *o)
{
  const struct edit e = { .kind = EDIT_RESIZE, .size = 2 * MIB + 64 * 1024 };
  const struct edit_options options = { .preallocation = PREALLOCATION_FULL };

  return change_edit (o, &options, &e);
}

static int
grow_data_file (const struct disk_options *o)
{
  return edit (o, (struct edit) { .kind = EDIT_RESIZE, .size = 256 << 10 });
}

static int
amend_to_2 (const struct disk_options *o)
{
  return change_amend (o, &(const struct amend) { .version = 2 });
}

static int
amend_to_3 (const struct disk_options *o)
{
  return change_amend (o, &(const struct amend) { .version = 3,
                                                  .lazy_refcounts = AMEND_ON });
}

static int
amend_refcounts (const struct disk_options *o)
{
  return change_amend (o, &(const struct amend) { .refcount_bits = 32 });
}

/* It means the same file. */
static int
amend_data_file (const struct disk_options *o)
{
  return change_amend (o, &(const struct amend) { .data_file = "./" DATA });
}

static int
bitmaps (const struct disk_options *o)
{
  static const struct bitmapedit edits[] = {
    { .what = BITMAP_ADD, .name = "n", .granularity_bits = 9 },
    { .what = BITMAP_MERGE, .name = "n", .merged = "a" },
    { .what = BITMAP_MERGE, .name = "n", .merged = "b" },
    { .what = BITMAP_MERGE, .name = "b", .merged = "n" },
    { .what = BITMAP_CLEAR, .name = "a" },
  };

  return change_bitmaps (o, edits, sizeof edits / sizeof edits[0], NULL);
}

static int
bitmaps_from_other (const struct disk_options *o)
{
  static const struct bitmapedit edits[] = {
    { .what = BITMAP_MERGE, .name = "b", .merged = "o" },
    { .what = BITMAP_REMOVE, .name = "a" },
  };
  char *source = path_of (OTHER);
  const int r = change_bitmaps (o, edits, sizeof edits / sizeof edits[0], source);
  KEEP_ERRNO_FOR_BLOCK;

  free (source);
  return r;
}

static int
commit (const struct disk_options *o)
{
  uint64_t copied;

  return change_commit (o, false, NULL, &copied);
}

static int
flatten (const struct disk_options *o)
{
  uint64_t copied;

  return change_flatten (o, NULL, &copied);
}

static int
rebase_to_other (const struct disk_options *o)
{
  const struct rebase to = { .name = OTHER, .format = "qcow2" };
  uint64_t copied;

  return change_rebase (o, &to, NULL, &copied);
}

static int
exchange_key (const struct disk_options *o)
{
  return change_keys (o, &(const struct keyedit) { .add = "second", .erase = IMAGES_SECRET,
                                                   KEYEDIT_NONE, .iter_ms = 1 });
}

static int
check (const struct disk_options *o, enum check_mode mode)
{
  const struct check_options options = {
    .mode = mode, .path = o->path, .chain = disk_chain_options (o),
  };
  struct check *c;
  int r = reach_check (&options, &c);

  if (r == 0)
    check_free (c);
  return r;
}

static int
check_fully (const struct disk_options *o)
{
  return check (o, CHECK_FULL);
}

static int
repair (const struct disk_options *o)
{
  return check (o, CHECK_REPAIR);
}

/* A writer comes, does that, and goes. */
static int
with_writer (const struct disk_options *o, int (*work) (struct disk *, struct export *))
{
  struct export *e;
  struct disk *d;
  int err = 0;

  if (reach_open (o, &d) == -1)
    return -1;
  e = export_open (d, "", true);
  if (e == NULL)
    err = errno;
  else if (!export_is_writable (e))
    err = EROFS;
  else if (work (d, e) == -1)
    err = errno;
  if (e && export_close (e) == -1 && err == 0)
    err = errno;
  if (disk_close (d) == -1 && err == 0)
    err = errno;
  errno = err;
  return err ? -1 : 0;
}

/* It has found that the image was not closed. */
static int
do_nothing (struct disk *d, struct export *e)
{
  (void) d, (void) e;
  return 0;
}

static int
recover (const struct disk_options *o)
{
  return with_writer (o, do_nothing);
}

/* No sector as a whole.  (A client knows the size, which may be damaged.) */
static int
do_write (struct disk *d, struct export *e)
{
  char buf[700];

  (void) d;
  if (export_size (e) < MIB)
    return 0;
  memset (buf, 0x5a, sizeof buf);
  return export_read (e, buf, sizeof buf, 300) == -1 ||
    export_write (e, buf, sizeof buf, 100, false) == -1 ||
    export_write (e, buf, sizeof buf, MIB / 2 + 100, false) == -1 ||
    export_flush (e) == -1 ? -1 : 0;
}

static int
do_first_write (struct disk *d, struct export *e)
{
  char buf[4096] = { 1 };

  (void) d;
  return export_write (e, buf, sizeof buf, 0, false);
}

static int
write_some (const struct disk_options *o)
{
  return with_writer (o, do_write);
}

static bool was_deleted;

static int
do_delete (struct disk *d, struct export *e)
{
  const struct edit_options options = { .shrink = false };
  const struct edit edit = { .kind = EDIT_SNAPSHOT_DELETE, .name = "s" };

  if (do_write (d, e) == -1 || edit_disk (d, &options, &edit, 1) == -1)
    return -1;
  was_deleted = true;
  return 0;
}

/* Once it was made, nothing takes the change back. */
static int
snapshot_delete_in_use (const struct disk_options *o)
{
  int r;

  was_deleted = false;
  r = with_writer (o, do_delete);
  return was_deleted ? 0 : r;
}

/* Some of it was written before. */
static void
make_luks_with_data (void)
{
  char *path;
  struct disk_options options;

  make_luks ();
  path = path_of (IMAGE);
  options = each_change_options (path, &without_sync);
  CHECK (with_writer (&options, do_first_write) == 0);
  free (path);
}

static const struct each_change changes[] = {
  { "create a snapshot", make_snapshots_and_bitmaps, .run = snapshot_create },
  { "apply a snapshot", make_snapshots, .run = snapshot_apply },
  { "delete a snapshot", make_snapshots_and_bitmaps, .run = snapshot_delete },
  { "delete a snapshot in use", make_snapshots_and_bitmaps, .run = snapshot_delete_in_use,
    .stops_anywhere = true },
  { "shrink", make_snapshots_and_bitmaps, .run = shrink, .stops_anywhere = true },
  { "grow", make_snapshots_and_bitmaps, .run = grow },
  { "grow again", make_edited, .run = grow_little },
  { "grow, version 2", make_version_2, .run = grow },
  { "grow, allocated", make_tail, .run = grow_allocated, .stops_anywhere = true },
  { "grow, written", make_tail, .run = grow_written, .stops_anywhere = true },
  { "grow, data file", make_data_file, .run = grow_data_file, .second = DATA },
  { "amend to version 2", make_zeros, .run = amend_to_2 },
  { "amend to version 2, with a snapshot", make_zeros_in_snapshot, .run = amend_to_2 },
  { "amend to version 3", make_version_2_with_snapshot, .run = amend_to_3 },
  { "amend refcounts", make_snapshots_and_bitmaps, .run = amend_refcounts },
  { "amend the name of the data file", make_data_file, .run = amend_data_file,
    .second = DATA },
  { "change bitmaps", make_snapshots_and_bitmaps, .run = bitmaps, .stops_anywhere = true },
  { "merge bitmaps", make_bitmaps_and_other, .run = bitmaps_from_other,
    .stops_anywhere = true },
  { "commit to a raw file", make_zeros, .run = commit, .second = BELOW,
    .stops_anywhere = true },
  { "commit to an image", make_over_base, .run = commit, .second = BASE,
    .stops_anywhere = true },
  { "flatten", make_zeros, .run = flatten, .stops_anywhere = true },
  { "flatten, with a snapshot", make_covered, .run = flatten, .stops_anywhere = true },
  { "rebase", make_bitmaps_and_other, .run = rebase_to_other, .stops_anywhere = true,
    .needs_files = true },
  { "exchange a key", make_luks, .run = exchange_key, .stops_anywhere = true, .once = true,
    .slow = true },
  { "create a snapshot, large clusters", make_large_clusters, .run = snapshot_create,
    .huge = true, .slow = true },
  { "check", make_snapshots_and_bitmaps, .run = check_fully, .judges = true,
    .reads = true, .slow = true },
  { "check, encrypted", make_luks, .run = check_fully, .judges = true, .reads = true,
    .slow = true },
  { "check with a report", make_layers, .run = use_check, .judges = true, .reads = true },
  { "describe", make_layers, .run = use_description, .reads = true },
  { "describe, encrypted", make_luks, .run = use_description, .reads = true },
  { "map", make_layers, .run = use_map, .reads = true },
  { "serve", make_layers, .run = use_exports, .reads = true },
  { "serve from the directory", make_layers, .run = use_directory, .reads = true,
    .needs_files = true },
  { "write, encrypted", make_luks_with_data, .run = write_some, .stops_anywhere = true },
  { "create a snapshot, long table", make_long_table, .run = snapshot_create,
    .huge = true },
  { "repair", make_leaks, .run = repair, .judges = true, .repairs = true },
  { "free what leaked", make_interrupted, .run = recover, .judges = true,
    .repairs = true },
  { "repair a dirty image", make_dirty, .run = recover, .judges = true,
    .repairs = true },
};
#define NR_CHANGES (sizeof changes / sizeof changes[0])

unsigned
each_change_run (const char *name, void (*trial) (struct rng *))
{
  char n[20];

  snprintf (n, sizeof n, "%zu", NR_CHANGES);
  if (getenv ("FAULTS"))
    setenv ("ITERATIONS", n, 0);
  return trials_run (name, 3, 1, trial);
}

const struct each_change *
each_change_now (void)
{
  return &changes[(trials_seed + trials_number) % NR_CHANGES];
}

const struct each_change *
each_change_number (unsigned i)
{
  return i < NR_CHANGES ? &changes[i] : NULL;
}

struct disk_options
each_change_options (const char *path, const struct storage_hooks *hooks)
{
  return (struct disk_options) {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 512, .backing = BACKING_FOLLOW,
    .discard = true, .hooks = hooks,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
}
