/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens when memory runs out?
 *
 * Random images (mixture.c, and some that grow) on a simulated file (simdisk.c) are
 * opened, changed by one or more threads, and closed, while allocations of the core fail
 * (the linker's --wrap): few of them, many, or all for a while.  Over NBD, libnbd also
 * fails to begin requests, as it does when it has no memory for one.  Allocations of the
 * test itself do not fail.
 *
 *   a request      fails only with ENOMEM or ENOSPC, and each of its sectors has either
 *                  the old or the new contents
 *   the next one   succeeds if there is memory: no failure is permanent
 *   at any time    a power cut leaves a file that crash/requests allows: nothing that was
 *                  flushed is lost, nothing is corrupt or marked so
 *   at the end     if there is memory, no leaks are left after the last client; qemu-img
 *                  agrees
 *
 * Environment: SEED repeats a run (exactly, with one thread); ITERATIONS: how many images
 * (default: as many as are possible in SECONDS, 7); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "storage/nbdlib.h"
#include "disk/export.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/ledger.h"
#include "lib/mixture.h"
#include "lib/pieces.h"
#include "lib/reach.h"
#include "lib/simdisk.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define LONGEST (256u << 10)
#define REQUESTS 500

/* --- memory that fails --- */

static _Thread_local bool in_core;
static _Thread_local unsigned scarcity; /* one allocation of so many fails; 0: none */
static _Thread_local struct rng fate;
static atomic_ulong failures;

static bool
fails (void)
{
  if (!in_core || scarcity == 0 || rng_below (&fate, scarcity) != 0)
    return false;
  atomic_fetch_add (&failures, 1);
  errno = ENOMEM;
  return true;
}

extern void *__real_malloc (size_t);
extern void *__real_calloc (size_t, size_t);
extern void *__real_realloc (void *, size_t);
extern void *__real_reallocarray (void *, size_t, size_t);
extern void *__real_aligned_alloc (size_t, size_t);
extern char *__real_strdup (const char *);
extern void *__wrap_malloc (size_t);
extern void *__wrap_calloc (size_t, size_t);
extern void *__wrap_realloc (void *, size_t);
extern void *__wrap_reallocarray (void *, size_t, size_t);
extern void *__wrap_aligned_alloc (size_t, size_t);
extern char *__wrap_strdup (const char *);

void *
__wrap_malloc (size_t size)
{
  return fails () ? NULL : __real_malloc (size);
}

void *
__wrap_calloc (size_t n, size_t size)
{
  return fails () ? NULL : __real_calloc (n, size);
}

void *
__wrap_realloc (void *p, size_t size)
{
  return fails () ? NULL : __real_realloc (p, size);
}

void *
__wrap_reallocarray (void *p, size_t n, size_t size)
{
  return fails () ? NULL : __real_reallocarray (p, n, size);
}

void *
__wrap_aligned_alloc (size_t alignment, size_t size)
{
  return fails () ? NULL : __real_aligned_alloc (alignment, size);
}

char *
__wrap_strdup (const char *s)
{
  return fails () ? NULL : __real_strdup (s);
}

/* libnbd allocates memory for a request when that is begun. */
static struct nbdlib real;
static _Thread_local bool refused;      /* the thread's last request */

#define REFUSE_OR(call) ((refused = fails ()) ? -1 : (call))

static int64_t
begin_pread (struct nbd_handle *nbd, void *buf, size_t count, uint64_t offset,
             nbd_completion_callback done, uint32_t flags)
{
  return REFUSE_OR (real.aio_pread (nbd, buf, count, offset, done, flags));
}

static int64_t
begin_pwrite (struct nbd_handle *nbd, const void *buf, size_t count, uint64_t offset,
              nbd_completion_callback done, uint32_t flags)
{
  return REFUSE_OR (real.aio_pwrite (nbd, buf, count, offset, done, flags));
}

static int64_t
begin_flush (struct nbd_handle *nbd, nbd_completion_callback done, uint32_t flags)
{
  return REFUSE_OR (real.aio_flush (nbd, done, flags));
}

static int64_t
begin_zero (struct nbd_handle *nbd, uint64_t count, uint64_t offset,
            nbd_completion_callback done, uint32_t flags)
{
  return REFUSE_OR (real.aio_zero (nbd, count, offset, done, flags));
}

static int
last_errno (void)
{
  return refused ? ENOMEM : real.get_errno ();
}

extern int __real_nbdlib_load (struct nbdlib *, const char **);
extern int __wrap_nbdlib_load (struct nbdlib *, const char **);

int
__wrap_nbdlib_load (struct nbdlib *lib, const char **why)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  LOCK_FOR_BLOCK (&lock);

  if (real.create == NULL && __real_nbdlib_load (&real, why) == -1)
    return -1;
  *lib = real;
  lib->aio_pread = begin_pread;
  lib->aio_pwrite = begin_pwrite;
  lib->aio_flush = begin_flush;
  lib->aio_zero = begin_zero;
  lib->get_errno = last_errno;
  return 0;
}

