/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of a dirty image after a power cut while it is being repaired?
 *
 * Images made by qemu-img are damaged as by a crash with lazy refcounts, and worse: the
 * dirty bit is set, and refcounts and COPIED flags are arbitrary.  They lie on a
 * simulated disk (simdisk.c).  Before each change of the repair the power is cut in all
 * ways, and each file that is left is judged:
 *
 *   - the contents are complete
 *   - if it is not dirty, it has no faults and no leaks
 *   - if it is dirty, a second repair leaves it without faults and leaks, with its
 *     contents
 *   - now and then: qemu-img agrees, also about snapshots
 *
 * Then each operation of the repair fails in turn: the image is served read-only (or not
 * at all, if it cannot be read), and is in the same state as after a power cut.  A later
 * client may write if there is space then that the first one lacked.
 *
 * If allocations fail in turn, a client is refused, and the next one finds a repaired
 * image that it can write.
 *
 * If the image has lazy refcounts, it is then written: at any time, a file that is not
 * dirty has no faults and no leaks, and a dirty one has at most leaks.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/reach.h"
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
  struct power_cut_trial power;
  struct disk *disk;
  struct export *client;
  unsigned char *contents;
};

static unsigned nr_repaired, nr_judged;

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
  struct export *client;
  struct disk *disk;
  struct blob b;

  blob_save (SURVIVOR, left);
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (reach_open (&options, &disk) == -1 ||
      (client = export_open (disk, "", true)) == NULL ||
      !export_is_writable (client))
    FAIL ("what is left can't be repaired");
  if (export_close (client) == -1 || disk_close (disk) == -1)
    FAIL ("close after a repair: %m");
  blob_load (SURVIVOR, &b);
  check_in_order (t, &b, "repaired after a power cut");
  blob_free (&b);
  nr_repaired++;
  if (rng_below (&t->power.rng, 200) == 0)
    ask_qemu (t);
  unlink (SURVIVOR);
  free ((char *) options.path);
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;

  if (left->done && left->fault && !left->shortage)
    FAIL ("a repair that failed: the disk is not served read-only");
  if (!is_dirty (left->file))
    check_in_order (t, left->file, left->when);
  else if (left->done)
    survivor_fail (left->file, "%s: dirty", left->when);
  else {
    check_contents (t, left->file, left->when);
    if (rng_below (&t->power.rng, 3) == 0)
      repair_again (t, left->file);
  }
}

/* What lazy refcounts promise.  Once the writer has left, DONE, it is not dirty. */
static void
judge_lazy (void *opaque, const struct remains *left)
{
  const bool dirty = is_dirty (left->file);
  struct blob b = *left->file;

  (void) opaque;
  if (dirty && left->done)
    FAIL ("lazy refcounts: dirty after the end");
  b.data[79] &= ~1;             /* not what is to be checked */
  survivor_check (&b, dirty, dirty ? "lazy refcounts, dirty" :
                  "lazy refcounts, not dirty");
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

/* The first writer comes.  If it finds that it can only read, the repair has failed.  If
 * reads fail, there may be no disk or no client (t->disk, t->client are NULL). */
static int
repair (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;

  t->options.hooks = hooks;
  t->disk = NULL;
  if (reach_open (&t->options, &t->disk) == -1)
    return -1;
  t->client = export_open (t->disk, "", true);
  return t->client && export_is_writable (t->client) ? 0 : -1;
}

/* Does a second client that would write fare as the first one did?  If the first one
 * found no space, there may be some now. */
static bool
fares_as_before (const struct trial *t, struct export *next)
{
  return export_is_writable (next) == export_is_writable (t->client) ||
    (export_is_writable (next) && t->power.no_space);
}

/* The bit is there when it should be. */
static void
write_lazily (struct trial *t)
{
  struct rng rng;
  uint64_t offset, n;
  int i, r;

  rng_init (&rng, trials_seed, trials_number + 1000000);
  t->power.judge = judge_lazy;
  t->power.done = false;
  for (i = 0; i < 12; i++) {
    offset = rng_below (&rng, t->spec.size);
    n = 1 + rng_below (&rng, min64 (t->spec.size - offset, 65536));
    switch (rng_below (&rng, 4)) {
    case 0: r = export_zero (t->client, n, offset, REQUEST_MAY_TRIM, false); break;
    case 1: r = export_flush (t->client); break;
    default:
      memset (t->contents, i + 1, n);
      r = export_write (t->client, t->contents, n, offset, rng_below (&rng, 8) == 0);
    }
    if (r == -1)
      FAIL ("lazy refcounts: request %d: %m", i);
  }
  if (export_close (t->client) == -1)
    FAIL ("lazy refcounts: disconnect: %m");
  t->power.done = true;         /* durable, and promised */
  power_cut_all_ways (&t->power);
}

static void
ended_well (struct trial *t)
{
  blob_save (SURVIVOR, simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL));
  ask_qemu (t);
  if (t->lazy)
    write_lazily (t);
  else if (export_close (t->client) == -1)
    FAIL ("disconnect: %m");
}

static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;
  struct export *next;

  if (t->disk == NULL)
    return;
  next = export_open (t->disk, "", fault);
  if (next == NULL ||
      (fault && t->client && !fares_as_before (t, next)))
    FAIL ("the next client fares otherwise");
  if (export_read (next, t->contents, t->spec.size, 0) == -1 ||
      memcmp (t->contents, t->expected.data, t->spec.size) != 0)
    FAIL ("after the repair: reads differently");
  if (!fault)
    ended_well (t);
  else if (t->client && export_close (t->client) == -1)
    FAIL ("disconnect: %m");
  if (export_close (next) == -1 || disk_close (t->disk) == -1)
    FAIL ("close: %m");
  power_cut_now (&t->power, CUT_NOTHING);
  t->power.judge = judge;
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .snapshot = false };

  make_image (&t, rng);
  make_dirty (&t, rng);
  t.contents = malloc (t.spec.size);
  CHECK (t.contents != NULL);
  t.options.path = images_path (DIRTY);
  t.options.l2_cache = 32 << 20;
  t.options.l2_slice = 512;
  t.options.backing = BACKING_FOLLOW;
  t.options.discard = true;
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = repair, .judge = judge,
    .ended = ended, .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);

  power_cut_everywhere (&t.power);
  power_cut_fail_each (&t.power);

  free ((char *) t.options.path);
  blob_free (&t.below);
  blob_free (&t.expected);
  blob_free (&t.old);
  free (t.contents);
}

int
main (void)
{
  const unsigned done = trials_run ("repair", 3, 5, one_image);

  printf ("%u images, %u power cuts, %u repaired again, %u failures, "
          "%u times no memory, %u judged by qemu-img\n", done, power_cuts.cuts,
          nr_repaired, power_cuts.faults, power_cuts.shortages, nr_judged);
  return 0;
}
