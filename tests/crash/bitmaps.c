/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do bitmaps contain after a power cut or an I/O error at any moment?
 *
 * Several threads change a disk with persistent bitmaps on a simulated file (simdisk.c).
 * The power is cut just before the file is changed or synced.  In each file that is left:
 *
 *   - there is no corruption (the clusters of bitmaps are counted); leaks are allowed
 *   - a bitmap that records changes is marked as in use; but with bitmap_durable never,
 *   and
 *     then it also has all bits that any request needed that had ended; or it has all
 *     bits of data that differs from the first contents of the disk, and the bits that it
 *     had at first, and none for data that no thread ever tried to change (with
 *     bitmap_durable more: how much of what has not changed is printed, the median and
 *     the worst)
 *   - a bitmap that does not record changes, and one that was in use at first, are
 *     unchanged
 *
 * After the last writer has left, all are valid, exact and durable, and nothing is
 * leaked.  If errors are injected, bitmaps may stay in use at first, but the next attempt
 * without errors makes them valid, and no bit is lost.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (4) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "request/bitmap.h"
#include "disk/export.h"
#include "lib/checker.h"
#include "lib/encrypted.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define THREADS 3
#define LONGEST (UINT64_C (256) << 10)

enum { FOLLOWS, FOLLOWS_TOO, STILL, VOID, BITMAPS };
static const char *const names[BITMAPS] = { "follows", "b", "still", "void" };

struct trial {
  struct image_spec spec;
  uint64_t sectors;
  struct blob initial;                  /* guest contents */
  struct crypt_cipher *cipher;          /* NULL: not encrypted */
  struct checked_bitmap found[BITMAPS];
  unsigned char *marked[BITMAPS];       /* what they said in the beginning */

  struct disk_options options;
  struct power_cut_trial power;
  struct disk *disk;
  struct export *client;
  bool errors;                  /* requests may fail */
  bool unfinished;              /* the last writer could not leave in order */
  bool leaving;                 /* now it gets interesting */

  /* For each sector: somebody wanted to change it; somebody did. */
  _Atomic unsigned char *begun, *done;

  /* Only used by those who judge, under the simdisk's lock. */
  unsigned char *contents, *now;
  struct blob plain;
};

struct worker {
  struct trial *t;
  struct rng rng;
};

static unsigned nr_valid, nr_reopened, nr_failed;
/* With bitmap_durable, until the writer has left: in how many bitmaps are so many percent
 * marked of what nobody wanted to change? */
static unsigned excess[101], nr_excess;

/* --- judging --- */

/* Is there a sector in the same piece for which FLAGS is set? */
static bool
piece_has (const struct trial *t, const struct checked_bitmap *b,
           const _Atomic unsigned char *flags, uint64_t sector)
{
  const uint64_t n = UINT64_C (1) << (b->granularity_bits - 9);
  const uint64_t first = round_down (sector, n);

  for (uint64_t s = first; s < first + n && s < t->sectors; s++)
    if (flags[s])
      return true;
  return false;
}

/* A valid bitmap that follows changes.  EXACT: after leaving. */
static void
judge_follower (struct trial *t, int which, const struct checked_bitmap *b,
                bool exact, const char *when)
{
  const uint64_t n = UINT64_C (1) << (b->granularity_bits - 9);
  uint64_t unchanged = 0, marked = 0;

  for (uint64_t s = 0; s < t->sectors; s++) {
    const bool differs = memcmp (t->contents + s * 512,
                                 t->initial.data + s * 512, 512) != 0;

    if (!t->now[s] && (differs || t->marked[which][s]))
      FAIL ("%s: bitmap %s does not know of sector %" PRIu64, when,
            names[which], s);
    if (!t->now[s] && (exact || t->options.bitmap_durable) && t->done[s])
      FAIL ("%s: bitmap %s has forgotten sector %" PRIu64, when,
            names[which], s);
    /* Once for each piece is enough. */
    if (t->options.bitmap_durable && !exact) {
      if (s % n == 0 && !t->marked[which][s] && !piece_has (t, b, t->begun, s)) {
        unchanged++;
        marked += t->now[s];
      }
    }
    else if (s % n == 0 && t->now[s] && !t->marked[which][s] &&
        !piece_has (t, b, t->begun, s))
      FAIL ("%s: bitmap %s claims that sector %" PRIu64 " was changed", when,
            names[which], s);
  }
  if (unchanged > 0) {
    excess[marked * 100 / unchanged]++;
    nr_excess++;
  }
}

