/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the same work done again and again, and judged, when each time something else
 * goes wrong?
 *
 * A random image is on a simulated disk (simdisk.c).  A client makes requests, which are
 * the same each time.  The ledger knows what each sector may contain, and the files that
 * power cuts leave are judged as in crash/requests.
 *
 * Locks: none, but those of the ledger and of the simulated disk: several threads may
 * execute requests.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/attempt.h"
#include "lib/checker.h"
#include "lib/encrypted.h"
#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define DATA "top.data"         /* its external data file */

struct attempt_counts attempt_counts;

/* --- requests --- */

/* Only whole clusters are trimmed, as nobody knows what becomes of others. */
static void
adapt_trim (const struct attempt_image *t, struct attempt_request *q)
{
  const uint64_t cs = t->spec.cluster_size;
  const uint64_t end = q->offset + q->count == t->spec.size ?
    t->spec.size : round_down (q->offset + q->count, cs);

  q->offset = round_up (q->offset, cs);
  /* Nobody knows what a trim does in version 2 over a backing file.  In a raw data file
   * that is encrypted, or where holes cannot be punched, it does nothing. */
  if (q->offset >= end || !t->options.discard || (t->spec.version == 2 && t->has_below) ||
      (t->spec.data_file_raw &&
       (t->spec.encrypt || !reach_punches (t->spec.cluster_size | t->spec.size))))
    q->kind = FLUSH;
  else
    q->count = end - q->offset;
}

void
attempt_make_request (const struct attempt_image *t, const struct piece *piece,
                      struct rng *rng, struct attempt_request *q)
{
  static const int kinds[] = {
    WRITE, WRITE, WRITE, WRITE, WRITE, WRITE, ZERO, ZERO, TRIM, TRIM,
    FLUSH, FLUSH, READ, READ, READ, EXTENTS, CACHE,
  };

  *q = (struct attempt_request) {
    .kind = kinds[rng_below (rng, sizeof kinds / sizeof kinds[0])],
    .fua = rng_below (rng, 10) == 0, .may_trim = rng_below (rng, 2),
  };
  piece_part (piece, rng, 512, t->spec.cluster_size, ATTEMPT_LONGEST,
              &q->offset, &q->count);
  if (q->kind == TRIM)
    adapt_trim (t, q);
}

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) opaque, (void) offset, (void) len, (void) type;
  return 0;
}

/* A call of the core: 0, or errno. */
#define CORE(call)                                              \
  ({                                                            \
    const int core_r_ = (errno = 0, SHORTAGE_MEETS (call));     \
    CHECK (core_r_ == 0 || errno != 0);                         \
    core_r_ == 0 ? 0 : errno;                                   \
  })

int
attempt_execute (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  const unsigned flags = (q->may_trim ? REQUEST_MAY_TRIM : 0) |
    (q->fast ? REQUEST_FAST : 0);
  const uint64_t sector = q->offset / 512, n = q->count / 512;
  struct ledger *l = r->ledger;
  uint32_t contents = LEDGER_ZEROS;
  uint64_t stamp;
  int err;

  switch (q->kind) {
  case READ:
    /* It may fail to store what it reads; to read it, never. */
    err = CORE (export_read (r->client, buf, q->count, q->offset));
    if (err == 0 && !r->lost && !ledger_allows (l, sector, n, buf, false))
      FAIL ("read %" PRIu64 "+%" PRIu64 ": wrong contents", q->offset, q->count);
    return err;
  case EXTENTS:
    return CORE (export_extents (r->client, q->count, q->offset, false, ignore_extent,
                                 NULL));
  case CACHE:
    return CORE (export_cache (r->client, q->count, q->offset));
  case FLUSH:
    stamp = ledger_flush_begin (l);
    err = CORE (export_flush (r->client));
    if (err == 0)
      ledger_flush_end (l, stamp);
    return err;
  case WRITE:
    contents = ledger_contents (l);
    ledger_fill (contents, sector, n, buf);
    ledger_begin (l, sector, n, contents);
    err = CORE (export_write (r->client, buf, q->count, q->offset, q->fua));
    break;
  case ZERO:
    ledger_begin (l, sector, n, contents);
    err = CORE (export_zero (r->client, q->count, q->offset, flags, q->fua));
    if (err == ENOTSUP && q->fast) {
      ledger_cancel (l, sector, n);
      return 0;
    }
    break;
  default:
    ledger_begin (l, sector, n, contents);
    err = CORE (export_trim (r->client, q->count, q->offset, q->fua));
  }
  if (err == 0)
    ledger_end (l, sector, n, q->fua);
  return err;
}

