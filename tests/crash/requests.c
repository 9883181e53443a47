/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an image after a power cut at any moment?
 *
 * Several threads change a disk on a simulated file (simdisk.c).  At random moments, just
 * before the file is changed or synced, the power is cut: any subset of the unsynced
 * changes may have reached the disk.  Each file that is left is judged:
 *
 *   - an independent check of all metadata finds no corruption; leaks are allowed
 *   - every sector contains the data that was flushed last, or data that was written to
 *     this very sector since then (ledger.c)
 *   - now and then: the plugin can open and write it again, and leaves no faults, nor
 *     (version 3) leaks
 *   - now and then: qemu-img agrees about metadata, contents and the snapshot
 *
 * Meanwhile the threads continue, and the disk may change as a whole (changer.c): the
 * power is cut in the middle of that, too.  After the last writer has left, the file has
 * no faults and no leaks, and is durable.
 *
 * Environment: SEED repeats a run (as far as the timing of threads allows); ITERATIONS:
 * how many images (default: as many as are possible in SECONDS, 7); FIRST: start with
 * this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/changer.h"
#include "lib/checker.h"
#include "lib/encrypted.h"
#include "lib/images.h"
#include "lib/ledger.h"
#include "lib/pieces.h"
#include "lib/powercut.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
/* External data files; of one length, since the survivor's header is patched. */
#define DATA "top.data"
#define SURVIVOR_DATA "end.data"

struct trial {
  struct rng *rng;
  struct image_spec spec;
  const char *theme;
  unsigned threads, ops;
  bool shared;                  /* zeros, then data, into clusters that a snapshot
                                   shares: what surrounds them is copied */
  bool lives;                   /* the disk changes as a whole meanwhile */
  bool eager;                   /* flush after each request, so that no need of one
                                   hides behind another's */
  struct disk_options options;
  struct power_cut_trial power;
  struct disk *disk;
  struct export *client;        /* all workers are connections of one */
  struct ledger *ledger;
  struct pieces pieces;
  struct blob initial, below, snapshot;
  bool has_below;
  struct crypt_cipher *cipher;  /* NULL: not encrypted */

  /* Only used by those who judge, under the simdisk's lock. */
  unsigned char *contents;
  struct blob plain;
};

struct worker {
  struct trial *t;
  unsigned id;
  struct rng rng;
  unsigned char *buf;
};

#define LONGEST (256u << 10)

static unsigned nr_reopened, nr_judged, nr_changes;

/* --- judging what is left --- */

/* Where the guest data are, as the guest sees them:  NULL if that is in the image.
 * DATA: of the data file, or NULL. */
static const struct blob *
guest_data (struct trial *t, const struct blob *image, const struct blob *data)
{
  if (t->cipher == NULL)
    return data;
  encrypted_plain (t->cipher, data ? data : image, &t->plain);
  return &t->plain;
}

static void
read_contents (struct trial *t, const struct blob *b, const struct blob *data,
               const char *when)
{
  if (checker_read_data (b, data, t->has_below ? &t->below : NULL, t->contents,
                         t->spec.size) == -1)
    FAIL ("%s: the contents can't be read", when);
}

/* A raw data file is the disk (but for encryption), without the image's help. */
static void
check_raw_data (struct trial *t, const struct blob *data, const char *when)
{
  if (!t->spec.data_file_raw)
    return;
  CHECK (data->len >= t->spec.size);
  if (!ledger_allows (t->ledger, 0, t->spec.size / LEDGER_SECTOR, data->data,
                      true))
    FAIL ("%s: wrong contents of the raw data file", when);
}

