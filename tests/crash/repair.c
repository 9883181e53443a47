/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a dirty image when the power goes while it is being repaired?
 *
 * Images that qemu-img made are damaged as a crash with lazy refcounts could, and
 * worse: the dirty bit is set, refcounts and COPIED flags are anything at all.
 * They lie on a simulated disk (simdisk.c).  Before each change that the repair makes the
 * power is cut in all ways, and each file that is left is judged:
 *
 *   - the contents are all there
 *   - if it is not dirty, it is in order, without leaks
 *   - if it is dirty, a second repair leaves it in order, without leaks, and the contents
 *     are all there
 *   - now and then: qemu-img agrees, also about snapshots
 *
 * Then each operation of the repair fails in turn: the image is served read-only, and is
 * as good as after a power cut.
 *
 * Where the image has lazy refcounts, it is then written: at any time a file that is not
 * dirty is in order and has no leaks, and one that is dirty has leaks at most.
 *
 * Environment: SEED replays; ITERATIONS: how many images (default: as many as can be
 * had in SECONDS, 4); FIRST: begin with this one.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/disk.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define DIRTY "dirty.qcow2"

#define OFFSET_BITS UINT64_C (0x00fffffffffffe00)
#define COPIED (UINT64_C (1) << 63)
#define COMPRESSED (UINT64_C (1) << 62)

struct trial {
  struct image_spec spec;
  bool snapshot, lazy;
  struct blob below, expected, old;     /* old: contents of the snapshot */
  struct disk_options options;
  struct simdisk *sim;
  struct rng rng;               /* within the watch: under the simdisk's lock */
  unsigned char *contents;
};

static unsigned nr_cuts, nr_repaired, nr_judged, nr_faults;

/* --- judging --- */

static bool
is_dirty (const struct blob *b)
{
  return b->data[79] & 1;
}

static void
check_contents (struct trial *t, const struct blob *b, const char *when)
{
  if (!survivor_shows (b, t->spec.backing ? &t->below : NULL, &t->expected))
    survivor_fail (b, "%s: wrong contents", when);
}

static void
check_in_order (struct trial *t, const struct blob *b, const char *when)
{
  survivor_check (b, false, when);
  check_contents (t, b, when);
}

static void
ask_qemu (struct trial *t)
{
  survivor_ask_qemu (false, &t->expected, &t->old);
  nr_judged++;
}

/* Opens what is left, which repairs it, and closes. */
static void
repair_again (struct trial *t, const struct blob *left)
{
  struct disk_options options = t->options;
  bool writable = true;
  struct disk *disk;
  struct blob b;

  blob_save (SURVIVOR, left);
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (disk_open (&options, &disk) == -1 ||
      disk_connect (disk, &writable) == -1 || !writable)
    FAIL ("what is left can't be repaired");
  if (disk_disconnect (disk, true) == -1 || disk_close (disk) == -1)
    FAIL ("close after a repair: %m");
  blob_load (SURVIVOR, &b);
  check_in_order (t, &b, "repaired after a power cut");
  blob_free (&b);
  nr_repaired++;
  if (rng_below (&t->rng, 200) == 0)
    ask_qemu (t);
  unlink (SURVIVOR);
  free ((char *) options.path);
}

static void
judge (struct trial *t, const struct blob *b)
{
  nr_cuts++;
  if (!is_dirty (b)) {
    check_in_order (t, b, "not dirty any more");
    return;
  }
  check_contents (t, b, "power cut");
  if (rng_below (&t->rng, 3) == 0)
    repair_again (t, b);
}

static void
check_promise (const struct blob *b)
{
  const bool dirty = is_dirty (b);

  nr_cuts++;
  b->data[79] &= ~1;            /* not what is to be checked */
  survivor_check (b, dirty, dirty ? "lazy refcounts, dirty" :
                  "lazy refcounts, not dirty");
}

static void
watch_lazy (void *opaque, enum hostfile_op op)
{
  struct trial *t = opaque;
  enum power_cut kind;

  (void) op;
  for (kind = 0; kind < CUT_KINDS; kind++)
    check_promise (simdisk_cut (t->sim, &t->rng, kind));
}

static void
watch (void *opaque, enum hostfile_op op)
{
  struct trial *t = opaque;
  enum power_cut kind;

  (void) op;
  for (kind = 0; kind < CUT_KINDS; kind++)
    judge (t, simdisk_cut (t->sim, &t->rng, kind));
  /* The table is there and what it names is not, or the like. */
  judge (t, simdisk_cut (t->sim, &t->rng, CUT_SECTORS));
  judge (t, simdisk_cut (t->sim, &t->rng, CUT_SECTORS));
}

/* --- images --- */

/* Any count, and entries that lead nowhere.  (The table's place is the header's
 * affair.) */