/* A call of the core: 0, or errno. */
#define CORE(call)                              \
  ({                                            \
    int core_r_, core_err_;                     \
    in_core = true;                             \
    core_r_ = (call);                           \
    core_err_ = errno;                          \
    in_core = false;                            \
    CHECK (core_r_ == 0 || core_err_ != 0);     \
    core_r_ == -1 ? core_err_ : 0;              \
  })

static unsigned
random_scarcity (struct rng *rng)
{
  static const unsigned of[] = { 0, 1, 2, 4, 10, 30, 30, 100, 100, 300 };

  return of[rng_below (rng, sizeof of / sizeof of[0])];
}

/* --- one image --- */

struct trial {
  struct mixture image;
  struct disk_options options;
  struct blob initial, below;
  struct storage_hooks hooks;
  struct simdisk *sim;
  struct ledger *ledger;
  struct disk *disk;
  struct export *client;
  struct pieces pieces;
  struct rng cut_rng;
  unsigned char *contents;
};

struct worker {
  struct trial *t;
  unsigned id;
  struct rng rng;
  unsigned char *buf;
};

static unsigned long nr_failed_requests, nr_cuts;

/* The simulated disk's memory is not the core's. */
static int
before (void *opaque, const char *path, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  const struct trial *t = opaque;
  const struct storage_hooks *hooks = simdisk_hooks (t->sim);
  const bool was = in_core;
  int r, err;

  in_core = false;
  r = hooks->before (hooks->opaque, path, op, iov, niov, offset, count, dsync);
  err = errno;
  in_core = was;
  errno = err;
  return r;
}

/* --- judging --- */

static void
judge_contents (struct trial *t, const struct blob *b, const struct blob *data,
                const char *when)
{
  const struct image_spec *spec = &t->image.spec;

  /* (The checker has no keys.) */
  if (spec->encrypt)
    return;
  if (checker_read_data (b, data, spec->backing ? &t->below : NULL, t->contents,
                         spec->size) == -1)
    FAIL ("%s: the contents can't be read", when);
  if (!ledger_allows (t->ledger, 0, spec->size / 512, t->contents, true))
    FAIL ("%s: wrong contents", when);
  if (spec->data_file_raw &&
      !ledger_allows (t->ledger, 0, spec->size / 512, data->data, true))
    FAIL ("%s: wrong contents of the raw data file", when);
}

/* While nobody is at work. */
static void
judge (struct trial *t, enum power_cut kind, bool leaks_allowed, const char *when)
{
  const struct blob *b = simdisk_cut (t->sim, &t->cut_rng, kind);
  char text[80];

  snprintf (text, sizeof text, "%s, cut %d", when, kind);
  if (t->image.spec.version == 3 && blob_get (b, 72, 8) & 2)
    survivor_fail (b, "%s: marked corrupt", text);
  survivor_check (b, leaks_allowed, text);
  judge_contents (t, b, t->image.spec.data_file ? simdisk_data_cut (t->sim) : NULL,
                  text);
  nr_cuts++;
}

