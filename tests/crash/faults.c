/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens when the host fails: no space, no data, no sync?
 *
 * The same work is done again and again on a simulated file (simdisk.c), and each time
 * another of its operations fails:
 *
 *   ENOSPC once       the request (or flush) that got it fails, all others succeed
 *   ENOSPC for long   nothing that was flushed is lost; when there is space again, the
 *                     same request succeeds
 *   a full disk       the same, but only operations that make the file longer fail
 *   EIO               requests fail with EIO and with no other error
 *   a failed sync     no more changes are accepted, reads still work (R9)
 *
 * After each failure the power is cut in various ways, and the file that is left is
 * judged as in crash/requests.  If space came back, nothing is leaked at the end.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 10); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/checker.h"
#include "lib/encrypted.h"
#include "lib/images.h"
#include "lib/ledger.h"
#include "lib/pieces.h"
#include "lib/reach.h"
#include "lib/simdisk.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define DATA "top.data"         /* its external data file */
#define LONGEST (64u << 10)
#define REQUESTS 60
#define ATTEMPTS 150

/* What runs out of space. */
#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)
#define CHANGING (GROWING | 1 << STORAGE_OP_PUNCH)
#define SYNCING (1 << STORAGE_OP_SYNC)

/* The image, and what is done to it. */
struct trial {
  struct image_spec spec;
  struct disk_options options;
  struct blob initial, below;
  bool has_below;
  struct crypt_cipher *cipher;  /* NULL: not encrypted */
  uint64_t work_seed;           /* of the requests: the same each time */
};

/* One time that the work is done. */
struct attempt {
  const struct trial *t;
  struct simdisk *sim;
  struct disk *disk;
  struct export *client;
  struct ledger *ledger;
  struct rng cut_rng;
  unsigned char *contents;
  struct blob plain;
};

struct request {
  enum { WRITE, ZERO, TRIM, FLUSH, READ } kind;
  uint64_t offset, count;
  bool fua, may_trim;
};

static unsigned nr_attempts, nr_cuts;
static atomic_uint nr_failed_requests;

/* --- requests --- */

static void
make_request (const struct trial *t, const struct piece *piece,
              struct rng *rng, struct request *q)
{
  static const int kinds[] = {
    WRITE, WRITE, WRITE, WRITE, WRITE, WRITE, ZERO, ZERO, TRIM, TRIM,
    FLUSH, FLUSH, READ, READ, READ,
  };

  *q = (struct request) {
    .kind = kinds[rng_below (rng, sizeof kinds / sizeof kinds[0])],
    .fua = rng_below (rng, 10) == 0, .may_trim = rng_below (rng, 2),
  };
  piece_part (piece, rng, 512, t->spec.cluster_size, LONGEST,
              &q->offset, &q->count);
  if (q->kind == TRIM) {
    const uint64_t cs = t->spec.cluster_size;
    const uint64_t end = q->offset + q->count == t->spec.size ?
      t->spec.size : round_down (q->offset + q->count, cs);

    q->offset = round_up (q->offset, cs);
    /* Nobody knows what a trim does in version 2 over a backing file.  In a raw data file
     * that is encrypted, or where holes cannot be punched, it does nothing. */
    if (q->offset >= end || (t->spec.version == 2 && t->has_below) ||
        (t->spec.data_file_raw &&
         (t->spec.encrypt || !reach_punches (t->spec.cluster_size))))
      q->kind = FLUSH;
    else
      q->count = end - q->offset;
  }
}

/* Carries it out, and keeps the ledger.  0, or errno. */
static int
execute (struct attempt *r, const struct request *q, unsigned char *buf)
{
  struct ledger *l = r->ledger;
  const uint64_t sector = q->offset / 512, n = q->count / 512;
  uint32_t contents = LEDGER_ZEROS;
  uint64_t stamp;
  int result;

  switch (q->kind) {
  case READ:
    /* It may fail to store what it reads; to read it, never. */
    if (export_read (r->client, buf, q->count, q->offset) == -1)
      return errno;
    if (!ledger_allows (l, sector, n, buf, false))
      FAIL ("read %" PRIu64 "+%" PRIu64 ": wrong contents", q->offset,
            q->count);
    return 0;
  case FLUSH:
    stamp = ledger_flush_begin (l);
    if (export_flush (r->client) == -1)
      return errno;
    ledger_flush_end (l, stamp);
    return 0;
  case WRITE:
    contents = ledger_contents (l);
    ledger_fill (contents, sector, n, buf);
    ledger_begin (l, sector, n, contents);
    result = export_write (r->client, buf, q->count, q->offset, q->fua);
    break;
  case ZERO:
    ledger_begin (l, sector, n, contents);
    result = export_zero (r->client, q->count, q->offset,
                          q->may_trim ? REQUEST_MAY_TRIM : 0, q->fua);
    break;
  default:
    ledger_begin (l, sector, n, contents);
    result = export_trim (r->client, q->count, q->offset, q->fua);
  }
  if (result == -1)
    return errno;
  ledger_end (l, sector, n, q->fua);
  return 0;
}