/* --- judging --- */

void
attempt_judge (struct attempt *r, enum power_cut kind, bool leaks_allowed,
               const char *when)
{
  const struct blob *b = simdisk_cut (r->sim, &r->cut_rng, kind);
  const struct blob *data =
    r->image->spec.data_file ? simdisk_data_cut (r->sim) : NULL;
  char text[80];

  if (r->image->cipher) {
    encrypted_plain (r->image->cipher, data ? data : b, &r->plain);
    data = &r->plain;
  }
  snprintf (text, sizeof text, "%s, cut %d", when, kind);
  if (r->image->spec.version == 3 && blob_get (b, 72, 8) & QCOW2_INCOMPAT_CORRUPT)
    survivor_fail (b, "%s: marked corrupt", text);
  survivor_check (b, leaks_allowed, text);
  attempt_counts.cuts++;
  if (r->image->spec.encrypt && !r->image->cipher)
    return;
  if (checker_read_data (b, data, r->image->has_below ? &r->image->below : NULL,
                         r->contents, r->image->spec.size) == -1)
    FAIL ("%s: the contents can't be read", text);
  if (!ledger_allows (r->ledger, 0, r->image->spec.size / 512, r->contents, true))
    FAIL ("%s: wrong contents", text);
  if (r->image->spec.data_file_raw &&
      !ledger_allows (r->ledger, 0, r->image->spec.size / 512, data->data, true))
    FAIL ("%s: wrong contents of the raw data file", text);
}

void
attempt_judge_some (struct attempt *r, const char *when)
{
  attempt_judge (r, CUT_NOTHING, true, when);
  attempt_judge (r, CUT_ALL, true, when);
  attempt_judge (r, simdisk_random_cut (&r->cut_rng), true, when);
}

void
attempt_read_all (struct attempt *r, const char *when)
{
  struct export *reader = export_open (r->disk, "", false);
  unsigned char *buf = malloc (ATTEMPT_LONGEST);
  uint64_t at, n;

  CHECK (reader != NULL && buf != NULL);
  for (at = 0; at < r->image->spec.size; at += n) {
    n = min64 (r->image->spec.size - at, ATTEMPT_LONGEST);
    if (export_read (reader, buf, n, at) == -1)
      FAIL ("%s: read: %m", when);
    if (!r->lost && !ledger_allows (r->ledger, at / 512, n / 512, buf, false))
      FAIL ("%s: wrong contents", when);
  }
  CHECK (export_close (reader) == 0);
  free (buf);
}

/* --- one attempt --- */

void
attempt_prepare (struct attempt *r, const struct attempt_image *t, const char *name,
                 uint64_t k)
{
  *r = (struct attempt) { .image = t };
  trials_about ("%s, k %" PRIu64, name, k);
  rng_init (&r->cut_rng, t->work_seed, k);
  r->contents = malloc (t->spec.size);
  CHECK (r->contents != NULL);
  r->ledger = ledger_new (&t->initial);
  r->sim = simdisk_new (t->options.path, k);
  if (t->shaped)
    simdisk_hurry (r->sim);
  if (t->spec.data_file) {
    char *data = images_path (t->spec.data_file);

    simdisk_add (r->sim, data);
    free (data);
  }
  attempt_counts.attempts++;
}

void
attempt_begin (struct attempt *r, const struct attempt_image *t, const char *name,
               uint64_t k)
{
  attempt_prepare (r, t, name, k);
  if (attempt_open (r) != 0)
    FAIL ("open failed");
}