static void
check_bitmap (const struct trial *t, const struct blob *file)
{
  const uint64_t size = t->image.spec.size;
  unsigned char *sectors = calloc (1, size / 512 + 1);
  struct checked_bitmap b;
  uint64_t at;

  CHECK (sectors != NULL);
  if (!checker_bitmap (file, MIXTURE_BITMAP, &b, sectors) || b.in_use)
    FAIL ("the bitmap is lost, or in use");
  for (at = 0; at < size; at += 512)
    if (!sectors[at / 512] &&
        memcmp (t->contents + at, t->initial.data + at, 512) != 0)
      FAIL ("the bitmap does not know of a change at %" PRIu64, at);
  free (sectors);
}

/* Everything has come to rest.  The host's files become what the simulated ones are: who
 * opens them looks at their sizes. */
static const struct blob *
save (struct trial *t)
{
  const struct blob *file = simdisk_cut (t->sim, &t->cut_rng, CUT_NOTHING);

  blob_save (IMAGE, file);
  if (t->image.spec.data_file)
    blob_save (t->image.spec.data_file, simdisk_data_cut (t->sim));
  return file;
}

static void
ask_qemu (struct trial *t)
{
  const struct image_spec *spec = &t->image.spec;
  const struct blob *file = save (t);
  struct blob b;
  int status;

  status = image_check (IMAGE);
  if (status != 0)
    FAIL ("qemu-img check: exit status %d", status);
  image_contents (IMAGE, NULL, &b);
  CHECK (b.len == spec->size);
  if (!ledger_allows (t->ledger, 0, b.len / 512, b.data, true))
    FAIL ("qemu-img convert: wrong contents");
  memcpy (t->contents, b.data, b.len);
  blob_free (&b);
  if (t->image.bitmap)
    check_bitmap (t, file);
  mixture_check_snapshots (&t->image);
}

/* --- requests --- */

struct request {
  enum { WRITE, ZERO, TRIM, FLUSH, READ, EXTENTS, CACHE } kind;
  uint64_t offset, count;
  bool fua, may_trim;
};

static void
make_request (struct worker *w, struct request *q)
{
  static const int kinds[] = {
    WRITE, WRITE, WRITE, WRITE, WRITE, WRITE, WRITE, WRITE, ZERO, ZERO, TRIM, TRIM,
    FLUSH, FLUSH, READ, READ, READ, READ, EXTENTS, CACHE,
  };
  const struct image_spec *spec = &w->t->image.spec;
  const uint64_t cs = spec->cluster_size;
  uint64_t end;

  *q = (struct request) {
    .kind = kinds[rng_below (&w->rng, sizeof kinds / sizeof kinds[0])],
    .fua = rng_below (&w->rng, 10) == 0, .may_trim = rng_below (&w->rng, 2),
  };
  piece_part (pieces_pick (&w->t->pieces, &w->rng, w->id), &w->rng, 512, cs, LONGEST,
              &q->offset, &q->count);
  if (q->kind != TRIM)
    return;
  end = q->offset + q->count == spec->size ? spec->size
    : round_down (q->offset + q->count, cs);
  q->offset = round_up (q->offset, cs);
  /* Nobody knows what a trim does in version 2 over a backing file; in a raw data file
   * where holes cannot be punched, it does nothing. */
  if (q->offset >= end || !w->t->options.discard ||
      (spec->version == 2 && spec->backing) ||
      (spec->data_file_raw &&
       (spec->encrypt || !reach_punches (spec->cluster_size | spec->size))))
    q->kind = FLUSH;
  else
    q->count = end - q->offset;
}

static int
ignore (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) opaque; (void) offset; (void) len; (void) type;
  return 0;
}