static void
judge_bitmap (struct trial *t, const struct blob *file, int which,
              bool exact, const char *when)
{
  const struct checked_bitmap *old = &t->found[which];
  struct checked_bitmap b;

  if (!checker_bitmap (file, names[which], &b, t->now))
    FAIL ("%s: bitmap %s has gone", when, names[which]);
  if (b.at != old->at || b.table != old->table ||
      b.table_entries != old->table_entries ||
      b.automatic != old->automatic ||
      b.granularity_bits != old->granularity_bits)
    FAIL ("%s: bitmap %s has become another one", when, names[which]);
  if (which == STILL || which == VOID) {
    if (b.in_use != old->in_use ||
        memcmp (t->now, t->marked[which], t->sectors) != 0)
      FAIL ("%s: bitmap %s was changed", when, names[which]);
  }
  else if (b.in_use && t->options.bitmap_durable)
    FAIL ("%s: bitmap %s is in use", when, names[which]);
  else if (!b.in_use) {
    judge_follower (t, which, &b, exact, when);
    nr_valid++;
  }
  else if (exact)
    FAIL ("%s: bitmap %s is in use", when, names[which]);
}

static unsigned long
judge_file (struct trial *t, const struct blob *file, bool exact,
            bool leaks_allowed, const char *when)
{
  const unsigned long leaks = survivor_check (file, leaks_allowed, when);
  int which;

  if (t->cipher)
    encrypted_plain (t->cipher, file, &t->plain);
  if (checker_read_data (file, t->cipher ? &t->plain : NULL, NULL, t->contents,
                         t->spec.size) == -1)
    FAIL ("%s: the contents can't be read", when);
  for (which = 0; which < BITMAPS; which++)
    judge_bitmap (t, file, which, exact, when);
  return leaks;
}

/* What is left, in SURVIVOR, is opened and written.  What is valid follows, what is
 * in use stays so, and nothing is done to the others. */
static void
go_on_after_crash (struct trial *t, unsigned long leaks)
{
  struct disk_options options = t->options;
  struct checked_bitmap before[BITMAPS], after;
  const uint64_t at = rng_below (&t->power.rng, t->sectors) * 512;
  struct export *client;
  struct disk *disk;
  struct blob b;
  int which;

  blob_load (SURVIVOR, &b);
  for (which = 0; which < BITMAPS; which++)
    CHECK (checker_bitmap (&b, names[which], &before[which], NULL));
  blob_free (&b);

  options.path = images_path (SURVIVOR);
  options.bitmap_durable = rng_below (&t->power.rng, 2);
  options.hooks = &without_sync;
  if (reach_open (&options, &disk) == -1 ||
      (client = export_open (disk, "", true)) == NULL ||
      !export_is_writable (client) ||
      export_write (client, "x", 1, at, false) == -1 ||
      export_close (client) == -1 || disk_close (disk) == -1)
    FAIL ("after a crash: %m");

  blob_load (SURVIVOR, &b);
  if (survivor_check (&b, true, "written after a crash") > leaks)
    FAIL ("written after a crash: more leaks");
  for (which = 0; which < BITMAPS; which++) {
    CHECK (checker_bitmap (&b, names[which], &after, t->now));
    if (after.in_use != before[which].in_use)
      FAIL ("written after a crash: bitmap %s: in use: %d", names[which],
            after.in_use);
    if (which <= FOLLOWS_TOO && !after.in_use && !t->now[at / 512])
      FAIL ("written after a crash: bitmap %s does not know", names[which]);
  }
  blob_free (&b);
  free ((char *) options.path);
  nr_reopened++;
}

/* After the last writer has left all is exact. */
static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  unsigned long leaks;

  leaks = judge_file (t, left->file, left->done, !left->done || left->kind != CUT_ALL,
                      left->when);
  if (!left->done && rng_below (&t->power.rng, 16) == 0) {
    blob_save (SURVIVOR, left->file);
    go_on_after_crash (t, leaks);
  }
}

static void
judge_now (struct trial *t, bool exact, bool leaks_allowed, const char *when)
{
  judge_file (t, simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL), exact,
              leaks_allowed, when);
}