int
attempt_open (struct attempt *r)
{
  struct disk_options options = r->image->options;
  int err;

  options.hooks = simdisk_hooks (r->sim);
  err = CORE (reach_open (&options, &r->disk));
  if (err == 0 && r->image->no_cache)
    budget_hold (map_budget (disk_inside (r->disk).map), UINT64_C (1) << 40);
  return err;
}

int
attempt_close (struct attempt *r)
{
  const int err = CORE (disk_close (r->disk));

  r->disk = NULL;
  return err;
}

int
attempt_come (struct attempt *r)
{
  errno = 0;
  r->client = SHORTAGE_MEETS (export_open (r->disk, "", true));
  if (r->client == NULL)
    return errno ? errno : EINVAL;
  if (!export_is_writable (r->client))
    FAIL ("read-only: %s", disk_why_readonly (r->disk));
  return 0;
}

int
attempt_leave (struct attempt *r)
{
  const uint64_t stamp = ledger_flush_begin (r->ledger);
  const int err = CORE (export_close (r->client));

  if (err == 0)
    ledger_flush_end (r->ledger, stamp);
  return err;
}

void
attempt_end (struct attempt *r)
{
  disk_close (r->disk);
  simdisk_free (r->sim);
  ledger_free (r->ledger);
  blob_free (&r->plain);
  free (r->contents);
}

/* The work on images of a shape.  Offsets and lengths are in eighths of a cluster. */
static const struct shaped_request {
  int kind;
  unsigned from, n;
} shaped_work[] = {
#define R(from, n) { READ, from, n }
#define W(from, n) { WRITE, from, n }
#define Z(from, n) { ZERO, from, n }
#define T(from, n) { TRIM, from, n }
#define F { FLUSH, 0, 8 }
#define E(from, n) { EXTENTS, from, n }
#define C(from, n) { CACHE, from, n }
#define LONG UINT32_MAX
  R (0, 32), W (2, 3), R (0, 16), W (32, 24), F,
  W (42, 4), Z (36, 16), T (40, 16),
  Z (16, 8), W (19, 2), R (16, 32), W (66, 27), R (64, 32), F,
  Z (65, 2), Z (88, 6), T (80, 8),
  W (0, LONG), F, Z (0, 24), W (4, LONG), T (8, 24), W (12, 6), R (0, LONG),
  E (0, LONG), C (0, LONG),
};

static void
make_shaped_request (const struct attempt_image *t, unsigned i,
                     struct attempt_request *q)
{
  const struct shaped_request *s = &shaped_work[i];
  const uint64_t size = t->spec.size, cs = t->spec.cluster_size;

  *q = (struct attempt_request) {
    .kind = s->kind, .fua = i % 6 == 3, .may_trim = i % 2, .fast = i % 5 == 4,
    .offset = round_down (s->from * cs / 8, 512) % size,
  };
  q->count = min64 (round_up (s->n * cs / 8, 512), size - q->offset);
  if (q->kind == READ || q->kind == WRITE)
    q->count = min64 (q->count, ATTEMPT_LONGEST);
  if (q->kind == TRIM)
    adapt_trim (t, q);
}

static void
do_shaped_work (struct attempt *r,
                bool (*step) (struct attempt *, const struct attempt_request *,
                              unsigned char *buf))
{
  unsigned char *buf = malloc (ATTEMPT_LONGEST);
  struct attempt_request q;
  bool more = true;

  CHECK (buf != NULL);
  for (unsigned i = 0; more && i < sizeof shaped_work / sizeof shaped_work[0]; i++) {
    make_shaped_request (r->image, i, &q);
    more = step (r, &q, buf);
  }
  free (buf);
}

void
attempt_work (struct attempt *r,
              bool (*step) (struct attempt *, const struct attempt_request *,
                            unsigned char *buf))
{
  struct pieces pieces;
  struct attempt_request q;
  struct rng rng;
  unsigned char *buf;
  unsigned i;

  if (r->image->shaped) {
    do_shaped_work (r, step);
    return;
  }
  buf = malloc (ATTEMPT_LONGEST);
  CHECK (buf != NULL);
  rng_init (&rng, r->image->work_seed, 0);
  pieces_make (&pieces, &rng, r->image->spec.size, r->image->spec.cluster_size, 512, 1,
               false);
  for (i = 0; i < ATTEMPT_REQUESTS; i++) {
    attempt_make_request (r->image, pieces_pick (&pieces, &rng, 0), &rng, &q);
    if (!step (r, &q, buf))
      break;
  }
  pieces_free (&pieces);
  free (buf);
}