/* Carries it out, and keeps the ledger.  0, or errno. */
static int
execute (struct worker *w, const struct request *q)
{
  struct export *e = w->t->client;
  struct ledger *l = w->t->ledger;
  const uint64_t sector = q->offset / 512, n = q->count / 512;
  uint32_t contents = LEDGER_ZEROS;
  uint64_t stamp;
  int err;

  switch (q->kind) {
  case READ:
    err = CORE (export_read (e, w->buf, q->count, q->offset));
    if (err == 0 && !ledger_allows (l, sector, n, w->buf, false))
      FAIL ("read %" PRIu64 "+%" PRIu64 ": wrong contents", q->offset, q->count);
    return err;
  case EXTENTS:
    return CORE (export_extents (e, q->count, q->offset, false, ignore, NULL));
  case CACHE:
    return CORE (export_cache (e, q->count, q->offset));
  case FLUSH:
    stamp = ledger_flush_begin (l);
    err = CORE (export_flush (e));
    if (err == 0)
      ledger_flush_end (l, stamp);
    return err;
  case WRITE:
    contents = ledger_contents (l);
    ledger_fill (contents, sector, n, w->buf);
    ledger_begin (l, sector, n, contents);
    err = CORE (export_write (e, w->buf, q->count, q->offset, q->fua));
    break;
  case ZERO:
    ledger_begin (l, sector, n, contents);
    err = CORE (export_zero (e, q->count, q->offset,
                             q->may_trim ? REQUEST_MAY_TRIM : 0, q->fua));
    break;
  default:
    ledger_begin (l, sector, n, contents);
    err = CORE (export_trim (e, q->count, q->offset, q->fua));
  }
  if (err == 0)
    ledger_end (l, sector, n, q->fua);
  return err;
}

static void
must_be_memory (int err, const char *what)
{
  if (err != ENOMEM && err != ENOSPC)
    FAIL ("%s fails with %s, not for lack of memory (%s)", what, strerror (err),
          last_error ());
}

static void
one_request (struct worker *w)
{
  struct trial *t = w->t;
  struct request q;
  char what[40];
  int err;

  make_request (w, &q);
  snprintf (what, sizeof what, "request of kind %d", q.kind);
  err = execute (w, &q);
  if (err == 0)
    return;
  must_be_memory (err, what);
  /* Others' checkpoints may lack memory, and ours with them. */
  if (t->pieces.owners > 1)
    return;
  nr_failed_requests++;
  if (rng_below (&w->rng, 40) == 0) {
    judge (t, CUT_NOTHING, true, "without memory");
    judge (t, simdisk_random_cut (&t->cut_rng), true, "without memory");
  }
  if (rng_below (&w->rng, 2) == 0) {
    const unsigned before = scarcity;

    scarcity = 0;
    err = execute (w, &q);
    if (err != 0)
      FAIL ("%s fails again with %s, though there is memory", what, strerror (err));
    scarcity = before;
  }
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  unsigned i;

  rng_init (&fate, rng_next (&w->rng), 1);
  for (i = 0; i < REQUESTS; i++) {
    if (rng_below (&w->rng, 10) == 0)
      scarcity = random_scarcity (&w->rng);
    one_request (w);
  }
  scarcity = 0;
  return NULL;
}

/* --- sessions --- */

static void
open_disk (struct trial *t, struct rng *rng)
{
  const struct disk_options options = reach_disk (&t->options);

  scarcity = random_scarcity (rng);
  while (CORE (disk_open (&options, &t->disk)) != 0) {
    if (scarcity == 0)
      FAIL ("open failed: %s", last_error ());
    scarcity /= 2;
    t->disk = NULL;
  }
  scarcity = 0;
  CHECK (disk_inside (t->disk).view->size == t->image.spec.size);
}

static int
open_client (struct trial *t)
{
  t->client = export_open (t->disk, "", true);
  return t->client ? 0 : -1;
}