static void
spoil_refcounts (struct trial *t, struct blob *b, struct rng *rng)
{
  const uint64_t cs = t->spec.cluster_size;
  const uint64_t table = blob_get (b, 48, 8), n = b->data[59] * cs / 8;
  const unsigned how = rng_below (rng, 4);
  uint64_t i, k, block;

  for (i = 0; i < n; i++) {
    block = blob_get (b, table + i * 8, 8);
    if (block == 0) {
      if (rng_below (rng, 20) == 0)
        blob_put (b, table + i * 8,
                  rng_below (rng, 2) ? 512 + rng_below (rng, 512) :
                  (rng_next (rng) | UINT64_C (1) << 50) & ~UINT64_C (511), 8);
      continue;
    }
    if (how == 0)
      memset (b->data + block, 0, min64 (cs, b->len - block));
    else
      for (k = block; k < block + cs && k < b->len; k++)
        if (how == 1 || rng_below (rng, 8) == 0)
          b->data[k] = rng_next (rng);
    if (how == 3 && rng_below (rng, 2))
      blob_put (b, table + i * 8, 0, 8);
  }
}

static void
spoil_flags (struct blob *b, uint64_t at, uint64_t n, unsigned step,
             struct rng *rng)
{
  uint64_t i, entry;

  for (i = 0; i < n; i += step) {
    entry = blob_get (b, at + i * 8, 8);
    if ((entry & OFFSET_BITS) != 0 && !(entry & COMPRESSED) &&
        rng_below (rng, 3) == 0)
      blob_put (b, at + i * 8, entry ^ COPIED, 8);
  }
}

static void
make_dirty (struct trial *t, struct rng *rng)
{
  const uint64_t cs = t->spec.cluster_size;
  uint64_t l1, l1_entries, i, table;
  struct blob b;

  blob_load (IMAGE, &b);
  b.data[79] |= 1;
  b.data[87] |= t->lazy;
  l1 = blob_get (&b, 40, 8);
  l1_entries = blob_get (&b, 32, 8) & 0xffffffff;
  for (i = 0; i < l1_entries; i++) {
    table = blob_get (&b, l1 + i * 8, 8) & OFFSET_BITS;
    if (table != 0)
      spoil_flags (&b, table, cs / 8, t->spec.extended ? 2 : 1, rng);
  }
  spoil_flags (&b, l1, l1_entries, 1, rng);
  spoil_refcounts (t, &b, rng);
  blob_save (DIRTY, &b);
  blob_free (&b);
}

static void
make_image (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 12, 14, 16 };
  static const char *const themes[] = {
    "plain", "snapshot", "compressed", "backing", "preallocated",
  };
  const unsigned theme = trials_number % 5;
  struct image_spec *spec = &t->spec;

  spec->version = 3;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 5)];
  spec->extended = spec->cluster_size >= 16384 && rng_below (rng, 2);
  spec->refcount_bits = 1 << rng_below (rng, 7);
  t->snapshot = theme == 1;
  t->lazy = rng_below (rng, 2);
  if (t->snapshot && spec->refcount_bits < 2)
    spec->refcount_bits = 2;
  spec->compressed = theme == 2;
  if (spec->compressed)         /* they share host clusters: large counts */
    spec->refcount_bits = 16;
  spec->size = 512 * (64 + rng_below (rng, 1000));
  if (theme == 3)
    image_over_raw (spec, rng, 512 * (1 + rng_below (rng, spec->size * 3 / 2 / 512)),
                    4, &t->below);
  if (theme == 4)
    spec->preallocation = "metadata";
  image_create (IMAGE, spec);
  image_fill (IMAGE, spec, rng, 1 + rng_below (rng, 8));
  spec->compressed = false;     /* done */
  if (t->snapshot) {
    image_snapshot (IMAGE, "before");
    image_contents (IMAGE, "before", &t->old);
    image_fill (IMAGE, spec, rng, rng_below (rng, 5));
  }
  image_contents (IMAGE, NULL, &t->expected);
  CHECK (t->expected.len == spec->size);
  printf ("%u: %s: ", trials_number, themes[theme]);
  image_print (spec);
  puts (t->lazy ? ", lazy" : "");
  fflush (stdout);
}

/* --- repairing --- */

static void
begin (struct trial *t, struct disk **disk, uint64_t number)
{
  t->sim = simdisk_new (t->options.path, number);
  t->options.hooks = simdisk_hooks (t->sim);
  if (disk_open (&t->options, disk) == -1)
    FAIL ("open failed");
}