/* The image, which then names the data file that is saved with it. */
static void
save_survivor (const struct trial *t, const struct blob *b, const struct blob *data)
{
  const uint64_t header = min64 (b->len, t->spec.cluster_size);
  struct blob patched;
  unsigned char *name;

  if (data == NULL) {
    blob_save (SURVIVOR, b);
    return;
  }
  patched = blob_copy (b);
  name = memmem (patched.data, header, DATA, strlen (DATA));
  CHECK (name != NULL);
  /* (A change of the extensions may leave an old copy.) */
  for (; name; name = memmem (patched.data, header, DATA, strlen (DATA)))
    memcpy (name, SURVIVOR_DATA, strlen (DATA));
  blob_save (SURVIVOR, &patched);
  blob_save (SURVIVOR_DATA, data);
  blob_free (&patched);
}

/* Opens what is left, writes a little, closes. */
static void
go_on_after_crash (struct trial *t, unsigned long leaks)
{
  struct disk_options options = t->options;
  struct rng *rng = &t->power.rng;
  struct export *client;
  struct disk *disk;
  unsigned char *buf = malloc (LONGEST);
  unsigned char *model = malloc (t->spec.size);
  unsigned long leaks_after;
  uint64_t at, n;
  struct blob b, data = { .len = 0 };
  unsigned i;

  CHECK (buf != NULL && model != NULL);
  memcpy (model, t->contents, t->spec.size);
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (reach_open (&options, &disk) == -1 ||
      (client = export_open (disk, "", true)) == NULL ||
      !export_is_writable (client))
    FAIL ("after a crash: the image can't be opened");

  for (at = 0; at < t->spec.size; at += n) {
    n = min64 (t->spec.size - at, LONGEST);
    if (export_read (client, buf, n, at) == -1 ||
        memcmp (buf, model + at, n) != 0)
      FAIL ("after a crash: %" PRIu64 "+%" PRIu64 " reads differently", at, n);
  }
  for (i = 0; i < 12; i++) {
    at = rng_below (rng, t->spec.size / 512) * 512;
    n = min64 (t->spec.size - at, 512 * (1 + rng_below (rng, 64)));
    memset (buf, 1 + i, n);
    if (i % 4 == 3) {
      memset (buf, 0, n);
      if (export_zero (client, n, at, REQUEST_MAY_TRIM, false) == -1)
        FAIL ("after a crash: zero: %m");
    }
    else if (export_write (client, buf, n, at, i % 4 == 2) == -1)
      FAIL ("after a crash: write: %m");
    memcpy (model + at, buf, n);
  }
  if (export_close (client) == -1 || disk_close (disk) == -1)
    FAIL ("after a crash: close: %m");

  blob_load (SURVIVOR, &b);
  if (t->spec.data_file)
    blob_load (SURVIVOR_DATA, &data);
  /* Version 2 has no place for the mark that makes the next start free leaks. */
  leaks_after = survivor_check (&b, t->spec.version < 3, "written after a crash");
  if (leaks_after > leaks)
    FAIL ("after a crash: %lu leaks have become %lu", leaks, leaks_after);
  read_contents (t, &b, guest_data (t, &b, t->spec.data_file ? &data : NULL),
                 "written after a crash");
  if (memcmp (t->contents, model, t->spec.size) != 0)
    FAIL ("after a crash: what was written then is not there");
  blob_free (&b);
  blob_free (&data);
  free ((char *) options.path);
  free (model);
  free (buf);
  nr_reopened++;
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  const struct blob *plain = guest_data (t, left->file, left->data);
  const struct blob now = { t->contents, t->spec.size };
  unsigned long leaks;

  leaks = survivor_check (left->file, !left->done || left->kind != CUT_ALL, left->when);
  read_contents (t, left->file, plain, left->when);
  if (!ledger_allows (t->ledger, 0, t->spec.size / LEDGER_SECTOR, t->contents,
                      true)) {
    save_survivor (t, left->file, left->data);
    FAIL ("%s: wrong contents", left->when);
  }
  check_raw_data (t, plain, left->when);

  if (!left->done && rng_below (&t->power.rng, 12) == 0) {
    save_survivor (t, left->file, left->data);
    if (rng_below (&t->power.rng, 3) == 0) {
      survivor_ask_qemu (true, &now, &t->snapshot);
      nr_judged++;
    }
    go_on_after_crash (t, leaks);
    unlink (SURVIVOR);
  }
}