static void
come (struct trial *t, struct rng *rng)
{
  int err;

  scarcity = random_scarcity (rng);
  while ((err = CORE (open_client (t))) != 0) {
    must_be_memory (err, "connecting");
    if (scarcity == 0)
      FAIL ("connecting fails, though there is memory");
    scarcity /= 2;
  }
  scarcity = 0;
  if (!export_is_writable (t->client))
    FAIL ("read-only: %s", disk_why_readonly (t->disk));
}

/* The last chance after a failure is when somebody comes again. */
static void
leave (struct trial *t, struct rng *rng)
{
  const uint64_t stamp = ledger_flush_begin (t->ledger);
  unsigned scarce;
  int err;

  scarcity = random_scarcity (rng);
  while ((err = CORE (export_close (t->client))) != 0) {
    must_be_memory (err, "leaving");
    if (scarcity == 0)
      FAIL ("leaving fails, though there is memory");
    judge (t, simdisk_random_cut (&t->cut_rng), true, "leaving without memory");
    scarce = scarcity / 2;
    scarcity = 0;
    if (CORE (open_client (t)) != 0 || !export_is_writable (t->client))
      FAIL ("coming again fails: %s", last_error ());
    scarcity = scarce;
  }
  scarcity = 0;
  ledger_flush_end (t->ledger, stamp);
}

static void
read_all (struct trial *t)
{
  const uint64_t size = t->image.spec.size;
  struct export *reader = export_open (t->disk, "", false);

  CHECK (reader != NULL);
  if (export_read (reader, t->contents, size, 0) == -1)
    FAIL ("the disk can't be read: %m");
  if (!ledger_allows (t->ledger, 0, size / 512, t->contents, false))
    FAIL ("wrong contents");
  CHECK (export_close (reader) == 0);
}

static void
run_workers (struct trial *t, struct rng *rng)
{
  struct worker workers[4];
  unsigned i;

  pieces_make (&t->pieces, rng, t->image.spec.size, t->image.spec.cluster_size, 512,
               rng_below (rng, 3) ? 1 : 2 + rng_below (rng, 3), false);
  for (i = 0; i < t->pieces.owners; i++) {
    workers[i] = (struct worker) { .t = t, .id = i, .buf = malloc (LONGEST) };
    CHECK (workers[i].buf != NULL);
    rng_init (&workers[i].rng, rng_next (rng), i);
  }
  run_threads (work, workers, sizeof workers[0], t->pieces.owners);
  for (i = 0; i < t->pieces.owners; i++)
    free (workers[i].buf);
  pieces_free (&t->pieces);
}

static void
one_session (struct trial *t, struct rng *rng)
{
  struct worker w = { .t = t };

  come (t, rng);
  run_workers (t, rng);
  read_all (t);
  judge (t, CUT_NOTHING, true, "before the last flush");
  judge (t, simdisk_random_cut (&t->cut_rng), true, "before the last flush");
  if (execute (&w, &(struct request) { .kind = FLUSH }) != 0)
    FAIL ("flush fails, though there is memory: %s", last_error ());
  judge (t, CUT_NOTHING, true, "after the last flush");
  leave (t, rng);
  judge (t, CUT_ALL, false, "after all have left");
  judge (t, CUT_NOTHING, false, "after all have left");
  read_all (t);
}

/* --- images --- */

static void
random_options (struct trial *t, struct rng *rng)
{
  static const uint64_t caches[] = { 0, 64 << 10, 32 << 20 };
  struct disk_options *o = &t->options;

  t->hooks = (struct storage_hooks) { .before = before, .opaque = t };
  *o = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = caches[rng_below (rng, 3)],
    .backing = BACKING_FOLLOW, .discard = rng_below (rng, 4) != 0,
    .detect_zeroes = rng_below (rng, 3), .copy_on_read = rng_below (rng, 2),
    .secret.passphrase = IMAGES_SECRET, .secret.len = strlen (IMAGES_SECRET),
    .compress = t->image.spec.data_file == NULL && t->image.spec.encrypt == NULL &&
      rng_below (rng, 3) == 0,
    .hooks = &t->hooks,
  };
  do
    o->l2_slice = UINT64_C (512) << rng_below (rng, 13);
  while (o->l2_slice > t->image.spec.cluster_size);
}