static unsigned
cuts (void *opaque, enum storage_op op)
{
  struct trial *t = opaque;
  struct rng *rng = &t->power.rng;
  unsigned n = rng_below (rng, op == STORAGE_OP_SYNC ? 2 : 30) == 0;

  if (t->leaving)
    n = 1 + rng_below (rng, 3);
  return trials_time_left () ? n : 0;
}

/* --- requests --- */

static void
set_flags (_Atomic unsigned char *flags, uint64_t offset, uint64_t count)
{
  for (uint64_t s = offset / 512; s <= (offset + count - 1) / 512; s++)
    flags[s] = 1;
}

static void
one_request (struct worker *w, const unsigned char *data)
{
  struct trial *t = w->t;
  const uint64_t cs = t->spec.cluster_size;
  uint64_t offset = rng_below (&w->rng, t->spec.size);
  uint64_t count = 1 + rng_below (&w->rng, rng_below (&w->rng, 3) ? 4096 : LONGEST);
  const bool fua = rng_below (&w->rng, 8) == 0;
  int r;

  count = min64 (count, t->spec.size - offset);
  switch (rng_below (&w->rng, t->options.bitmap_durable ? 7 : 6)) {
  case 6:
    bitmap_narrow (disk_bitmaps (t->disk));
    return;
  case 0:
    set_flags (t->begun, offset, count);
    r = export_zero (t->client, count, offset,
                     rng_below (&w->rng, 2) ? REQUEST_MAY_TRIM : 0, fua);
    break;
  case 1:
    offset = round_up (offset, cs);
    count = round_down (count, cs);
    if (count == 0 || !range_within (offset, count, t->spec.size))
      return;
    set_flags (t->begun, offset, count);
    r = export_trim (t->client, count, offset, fua);
    break;
  case 2:
    if (export_flush (t->client) == -1 && !t->errors)
      FAIL ("flush: %m");
    return;
  default:
    set_flags (t->begun, offset, count);
    r = export_write (t->client, data + rng_below (&w->rng, 512), count, offset, fua);
  }
  if (r == 0)
    set_flags (t->done, offset, count);
  else if (!t->errors)
    FAIL ("request at %" PRIu64 "+%" PRIu64 ": %m", offset, count);
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  unsigned char *data = malloc (LONGEST + 512);
  unsigned i, n = 1 + rng_below (&w->rng, 8);

  CHECK (data != NULL);
  for (uint64_t b = 0; b < LONGEST + 512; b++)
    data[b] = 1 + b % 251;
  for (i = 0; i < n; i++)
    one_request (w, data);
  free (data);
  return NULL;
}

static void
run_workers (struct trial *t, struct rng *rng)
{
  struct worker workers[THREADS];
  const unsigned n = 1 + rng_below (rng, THREADS);
  unsigned i;

  for (i = 0; i < n; i++) {
    workers[i].t = t;
    rng_init (&workers[i].rng, rng_next (rng), i);
  }
  run_threads (work, workers, sizeof workers[0], n);
}

/* --- images --- */

/* What QEMU does not make itself: a bitmap that is in use; a cluster of bits that are
 * all set, without a host cluster. */
static void
patch_bitmaps (struct trial *t, struct rng *rng)
{
  struct checked_bitmap b;
  struct blob file;

  blob_load (IMAGE, &file);
  CHECK (checker_bitmap (&file, names[VOID], &b, NULL));
  file.data[b.at + 15] |= 1;
  CHECK (checker_bitmap (&file, names[FOLLOWS_TOO], &b, NULL));
  for (uint64_t i = 0; i < b.table_entries; i++) {
    uint64_t entry;

    memcpy (&entry, file.data + b.table + i * 8, 8);
    if (entry == 0 && rng_below (rng, 4) == 0)
      file.data[b.table + i * 8 + 7] = 1;
  }
  blob_save (IMAGE, &file);
  for (int which = 0; which < BITMAPS; which++) {
    t->marked[which] = malloc (t->sectors);
    CHECK (t->marked[which] != NULL);
    CHECK (checker_bitmap (&file, names[which], &t->found[which],
                           t->marked[which]));
  }
  blob_free (&file);
}