/* Syncs are the most interesting: nothing is ever less durable than just before. */
static unsigned
cuts (void *opaque, enum storage_op op)
{
  struct trial *t = opaque;

  return op == STORAGE_OP_SYNC ? rng_below (&t->power.rng, 4) :
    rng_below (&t->power.rng, 24) == 0;
}

/* --- requests --- */

static void
check_sectors (struct worker *w, uint64_t offset, uint64_t count)
{
  if (export_read (w->t->client, w->buf, count, offset) == -1)
    FAIL ("read %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  if (!ledger_allows (w->t->ledger, offset / 512, count / 512, w->buf, false))
    FAIL ("read %" PRIu64 "+%" PRIu64 ": wrong contents", offset, count);
}

static void
write_once (struct worker *w, uint64_t offset, uint64_t count, bool fua)
{
  struct ledger *l = w->t->ledger;
  const uint32_t contents = ledger_contents (l);

  ledger_fill (contents, offset / 512, count / 512, w->buf);
  ledger_begin (l, offset / 512, count / 512, contents);
  if (export_write (w->t->client, w->buf, count, offset, fua) == -1)
    FAIL ("write %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  ledger_end (l, offset / 512, count / 512, fua);
}

static void
do_write (struct worker *w, uint64_t offset, uint64_t count)
{
  write_once (w, offset, count, rng_below (&w->rng, 16) == 0);
  /* In place, where the mapping may be in the file, and not durable. */
  if (w->t->eager && rng_below (&w->rng, 4) == 0)
    write_once (w, offset, count, true);
}

static void
do_zero (struct worker *w, uint64_t offset, uint64_t count)
{
  struct ledger *l = w->t->ledger;
  const bool fua = rng_below (&w->rng, 8) == 0;
  const unsigned may_trim = rng_below (&w->rng, 2) ? REQUEST_MAY_TRIM : 0;
  const unsigned fast = rng_below (&w->rng, 4) == 0 ? REQUEST_FAST : 0;

  ledger_begin (l, offset / 512, count / 512, LEDGER_ZEROS);
  if (export_zero (w->t->client, count, offset, may_trim | fast, fua) == 0)
    ledger_end (l, offset / 512, count / 512, fua);
  else if (fast && errno == ENOTSUP)
    ledger_cancel (l, offset / 512, count / 512);
  else
    FAIL ("zero %" PRIu64 "+%" PRIu64 ": %m", offset, count);
}

/* Whole clusters only, since the ledger keeps to what is promised. */
static void
do_trim (struct worker *w, uint64_t offset, uint64_t count)
{
  struct trial *t = w->t;
  const uint64_t cs = t->spec.cluster_size;
  const bool fua = rng_below (&w->rng, 8) == 0;
  const uint64_t start = round_up (offset, cs);
  const uint64_t end = offset + count == t->spec.size ? t->spec.size :
    round_down (offset + count, cs);

  if (start >= end)
    return;
  ledger_begin (t->ledger, start / 512, (end - start) / 512, LEDGER_ZEROS);
  if (export_trim (t->client, end - start, start, fua) == -1)
    FAIL ("trim %" PRIu64 "+%" PRIu64 ": %m", start, end - start);
  ledger_end (t->ledger, start / 512, (end - start) / 512, fua);
}

static void
do_flush (struct worker *w)
{
  const uint64_t stamp = ledger_flush_begin (w->t->ledger);

  if (export_flush (w->t->client) == -1)
    FAIL ("flush: %m");
  ledger_flush_end (w->t->ledger, stamp);
}

/* In version 2, what a trim does where there is a backing file is nobody's business.  In
 * a raw data file that is encrypted, or where holes cannot be punched, it does
 * nothing. */
static bool
trim_is_certain (const struct trial *t)
{
  return t->options.discard && (t->spec.version == 3 || !t->has_below) &&
    !(t->spec.data_file_raw &&
      (t->spec.encrypt || !reach_punches (t->spec.cluster_size | t->spec.size)));
}

static void
one_request (struct worker *w)
{
  struct trial *t = w->t;
  uint64_t offset, count;

  if (t->shared) {
    offset = rng_below (&w->rng, t->spec.size / 512) * 512;
    do_zero (w, offset, 512);
    do_flush (w);
    do_write (w, offset, 512);
    return;
  }
  piece_part (pieces_pick (&t->pieces, &w->rng, w->id), &w->rng, 512,
              t->spec.cluster_size, LONGEST, &offset, &count);
  switch (rng_below (&w->rng, 20)) {
  case 0: case 1: case 2:
    do_zero (w, offset, count);
    break;
  case 3: case 4: case 5:
    if (trim_is_certain (t))
      do_trim (w, offset, count);
    break;
  case 6: case 7:
    do_flush (w);
    break;
  case 8:
    check_sectors (w, offset, count);
    break;
  case 9: case 10: case 11:
    if (t->options.copy_on_read) {      /* then reads change something, too */
      check_sectors (w, offset, count);
      break;
    }
    do_write (w, offset, count);
    break;
  default:
    do_write (w, offset, count);
  }
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  unsigned i;

  for (i = 0; i < w->t->ops; i++) {
    one_request (w);
    if (w->t->eager)
      do_flush (w);
  }
  return NULL;
}

static void
run_workers (struct trial *t)
{
  struct changer changer = { .disk = t->disk, .keeps_counts = t->snapshot.len > 0 };
  struct worker workers[4];
  unsigned i;

  for (i = 0; i < t->pieces.owners; i++) {
    struct worker *w = &workers[i];

    *w = (struct worker) { .t = t, .id = i };
    rng_init (&w->rng, rng_next (t->rng), i);
    w->buf = malloc (LONGEST);
    CHECK (w->buf != NULL);
  }
  rng_init (&changer.rng, rng_next (t->rng), 100);
  if (t->lives)
    changer_start (&changer);
  if (t->pieces.owners == 1)    /* can be replayed exactly */
    work (&workers[0]);
  else
    run_threads (work, workers, sizeof workers[0], t->pieces.owners);
  if (t->lives)
    changer_stop (&changer);
  nr_changes += changer.changes - changer.refused;
  for (i = 0; i < t->pieces.owners; i++)
    free (workers[i].buf);
}

/* --- images --- */

/* What makes an image special.  Each gets its turn. */
static void
random_spec (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 12, 12, 16 };
  static const char *const themes[] = {
    "plain", "reuse", "snapshot", "backing", "version 2", "growth",
    "preallocated", "snapshot and backing", "compressed", "subclusters",
    "subclusters and backing", "subclusters, snapshot, perhaps backing",
    "shared subclusters, snapshot", "data file", "raw data file", "encrypted",
    "encrypted, snapshot, perhaps backing", "encrypted, perhaps backing, data file",
    "encrypted, raw data file",
  };
  const unsigned theme = trials_number % 19;
  struct image_spec *spec = &t->spec;

  t->theme = themes[theme];
  t->shared = theme == 12;
  spec->version = theme == 4 || (theme == 2 && rng_below (rng, 4) == 0) ? 2 : 3;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->refcount_bits = spec->version == 2 ? 16 : 2 << rng_below (rng, 6);
  if (theme == 5) {             /* a block counts 64 clusters, a table 4096 */
    spec->cluster_size = 512;
    spec->refcount_bits = 64;
  }
  /* (Of subclusters in an encrypted raw data file QEMU says that they are zeros when
   * they are not: nothing was written there.) */
  if (theme >= 9 && theme != 18 && (theme < 13 || rng_below (rng, 3) == 0)) {
    spec->extended = true;
    spec->cluster_size = rng_below (rng, 3) || theme == 12 ? 16384 : 65536;
    if (theme != 12 && rng_below (rng, 4) == 0)
      spec->preallocation = rng_below (rng, 2) ? "metadata" : "falloc";
  }
  spec->size = 512 * (64 + rng_below (rng, theme == 5 ? 6000 : 3000));
  if (theme == 1)               /* everything is freed and used all the time */
    spec->size = 24 * spec->cluster_size - 512 * rng_below (rng, 2);
  t->has_below = theme == 3 || theme == 7 || theme == 10 ||
    ((theme == 11 || theme == 13 || theme == 16 || theme == 17) &&
     rng_below (rng, 2)) ||
    (theme == 4 && rng_below (rng, 2));
  spec->compressed = theme == 8 ||
    (theme >= 9 && theme < 12 && rng_below (rng, 4) == 0) ||
    (theme == 2 && rng_below (rng, 3) == 0);
  if (spec->compressed) {       /* they share host clusters: large counts */
    spec->refcount_bits = 16;
    spec->preallocation = NULL;
  }
  if (theme == 6)
    spec->preallocation = rng_below (rng, 2) ? "metadata" : "falloc";
  if (theme == 13 || theme == 14 || theme == 17 || theme == 18)
    spec->data_file = DATA;
  spec->data_file_raw = theme == 14 || theme == 18;
  /* (No LUKS in raw ones: see newimage.c.  What is done with ciphers is the same.) */
  if (theme >= 15)
    spec->encrypt = spec->data_file_raw ? "aes" : "luks";
}

/* What is in a data file before anything was written to the disk is none of the
 * disk's business, and it may be of any length. */
static void
spoil_data_file (const struct image_spec *spec, struct rng *rng)
{
  struct blob b = { .len = rng_below (rng, spec->size * 2) };

  b.data = malloc (b.len + 1);
  CHECK (b.data != NULL);
  memset (b.data, 0x5a, b.len);
  blob_save (DATA, &b);
  blob_free (&b);
}

static void
make_image (struct trial *t, struct rng *rng)
{
  random_spec (t, rng);
  if (t->has_below)
    image_over_raw (&t->spec, rng,
                    512 * (1 + rng_below (rng, t->spec.size * 3 / 2 / 512)), 6,
                    &t->below);
  image_create (IMAGE, &t->spec);
  image_remember (SURVIVOR, &t->spec);
  t->cipher = encrypted_cipher (IMAGE);
  if (t->spec.data_file && !t->spec.data_file_raw && rng_below (rng, 2))
    spoil_data_file (&t->spec, rng);
  /* (QEMU puts zeros into a raw data file that should be encrypted zeros.) */
  if (!(t->spec.data_file_raw && t->spec.encrypt))
    image_fill (IMAGE, &t->spec, rng, t->shared ? 30 : rng_below (rng, 6));
  t->spec.compressed = false;   /* done */
  if (strstr (t->theme, "snapshot")) {
    image_snapshot (IMAGE, "before");
    image_contents (IMAGE, "before", &t->snapshot);
    image_fill (IMAGE, &t->spec, rng, t->shared ? 0 : rng_below (rng, 3));
  }
  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == t->spec.size);
}