/* One that gets many refcount blocks, and a larger refcount table again and again. */
static void
make_growing (struct mixture *m, struct rng *rng)
{
  *m = (struct mixture) {
    .name = IMAGE,
    .spec.version = 3, .spec.cluster_size = 512,
    .spec.refcount_bits = 16 << rng_below (rng, 3),
    .spec.size = (1 + rng_below (rng, 8)) << 20,
  };
  image_create (IMAGE, &m->spec);
}

/* As if somebody had crashed who wrote it with lazy refcounts (which it has no more). */
static void
make_dirty (void)
{
  struct blob b;

  blob_load (IMAGE, &b);
  blob_put (&b, 72, blob_get (&b, 72, 8) | 1, 8);       /* incompatible: dirty */
  blob_save (IMAGE, &b);
  blob_free (&b);
}

static void
begin_trial (struct trial *t, struct rng *rng)
{
  bool dirty;

  const struct image_spec *spec = &t->image.spec;

  if (rng_below (rng, 4) == 0)
    make_growing (&t->image, rng);
  else
    mixture_make (&t->image, IMAGE, rng);
  random_options (t, rng);
  dirty = spec->version == 3 && rng_below (rng, 4) == 0;
  printf ("%u: ", trials_number);
  mixture_print (&t->image);
  printf ("%s; cache %" PRIu64 ", slice %" PRIu64 "%s%s%s%s\n",
          dirty ? ", dirty" : "", t->options.l2_cache, t->options.l2_slice,
          t->options.discard ? ", discard" : "",
          t->options.detect_zeroes ? ", detect zeroes" : "",
          t->options.compress ? ", compress" : "",
          t->options.copy_on_read ? ", copy on read" : "");
  fflush (stdout);

  image_contents (IMAGE, NULL, &t->initial);
  CHECK (t->initial.len == spec->size);
  if (spec->backing && spec->backing_raw)
    blob_load (spec->backing, &t->below);
  else if (spec->backing)
    image_contents (spec->backing, NULL, &t->below);
  if (dirty)
    make_dirty ();
  t->contents = malloc (spec->size);
  CHECK (t->contents != NULL);
  t->ledger = ledger_new (&t->initial);
  t->sim = simdisk_new (t->options.path, rng_next (rng));
  if (spec->data_file) {
    char *data = images_path (spec->data_file);

    simdisk_add (t->sim, data);
    free (data);
  }
  rng_init (&t->cut_rng, rng_next (rng), 2);
  rng_init (&fate, rng_next (rng), 1);
}

static void
end_trial (struct trial *t)
{
  simdisk_free (t->sim);
  ledger_free (t->ledger);
  mixture_free (&t->image);
  blob_free (&t->initial);
  blob_free (&t->below);
  free (t->contents);
  free ((char *) t->options.path);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .disk = NULL };
  unsigned i, sessions;
  int err;

  quiet_errors = false;
  begin_trial (&t, rng);
  quiet_errors = true;          /* they are what we want */
  for (sessions = 1 + rng_below (rng, 3); sessions > 0; sessions--) {
    open_disk (&t, rng);
    for (i = rng_below (rng, 3); i < 3; i++)
      one_session (&t, rng);
    scarcity = random_scarcity (rng);
    err = CORE (disk_close (t.disk));
    scarcity = 0;
    if (err != 0)
      FAIL ("closing fails, though all was at rest: %s", strerror (err));
    save (&t);
  }
  judge (&t, CUT_ALL, false, "in the end");
  ask_qemu (&t);
  end_trial (&t);
}

int
main (void)
{
  const unsigned done = trials_run ("no-memory", 7, 1, one_image);

  printf ("%u images, %lu allocations failed, %lu requests failed, %lu power cuts\n",
          done, atomic_load (&failures), nr_failed_requests, nr_cuts);
  return 0;
}