/* --- judging --- */

static void
judge (struct attempt *r, enum power_cut kind, bool leaks_allowed,
       const char *when)
{
  const struct blob *b = simdisk_cut (r->sim, &r->cut_rng, kind);
  const struct blob *data =
    r->t->spec.data_file ? simdisk_data_cut (r->sim) : NULL;
  char text[80];

  if (r->t->cipher) {
    encrypted_plain (r->t->cipher, data ? data : b, &r->plain);
    data = &r->plain;
  }
  snprintf (text, sizeof text, "%s, cut %d", when, kind);
  survivor_check (b, leaks_allowed, text);
  if (checker_read_data (b, data, r->t->has_below ? &r->t->below : NULL,
                         r->contents, r->t->spec.size) == -1)
    FAIL ("%s: the contents can't be read", text);
  if (!ledger_allows (r->ledger, 0, r->t->spec.size / 512, r->contents, true))
    FAIL ("%s: wrong contents", text);
  if (r->t->spec.data_file_raw &&
      !ledger_allows (r->ledger, 0, r->t->spec.size / 512, data->data, true))
    FAIL ("%s: wrong contents of the raw data file", text);
  nr_cuts++;
}

static void
judge_some (struct attempt *r, const char *when)
{
  judge (r, CUT_NOTHING, true, when);
  judge (r, CUT_ALL, true, when);
  judge (r, simdisk_random_cut (&r->cut_rng), true, when);
}

static void
read_all (struct attempt *r, const char *when)
{
  struct export *reader = export_open (r->disk, "", false);
  unsigned char *buf = malloc (LONGEST);
  uint64_t at, n;

  CHECK (reader != NULL && buf != NULL);
  for (at = 0; at < r->t->spec.size; at += n) {
    n = min64 (r->t->spec.size - at, LONGEST);
    if (export_read (reader, buf, n, at) == -1)
      FAIL ("%s: read: %m", when);
    if (!ledger_allows (r->ledger, at / 512, n / 512, buf, false))
      FAIL ("%s: wrong contents", when);
  }
  CHECK (export_close (reader) == 0);
  free (buf);
}

/* --- runs --- */

/* K: which operation fails. */
static void
begin (struct attempt *r, const struct trial *t, const char *name, uint64_t k)
{
  struct disk_options options = t->options;

  *r = (struct attempt) { .t = t };
  trials_about ("%s, k %" PRIu64, name, k);
  rng_init (&r->cut_rng, t->work_seed, k);
  r->contents = malloc (t->spec.size);
  CHECK (r->contents != NULL);
  r->ledger = ledger_new (&t->initial);
  r->sim = simdisk_new (t->options.path, k);
  if (t->spec.data_file) {
    char *data = images_path (DATA);

    simdisk_add (r->sim, data);
    free (data);
  }
  options.hooks = simdisk_hooks (r->sim);
  if (reach_open (&options, &r->disk) == -1)
    FAIL ("open failed");
  nr_attempts++;
}

static int
come (struct attempt *r)
{
  r->client = export_open (r->disk, "", true);
  if (r->client == NULL)
    return errno ? errno : EINVAL;
  CHECK (export_is_writable (r->client));
  return 0;
}

static int
leave (struct attempt *r)
{
  const uint64_t stamp = ledger_flush_begin (r->ledger);

  if (export_close (r->client) == -1)
    return errno;
  ledger_flush_end (r->ledger, stamp);
  return 0;
}

static void
end (struct attempt *r)
{
  disk_close (r->disk);
  simdisk_free (r->sim);
  ledger_free (r->ledger);
  blob_free (&r->plain);
  free (r->contents);
}