static void
random_options (struct trial *t, struct rng *rng)
{
  t->options.path = images_path (IMAGE);
  t->options.secret = (struct image_secret) {
    .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET)
  };
  t->options.l2_cache = rng_below (rng, 2) ? 32 << 20 : 0;
  do
    t->options.l2_slice = UINT64_C (512) << rng_below (rng, 8);
  while (t->options.l2_slice > t->spec.cluster_size);
  t->options.backing = BACKING_FOLLOW;
  t->options.discard = rng_below (rng, 8) != 0;
  t->options.compress = t->spec.data_file == NULL && t->spec.encrypt == NULL &&
    rng_below (rng, 3) == 0;
  t->options.copy_on_read = rng_below (rng, 2);
  if (rng_below (rng, 3) == 0)
    t->options.checkpoint_interval_ms = 1 + rng_below (rng, 20);
  t->eager = t->shared || rng_below (rng, 4) == 0;
  /* (Behind NBD, slices are written ahead after a flush.) */
  if (reach_server () && rng_below (rng, 2)) {
    t->eager = true;
    t->options.checkpoint_interval_ms = rng_below (rng, 2) ? 5 : 5000;
  }
  t->threads = t->eager || rng_below (rng, 2) ? 1 : 2 + rng_below (rng, 3);
  t->ops = (30 + rng_below (rng, 150)) / t->threads;
  t->lives = t->threads > 1 && rng_below (rng, 3) != 0;
}