/* --- images --- */

/* One without layers that a checker could not read. */
static void
make_plain (struct attempt_image *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 12, 14, 16 };
  struct image_spec *spec = &t->spec;
  const bool encrypted = rng_below (rng, 3) == 0;
  const bool data_file = rng_below (rng, encrypted ? 2 : 4) == 0;
  const bool growth = rng_below (rng, 4) == 0;

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
  if (rng_below (rng, 3) == 0)
    image_over_raw (spec, rng, spec->size, 6, &t->below);
  if (data_file) {
    spec->version = 3;
    spec->data_file = DATA;
    spec->data_file_raw = !spec->backing && rng_below (rng, 2);
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
  /* (QEMU puts zeros into a raw data file that should be encrypted zeros.) */
  if (!(spec->data_file_raw && spec->encrypt))
    image_fill (IMAGE, spec, rng, growth ? 10 : rng_below (rng, 4));
  if (!data_file && rng_below (rng, 3) == 0)
    image_snapshot (IMAGE, "before");
}

static void
make_mixture (struct attempt_image *t, struct rng *rng)
{
  struct image_spec *spec = &t->spec;

  mixture_make (&t->mixture, IMAGE, rng);
  *spec = t->mixture.spec;
  if (spec->backing && spec->backing_raw)
    blob_load (spec->backing, &t->below);
  else if (spec->backing)
    image_contents (spec->backing, NULL, &t->below);
}

static void
choose_options (struct attempt_image *t, struct rng *rng)
{
  static const uint64_t caches[] = { 0, 64 << 10, 1 << 20, 32 << 20 };

  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = caches[rng_below (rng, 4)],
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = rng_below (rng, 4) != 0,
    .detect_zeroes = rng_below (rng, 3),
    .cache = rng_below (rng, 2) ? STORAGE_CACHE_NONE : STORAGE_CACHE_DEFAULT,
    .copy_on_read = t->has_below && rng_below (rng, 2),
    .compress = !t->spec.data_file && !t->spec.encrypt && rng_below (rng, 3) == 0,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  if (rng_below (rng, 2))
    t->options.l2_slice = t->spec.cluster_size;
}

void
attempt_make_image (struct attempt_image *t, struct rng *rng)
{
  *t = (struct attempt_image) { .work_seed = rng_next (rng) };
  if (rng_below (rng, 2))
    make_mixture (t, rng);
  else
    make_plain (t, rng);
  t->has_below = t->spec.backing != NULL;
  /* (The other ones depend on guest offsets.) */
  if (t->spec.encrypt && (strcmp (t->spec.encrypt, "luks") == 0 || t->spec.data_file_raw))
    t->cipher = encrypted_cipher (IMAGE);
  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == t->spec.size);
  choose_options (t, rng);
  t->dirty = t->spec.version == 3 && rng_below (rng, 5) == 0;
  if (t->dirty)                 /* it has no lazy refcounts any more */
    image_mark (IMAGE, 72, QCOW2_INCOMPAT_DIRTY);
  if (t->spec.version == 3)
    image_mark (IMAGE, ATTEMPT_AUTOCLEAR_AT, ATTEMPT_AUTOCLEAR_UNKNOWN);
  printf ("%u: ", trials_number);
  image_print (&t->spec);
  printf (", %u below, %u snapshots%s%s; cache %" PRIu64 ", slice %" PRIu64 "%s%s%s%s\n",
          t->mixture.layers, t->mixture.nr_snapshots, t->mixture.bitmap ? ", bitmap" : "",
          t->dirty ? ", dirty" : "", t->options.l2_cache, t->options.l2_slice,
          t->options.discard ? ", discard" : "",
          t->options.detect_zeroes ? ", detect zeroes" : "",
          t->options.copy_on_read ? ", copy on read" : "",
          t->options.compress ? ", compress" : "");
  fflush (stdout);
}