/* Calls STEP for each request, until it returns false. */
static void
do_work (struct attempt *r, bool (*step) (struct attempt *, const struct request *,
                                      unsigned char *buf))
{
  struct pieces pieces;
  struct request q;
  struct rng rng;
  unsigned char *buf = malloc (LONGEST);
  unsigned i;

  CHECK (buf != NULL);
  rng_init (&rng, r->t->work_seed, 0);
  pieces_make (&pieces, &rng, r->t->spec.size, r->t->spec.cluster_size, 512, 1,
               false);
  for (i = 0; i < REQUESTS; i++) {
    make_request (r->t, pieces_pick (&pieces, &rng, 0), &rng, &q);
    if (!step (r, &q, buf))
      break;
  }
  pieces_free (&pieces);
  free (buf);
}

static void
space_is_back (struct attempt *r)
{
  simdisk_fault (r->sim, NULL);
  simdisk_limit (r->sim, UINT64_MAX);
}

/* A request that may meet ENOSPC: then, with space, it must succeed. */
static bool
step_nospace (struct attempt *r, const struct request *q, unsigned char *buf)
{
  int err = execute (r, q, buf);

  if (err == 0)
    return true;
  if (err != ENOSPC)
    FAIL ("request of kind %d fails with %s, not with ENOSPC", q->kind,
          strerror (err));
  if (q->kind == READ)
    FAIL ("a read fails for lack of space");
  nr_failed_requests++;
  judge_some (r, "without space");
  if (simdisk_failures (r->sim) == 0)
    FAIL ("a request failed although no operation did");
  space_is_back (r);
  err = execute (r, q, buf);
  if (err != 0)
    FAIL ("request of kind %d fails again with %s, though there is space",
          q->kind, strerror (err));
  return true;
}

static void
run_nospace (const struct trial *t, const char *name, uint64_t k,
             uint64_t times, bool only_growth)
{
  const struct fault fault = {
    .ops = GROWING, .after = k, .times = times, .err = ENOSPC, .partial = k % 2,
  };
  struct attempt r;
  int err;

  begin (&r, t, name, k);
  err = come (&r);
  CHECK (err == 0);
  if (only_growth)
    simdisk_limit (r.sim, simdisk_size (r.sim) + k * 1024);
  else
    simdisk_fault (r.sim, &fault);
  do_work (&r, step_nospace);

  err = leave (&r);
  if (err != 0) {
    if (err != ENOSPC)
      FAIL ("leaving fails with %s, not with ENOSPC", strerror (err));
    judge_some (&r, "leaving without space");
    space_is_back (&r);
    /* The last chance is when somebody comes again. */
    if (come (&r) != 0 || leave (&r) != 0)
      FAIL ("leaving fails again, though there is space");
  }
  space_is_back (&r);
  read_all (&r, "in the end");
  judge (&r, CUT_ALL, false, "in the end");
  judge (&r, CUT_NOTHING, true, "in the end");
  end (&r);
}

/* After EIO anything may fail, with EIO. */
static bool
step_eio (struct attempt *r, const struct request *q, unsigned char *buf)
{
  const uint64_t before = simdisk_failures (r->sim);
  int err = execute (r, q, buf);

  if (err == 0)
    return true;
  if (err != EIO)
    FAIL ("request of kind %d fails with %s, not with EIO", q->kind,
          strerror (err));
  if (q->kind == READ || simdisk_failures (r->sim) == 0)
    FAIL ("request of kind %d fails, but why?", q->kind);
  nr_failed_requests++;
  if (simdisk_failures (r->sim) > before)
    judge_some (r, "after EIO");
  return true;
}

static void
run_eio (const struct trial *t, uint64_t k)
{
  const struct fault fault = {
    .ops = CHANGING, .after = k, .times = 1, .err = EIO, .partial = k % 2,
  };
  struct attempt r;
  int err;

  begin (&r, t, "EIO", k);
  err = come (&r);
  CHECK (err == 0);
  simdisk_fault (r.sim, &fault);
  do_work (&r, step_eio);
  err = leave (&r);
  if (err != 0 && (err != EIO || simdisk_failures (r.sim) == 0))
    FAIL ("leaving fails with %s", strerror (err));
  read_all (&r, "after EIO");
  judge_some (&r, "in the end");
  end (&r);
}

/* May a change still be accepted after a failed sync?  If that belonged to a durable
 * write, the next sync is the first to find out, and must fail. */
static bool
may_go_on (const struct request *q)
{
  return !reach_writes_durably () && q->kind != FLUSH && !q->fua;
}