/* The bit is there when it should be. */
static void
write_lazily (struct trial *t, struct disk *disk)
{
  struct rng rng;
  uint64_t offset, n;
  int i, r;

  rng_init (&rng, trials_seed, trials_number + 1000000);
  simdisk_watch (t->sim, watch_lazy, t);
  for (i = 0; i < 12; i++) {
    offset = rng_below (&rng, t->spec.size);
    n = 1 + rng_below (&rng, min64 (t->spec.size - offset, 65536));
    switch (rng_below (&rng, 4)) {
    case 0: r = disk_zero (disk, n, offset, true, false, false); break;
    case 1: r = disk_flush (disk); break;
    default:
      memset (t->contents, i + 1, n);
      r = disk_write (disk, t->contents, n, offset, rng_below (&rng, 8) == 0);
    }
    if (r == -1)
      FAIL ("lazy refcounts: request %d: %m", i);
  }
  if (disk_disconnect (disk, true) == -1)
    FAIL ("lazy refcounts: disconnect: %m");
  simdisk_watch (t->sim, NULL, NULL);
  /* Durable, and promised. */
  if (is_dirty (simdisk_cut (t->sim, &t->rng, CUT_NOTHING)))
    FAIL ("lazy refcounts: dirty after the end");
  watch_lazy (t, 0);
  if (disk_close (disk) == -1)
    FAIL ("close: %m");
}

/* Returns how many operations the repair took that can fail. */
static uint64_t
cut_everywhere (struct trial *t)
{
  const unsigned ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC;
  struct disk *disk;
  bool writable = true;
  enum power_cut kind;
  uint64_t n;

  begin (t, &disk, rng_next (&t->rng));
  simdisk_watch (t->sim, watch, t);
  if (disk_connect (disk, &writable) == -1 || !writable)
    FAIL ("connect failed");
  n = simdisk_operations (t->sim, ops);
  simdisk_watch (t->sim, NULL, NULL);
  for (kind = 0; kind < CUT_KINDS; kind++) {
    const struct blob *b = simdisk_cut (t->sim, &t->rng, kind);

    if (is_dirty (b))
      FAIL ("dirty after the repair");
    check_in_order (t, b, "after the repair");
  }
  blob_save (SURVIVOR, simdisk_cut (t->sim, &t->rng, CUT_ALL));
  ask_qemu (t);
  if (disk_read (disk, t->contents, t->spec.size, 0) == -1 ||
      memcmp (t->contents, t->expected.data, t->spec.size) != 0)
    FAIL ("after the repair: reads differently");
  if (t->lazy)
    write_lazily (t, disk);
  else {
    if (disk_disconnect (disk, true) == -1 || disk_close (disk) == -1)
      FAIL ("close: %m");
    check_in_order (t, simdisk_cut (t->sim, &t->rng, CUT_NOTHING), "closed");
  }
  simdisk_free (t->sim);
  return n;
}

/* The operation after the NTHth fails. */
static void
fail_once (struct trial *t, uint64_t nth)
{
  const struct fault fault = {
    .ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC, .after = nth,
    .times = 1, .err = rng_below (&t->rng, 2) ? EIO : ENOSPC,
    .partial = rng_below (&t->rng, 2),
  };
  struct disk *disk;
  bool writable = true;
  int i;

  begin (t, &disk, nth);
  simdisk_fault (t->sim, &fault);
  quiet_errors = true;
  if (disk_connect (disk, &writable) == -1 || writable)
    FAIL ("a repair that failed: the disk is not served read-only");
  quiet_errors = false;
  CHECK (simdisk_failures (t->sim) == 1);
  writable = true;              /* the next client fares no better */
  if (disk_connect (disk, &writable) == -1 || writable)
    FAIL ("a repair that failed was tried again");
  if (disk_read (disk, t->contents, t->spec.size, 0) == -1 ||
      memcmp (t->contents, t->expected.data, t->spec.size) != 0)
    FAIL ("after a repair that failed: reads differently");
  for (i = 0; i < 4; i++)
    judge (t, simdisk_cut (t->sim, &t->rng, rng_below (&t->rng, CUT_KINDS)));
  if (disk_close (disk) == -1)
    FAIL ("close: %m");
  judge (t, simdisk_cut (t->sim, &t->rng, CUT_ALL));
  simdisk_free (t->sim);
  nr_faults++;
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .snapshot = false };
  uint64_t i, n;

  make_image (&t, rng);
  make_dirty (&t, rng);
  t.contents = malloc (t.spec.size);
  CHECK (t.contents != NULL);
  rng_init (&t.rng, rng_next (rng), 500);
  t.options.path = images_path (DIRTY);
  t.options.l2_cache = 32 << 20;
  t.options.l2_slice = 512;
  t.options.backing = BACKING_FOLLOW;
  t.options.discard = true;

  n = cut_everywhere (&t);
  for (i = 0; i < n; i += 1 + n / 16)
    fail_once (&t, i);
  fail_once (&t, n - 1);

  free ((char *) t.options.path);
  blob_free (&t.below);
  blob_free (&t.expected);
  blob_free (&t.old);
  free (t.contents);
}

int
main (void)
{
  const unsigned done = trials_run ("repair", 4, 5, one_image);

  printf ("%u images, %u power cuts, %u repaired again, %u failures, "
          "%u judged by qemu-img\n", done, nr_cuts, nr_repaired, nr_faults,
          nr_judged);
  return 0;
}