static const struct shape {
  struct image_spec spec;
  unsigned below;               /* bytes of a raw file below; 0: none */
  bool empty;                   /* it has no data, and no tables */
  bool snapshot, bitmap, compress, copy_on_read, no_cache;
} shapes[ATTEMPT_SHAPES] = {
  /* The refcount table becomes too small. */
  { { .version = 3, .cluster_size = 512, .refcount_bits = 64, .size = 1980 << 10,
      .preallocation = "metadata" }, .snapshot = true },
  /* Many tables. */
  { { .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 150 << 10 },
    .below = 100 << 10, .no_cache = true },
  { { .version = 3, .cluster_size = 16384, .extended = true, .refcount_bits = 16,
      .size = (200 << 10) + 1536 },
    .below = 150 << 10, .copy_on_read = true, .no_cache = true },
  { { .version = 3, .cluster_size = 16384, .extended = true, .refcount_bits = 16,
      .size = 200 << 10 }, .snapshot = true, .no_cache = true },
  { { .version = 2, .cluster_size = 4096, .refcount_bits = 16, .size = 80 << 10 },
    .below = 40 << 10, .compress = true, .no_cache = true },
  { { .version = 3, .cluster_size = 4096, .refcount_bits = 2, .size = 80 << 10,
      .compressed = true }, .below = 90 << 10,
    .compress = true, .copy_on_read = true, .no_cache = true },
  { { .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 200 << 10,
      .preallocation = "metadata" }, .bitmap = true },
  /* Space for tables is allocated in parts, and clusters are copied in pieces. */
  { { .version = 3, .cluster_size = 512 << 10, .refcount_bits = 16, .size = 1500 << 10 },
    .below = 1000 << 10, .empty = true },
  { { .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 80 << 10,
      .data_file = DATA }, .below = 0 },
  { { .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 80 << 10,
      .data_file = DATA, .data_file_raw = true }, .below = 0 },
};

void
attempt_make_shape (struct attempt_image *t, unsigned which)
{
  const struct shape *s = &shapes[which];
  struct rng rng;

  rng_init (&rng, 1, which);
  *t = (struct attempt_image) {
    .spec = s->spec, .work_seed = which, .shaped = true, .has_below = s->below > 0,
    .no_cache = s->no_cache,
  };
  if (t->has_below) {
    image_over_raw (&t->spec, &rng, s->below, 0, &t->below);
    for (uint64_t i = 0; i < t->below.len; i++)
      t->below.data[i] = i / 4096 % 4 == 3 ? 0 : i % 251;
    blob_save ("below", &t->below);
  }
  image_create (IMAGE, &t->spec);
  if (!s->empty)
    image_fill (IMAGE, &t->spec, &rng, s->snapshot ? 8 : 3);
  if (s->snapshot)
    image_snapshot (IMAGE, "before");
  if (s->bitmap) {
    image_bitmap (IMAGE, "follows", 9);
    image_fill (IMAGE, &t->spec, &rng, 2);
    image_bitmap (IMAGE, "later", 9);
  }
  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == t->spec.size);
  if (t->spec.version == 3)
    image_mark (IMAGE, ATTEMPT_AUTOCLEAR_AT, ATTEMPT_AUTOCLEAR_UNKNOWN);
  t->options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_slice = 512, .backing = BACKING_FOLLOW,
    .discard = true, .copy_on_read = s->copy_on_read, .compress = s->compress,
  };
  printf ("%u: ", which);
  image_print (&t->spec);
  printf ("%s%s%s%s\n", s->snapshot ? ", snapshot" : "", s->bitmap ? ", bitmap" : "",
          s->copy_on_read ? ", copy on read" : "", s->compress ? ", compress" : "");
  fflush (stdout);
}

void
attempt_free_image (struct attempt_image *t)
{
  blob_free (&t->initial);
  blob_free (&t->below);
  crypt_free (t->cipher);
  mixture_free (&t->mixture);
  free ((char *) t->options.path);
}