/* A writer comes, and leaves: then all is durable and in order. */
static int
one_session (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  uint64_t stamp;

  (void) hooks;                 /* the disk is open */
  t->client = export_open (t->disk, "", true);
  if (t->client == NULL || !export_is_writable (t->client))
    FAIL ("connect failed");
  t->power.cuts_left = t->lives ? 60 : 30;
  run_workers (t);
  t->power.cuts_left += 6;
  stamp = ledger_flush_begin (t->ledger);
  if (export_close (t->client) == -1)
    FAIL ("disconnect: %m");
  ledger_flush_end (t->ledger, stamp);
  return 0;
}

/* The image's file stays as it is, so it serves several times. */
static void
one_time (struct trial *t, struct rng *rng)
{
  unsigned i, cycles = 1 + rng_below (rng, 2);

  random_options (t, rng);
  printf ("%u: %s: ", trials_number, t->theme);
  image_print (&t->spec);
  printf ("; %u threads, %u requests, cache %" PRIu64 ", slice %" PRIu64 "%s%s%s%s%s\n",
          t->threads, t->ops, t->options.l2_cache, t->options.l2_slice,
          t->options.discard ? ", discard" : "", t->eager ? ", eager" : "",
          t->lives ? ", changes" : "",
          t->options.compress ? ", compress" : "",
          t->options.copy_on_read ? ", copy on read" : "");
  fflush (stdout);

  t->power = (struct power_cut_trial) {
    .path = t->options.path, .data_path = t->spec.data_file ? images_path (DATA) : NULL,
    .opaque = t, .change = one_session, .cuts = cuts, .judge = judge,
  };
  rng_init (&t->power.rng, rng_next (rng), 500);
  t->ledger = ledger_new (&t->initial);
  power_cut_begin (&t->power, rng_next (rng));
  t->options.hooks = simdisk_hooks (t->power.sim);
  pieces_make (&t->pieces, rng, t->spec.size, t->spec.cluster_size, 512,
               t->threads, false);
  if (reach_open (&t->options, &t->disk) == -1)
    FAIL ("open failed");

  for (i = 0; i < cycles; i++) {
    power_cut_change (&t->power, NULL);
    power_cut_all_ways (&t->power);
  }
  if (disk_close (t->disk) == -1)
    FAIL ("close: %m");

  power_cut_end (&t->power);
  ledger_free (t->ledger);
  pieces_free (&t->pieces);
  free ((char *) t->power.data_path);
  free ((char *) t->options.path);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .rng = rng };
  unsigned i;

  make_image (&t, rng);
  t.contents = malloc (t.spec.size);
  CHECK (t.contents != NULL);
  for (i = 0; i == 0 || (i < 3 && trials_time_left ()); i++)
    one_time (&t, rng);
  blob_free (&t.initial);
  blob_free (&t.below);
  blob_free (&t.snapshot);
  blob_free (&t.plain);
  crypt_free (t.cipher);
  free (t.contents);
}

int
main (void)
{
  const unsigned done = trials_run ("requests", 7, 1, one_image);

  printf ("%u images, %u power cuts, %u changes, %u written again, %u judged by qemu-img\n",
          done, power_cuts.cuts, nr_changes, nr_reopened, nr_judged);
  return 0;
}