static void
make_image (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 12, 16 };
  struct image_spec *spec = &t->spec;

  spec->version = 3;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->refcount_bits = 1 << rng_below (rng, 7);
  spec->size = 512 * (64 + rng_below (rng, rng_below (rng, 3) ? 3000 : 12000));
  t->sectors = spec->size / 512;
  if (rng_below (rng, 6) == 0)
    spec->encrypt = "luks";
  image_create (IMAGE, spec);
  image_remember (SURVIVOR, spec);
  t->cipher = encrypted_cipher (IMAGE);
  image_fill (IMAGE, spec, rng, rng_below (rng, 3));
  for (int which = 0; which < BITMAPS; which++)
    image_bitmap (IMAGE, names[which], 9 + rng_below (rng, rng_below (rng, 2) ? 3 : 13));
  image_fill (IMAGE, spec, rng, rng_below (rng, 3));
  image_bitmap_disable (IMAGE, names[STILL]);
  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == spec->size);
  patch_bitmaps (t, rng);

  t->contents = malloc (spec->size);
  t->now = malloc (t->sectors);
  t->begun = calloc (t->sectors, 1);
  t->done = calloc (t->sectors, 1);
  CHECK (t->contents && t->now && t->begun && t->done);
}

static void
free_image (struct trial *t)
{
  for (int which = 0; which < BITMAPS; which++)
    free (t->marked[which]);
  free ((void *) t->begun);
  free ((void *) t->done);
  free (t->contents);
  free (t->now);
  blob_free (&t->initial);
  blob_free (&t->plain);
  crypt_free (t->cipher);
}

static void
random_fault (struct trial *t, struct rng *rng)
{
  const bool space = rng_below (rng, 8) != 0;
  const struct fault fault = {
    .ops = space ? 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE :
      1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC | 1 << STORAGE_OP_READ,
    .after = rng_below (rng, 12), .times = 1 + rng_below (rng, 4),
    .err = space ? ENOSPC : EIO, .partial = rng_below (rng, 2),
  };

  simdisk_fault (t->power.sim, &fault);
}

/* The first write that storing does: to a cluster of bits.  Nothing refers to new
 * ones by then, so all must be given back. */
static const struct fault first_write = {
  .ops = 1 << STORAGE_OP_WRITE, .times = 1, .err = ENOSPC,
};

/* A writer comes and leaves.  With errors, or without. */
static void
one_session (struct trial *t, struct rng *rng, bool errors)
{
  const unsigned when = rng_below (rng, 6);
  bool leaks = true;
  int r;

  t->errors = quiet_errors = errors;
  t->client = export_open (t->disk, "", true);
  if (t->client == NULL || !export_is_writable (t->client))
    FAIL ("connect: %m");
  bitmap_set_regions (disk_bitmaps (t->disk), 12 + rng_below (rng, 8));
  if (errors && when == 2)
    random_fault (t, rng);
  if (rng_below (rng, 8) != 0)
    run_workers (t, rng);
  if (errors && when < 2) {
    /* (With bitmap_durable, the bits may be in the file already.) */
    leaks = export_flush (t->client) == -1 || t->unfinished || t->options.bitmap_durable;
    simdisk_fault (t->power.sim, &first_write);
  }
  else if (errors && when > 2)
    random_fault (t, rng);
  t->leaving = true;
  r = export_close (t->client);
  t->leaving = false;
  simdisk_fault (t->power.sim, NULL);
  t->unfinished = r == -1;
  if (r == 0) {
    t->power.done = true;
    power_cut_all_ways (&t->power);
    t->power.done = false;
    return;
  }
  if (!errors)
    FAIL ("disconnect: %m");
  nr_failed++;
  judge_now (t, false, leaks, "after a failure");
}

static void
open_disk (struct trial *t, struct rng *rng)
{
  t->options.path = images_path (IMAGE);
  t->options.secret = (struct image_secret) {
    .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET)
  };
  t->options.l2_cache = 32 << 20;
  t->options.l2_slice = 512;
  t->options.discard = true;
  t->power.path = t->options.path;
  power_cut_begin (&t->power, rng_next (rng));
  t->options.hooks = simdisk_hooks (t->power.sim);
  if (reach_open (&t->options, &t->disk) == -1)
    FAIL ("open: %m");
  t->unfinished = false;
  memset ((void *) t->begun, 0, t->sectors);
  memset ((void *) t->done, 0, t->sectors);
}