/* R9: a sync failed, and somebody was told. */
static bool
step_no_sync (struct attempt *r, const struct request *q, unsigned char *buf)
{
  const bool failed = simdisk_failures (r->sim) > 0;
  int err = execute (r, q, buf);

  if (q->kind == READ) {
    if (err != 0)
      FAIL ("a read fails with %s", strerror (err));
    return true;
  }
  if (failed && err != EIO && (err != 0 || !may_go_on (q)))
    FAIL ("request of kind %d after a failed sync: %s", q->kind,
          strerror (err));
  if (err == 0)
    return true;
  if (err != EIO || simdisk_failures (r->sim) == 0)
    FAIL ("request of kind %d fails with %s", q->kind, strerror (err));
  nr_failed_requests++;
  if (!failed)
    judge_some (r, "after a failed sync");
  return true;
}

static void
run_no_sync (const struct trial *t, uint64_t k)
{
  const struct fault fault = {
    .ops = SYNCING, .after = k, .times = 1, .err = EIO,
  };
  struct attempt r;
  bool met;
  int err;

  begin (&r, t, "failed sync", k);
  err = come (&r);
  CHECK (err == 0);
  simdisk_fault (r.sim, &fault);
  do_work (&r, step_no_sync);
  met = simdisk_failures (r.sim) > 0;
  err = leave (&r);
  if (met && err == 0)
    FAIL ("leaving after a failed sync says that all is well");
  read_all (&r, "after a failed sync");
  judge_some (&r, "in the end");
  end (&r);
}

/* --- threads that run out of space --- */

struct worker {
  struct attempt *r;
  const struct pieces *pieces;
  unsigned id;
  pthread_t thread;
  atomic_uint *working;
};

/* Like step_nospace, but space comes and goes by itself. */
static void *
work (void *opaque)
{
  struct worker *w = opaque;
  struct attempt *r = w->r;
  unsigned char *buf = malloc (LONGEST);
  struct request q;
  struct rng rng;
  unsigned i;
  int err;

  CHECK (buf != NULL);
  rng_init (&rng, r->t->work_seed, 100 + w->id);
  for (i = 0; i < REQUESTS; i++) {
    make_request (r->t, pieces_pick (w->pieces, &rng, w->id), &rng, &q);
    while ((err = execute (r, &q, buf)) != 0) {
      if (err != ENOSPC)
        FAIL ("request of kind %d fails with %s, not with ENOSPC", q.kind,
              strerror (err));
      nr_failed_requests++;
      usleep (50);
    }
  }
  free (buf);
  atomic_fetch_sub (w->working, 1);
  return NULL;
}