/* BROKEN: all changes are refused by now. */
static void
close_disk (struct trial *t, bool broken)
{
  /* If the last session could not end in order, that is tried again now. */
  t->leaving = true;
  if (disk_close (t->disk) == -1 && !broken)
    FAIL ("close: %m");
  t->leaving = false;
  judge_now (t, !broken, broken, "closed");
  power_cut_end (&t->power);
  free ((char *) t->options.path);
}

/* After anything but a lack of space, nothing is written any more. */
static bool
is_broken (const struct trial *t)
{
  struct export *e = export_open (t->disk, "", false);
  int r;

  CHECK (e != NULL);
  r = export_flush (e);
  CHECK (export_close (e) == 0);
  return r == -1;
}

static void
random_sessions (struct trial *t, struct rng *rng)
{
  unsigned cycles = 1 + rng_below (rng, 6), i;
  bool broken = false;

  open_disk (t, rng);
  for (i = 0; i < cycles && !broken; i++) {
    one_session (t, rng, rng_below (rng, 2));
    broken = is_broken (t);
  }
  if (broken)
    quiet_errors = true;
  else if (rng_below (rng, 2))
    one_session (t, rng, false);
  close_disk (t, broken);
}

/* A session whose last part meets FAULT. */
static int
small_session (struct trial *t, struct rng *rng, const struct fault *fault)
{
  const uint64_t sector = rng_below (rng, t->sectors);
  int r;

  t->client = export_open (t->disk, "", true);
  CHECK (t->client && export_is_writable (t->client));
  set_flags (t->begun, sector * 512, 512);
  if (export_zero (t->client, 512, sector * 512, REQUEST_MAY_TRIM, false) == -1 ||
      export_flush (t->client) == -1)
    FAIL ("zero: %m");
  set_flags (t->done, sector * 512, 512);
  simdisk_fault (t->power.sim, fault);
  r = export_close (t->client);
  simdisk_fault (t->power.sim, NULL);
  return r;
}

/* There is no space for the first write of a leaving writer; for the second; and so on.
 * Then for the first one of another.  Then there is. */
static void
fail_each_write (struct trial *t, struct rng *rng)
{
  struct fault fault = first_write;
  int r;

  quiet_errors = true;
  do {
    open_disk (t, rng);
    t->power.cuts_left = 0;
    r = small_session (t, rng, &fault);
    judge_now (t, r == 0, r == -1, "a write failed");
    if (r == -1) {
      small_session (t, rng, &first_write);
      judge_now (t, false, true, "two writes failed");
    }
    close_disk (t, false);
    fault.after++;
  } while (r == -1);
  quiet_errors = false;
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .errors = false };

  make_image (&t, rng);
  t.power = (struct power_cut_trial) { .opaque = &t, .cuts = cuts, .judge = judge };
  rng_init (&t.power.rng, rng_next (rng), 500);
  printf ("%u: ", trials_number);
  image_print (&t.spec);
  t.options.bitmap_durable = rng_below (rng, 2);
  printf (", granularities %u %u%s%s\n", t.found[FOLLOWS].granularity_bits,
          t.found[FOLLOWS_TOO].granularity_bits, t.cipher ? ", encrypted" : "",
          t.options.bitmap_durable ? ", durable" : "");
  fflush (stdout);
  random_sessions (&t, rng);
  if (rng_below (rng, 4) == 0)
    fail_each_write (&t, rng);
  free_image (&t);
}

static void
print_excess (void)
{
  unsigned median = 0, worst = 100, seen;

  for (seen = excess[0]; 2 * seen < nr_excess; seen += excess[median])
    median++;
  while (excess[worst] == 0)
    worst--;
  printf ("durable: after a power cut, %u %% (median of %u bitmaps) or %u %% (worst) of "
          "what was not changed is marked\n", median, nr_excess, worst);
}

int
main (void)
{
  const unsigned done = trials_run ("bitmaps", 4, 8, one_image);

  printf ("%u images, %u power cuts, %u failures, %u valid bitmaps judged, "
          "%u written again\n", done, power_cuts.cuts, nr_failed, nr_valid, nr_reopened);
  if (nr_excess > 0)
    print_excess ();
  /* (Of one image alone, the bitmaps may all have been in use.) */
  CHECK (power_cuts.cuts > 0 && nr_valid > 0);
  return 0;
}