static void
run_workers (const struct trial *t, struct rng *rng)
{
  struct worker workers[4];
  struct pieces pieces;
  atomic_uint working;
  struct attempt r;
  unsigned i;
  int err;

  begin (&r, t, "threads", 0);
  pieces_make (&pieces, rng, t->spec.size, t->spec.cluster_size, 512, 4,
               false);
  atomic_init (&working, pieces.owners);
  err = come (&r);
  CHECK (err == 0);
  for (i = 0; i < pieces.owners; i++) {
    workers[i] = (struct worker) {
      .r = &r, .pieces = &pieces, .id = i, .working = &working,
    };
    CHECK (pthread_create (&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  while (atomic_load (&working) > 0) {
    const struct fault fault = {
      .ops = GROWING, .after = rng_below (rng, 30), .times = 1 + rng_below (rng, 20),
      .err = ENOSPC, .partial = true,
    };

    simdisk_fault (r.sim, &fault);
    usleep (500);
    simdisk_fault (r.sim, NULL);
    usleep (200);
  }
  for (i = 0; i < pieces.owners; i++)
    CHECK (pthread_join (workers[i].thread, NULL) == 0);
  space_is_back (&r);
  read_all (&r, "after all");
  if (leave (&r) != 0)
    FAIL ("leaving fails, though there is space");
  judge (&r, CUT_ALL, false, "in the end");
  judge (&r, CUT_NOTHING, true, "in the end");
  pieces_free (&pieces);
  end (&r);
}

/* --- images --- */

static void
make_trial (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 12, 14, 16 };
  struct image_spec *spec = &t->spec;
  const bool encrypted = rng_below (rng, 3) == 0;
  const bool data_file = rng_below (rng, encrypted ? 2 : 4) == 0;
  const bool snapshot = !data_file && rng_below (rng, 3) == 0;
  const bool growth = rng_below (rng, 4) == 0;

  *t = (struct trial) { .work_seed = rng_next (rng) };
  spec->version = rng_below (rng, 5) ? 3 : 2;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 5)];
  spec->refcount_bits = spec->version == 2 || rng_below (rng, 2) ? 16 : 64;
  spec->size = 512 * (64 + rng_below (rng, 2000));
  if (growth) {                 /* the refcount table becomes too small */
    spec->version = 3;
    spec->cluster_size = 512;
    spec->refcount_bits = 64;
    spec->size = 3 << 20;
  }
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  t->has_below = rng_below (rng, 3) == 0;
  if (t->has_below)
    image_over_raw (spec, rng, spec->size, 6, &t->below);
  if (data_file) {
    spec->version = 3;
    spec->data_file = DATA;
    spec->data_file_raw = !t->has_below && rng_below (rng, 2);
  }
  else
    spec->compressed = !encrypted && rng_below (rng, 4) == 0;
  if (encrypted) {
    spec->version = 3;
    spec->encrypt = spec->data_file_raw ? "aes" : "luks";
    /* (QEMU says that they are zeros, and the file does not.) */
    spec->extended &= !spec->data_file_raw;
  }
  image_create (IMAGE, spec);
  t->cipher = encrypted_cipher (IMAGE);
  /* (QEMU puts zeros into a raw data file that should be encrypted zeros.) */
  if (!(spec->data_file_raw && spec->encrypt))
    image_fill (IMAGE, spec, rng, growth ? 10 : rng_below (rng, 4));
  if (snapshot)
    image_snapshot (IMAGE, "before");
  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == spec->size);

  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 512,
    .backing = BACKING_FOLLOW, .discard = true,
    .copy_on_read = t->has_below && rng_below (rng, 2),
    .compress = !data_file && !encrypted && rng_below (rng, 3) == 0,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  printf ("%u: ", trials_number);
  image_print (spec);
  printf ("%s%s%s%s\n", spec->compressed ? ", compressed" : "",
          snapshot ? ", snapshot" : "",
          t->options.copy_on_read ? ", copy on read" : "",
          t->options.compress ? ", compress" : "");
  fflush (stdout);
}

/* How many operations are there that can fail? */
static void
count_operations (const struct trial *t, uint64_t *growing, uint64_t *changing,
                  uint64_t *syncing, uint64_t *growth)
{
  struct attempt r;
  uint64_t size;

  begin (&r, t, "no fault", 0);
  size = simdisk_size (r.sim);
  if (come (&r) != 0)
    FAIL ("connect failed");
  do_work (&r, step_nospace);
  *growth = simdisk_size (r.sim) - size;
  if (leave (&r) != 0)
    FAIL ("disconnect: %m");
  judge (&r, CUT_ALL, false, "in the end");
  *growing = simdisk_operations (r.sim, GROWING);
  *changing = simdisk_operations (r.sim, CHANGING);
  *syncing = simdisk_operations (r.sim, SYNCING);
  end (&r);
}

static void
one_image (struct rng *rng)
{
  uint64_t growing, changing, syncing, growth;
  struct trial t;
  unsigned i;

  quiet_errors = true;          /* they are what we want */
  make_trial (&t, rng);
  count_operations (&t, &growing, &changing, &syncing, &growth);
  for (i = 0; i < ATTEMPTS && (i == 0 || trials_time_left ()); i++)
    switch (rng_below (rng, 10)) {
    case 0: case 1: case 2:
      run_nospace (&t, "ENOSPC once", rng_below (rng, growing), 1, false);
      break;
    case 3: case 4: case 5:
      run_nospace (&t, "ENOSPC for long", rng_below (rng, growing),
                   UINT64_MAX, false);
      break;
    case 6:
      run_nospace (&t, "full disk", rng_below (rng, growth / 1024 + 1), 0,
                   true);
      break;
    case 7:
      run_eio (&t, rng_below (rng, changing));
      break;
    case 8:
      run_no_sync (&t, rng_below (rng, syncing));
      break;
    case 9:
      /* Two who write to one block: whose write found no space, and was it durable? */
      if (!reach_shares_blocks () || !reach_writes_durably ())
        run_workers (&t, rng);
    }

  blob_free (&t.initial);
  blob_free (&t.below);
  crypt_free (t.cipher);
  free ((char *) t.options.path);
}

int
main (void)
{
  const unsigned done = trials_run ("faults", 10, 1, one_image);

  printf ("%u images, %u attempts, %u failed requests, %u power cuts\n",
          done, nr_attempts, nr_failed_requests, nr_cuts);
  return 0;
}
