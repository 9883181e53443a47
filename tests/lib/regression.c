/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk on which a test repeats a published accident.
 *
 * The disk is on a simulated file (simdisk.c).  The ledger knows what each sector may
 * contain.  Before each operation that changes the file, and at the end, the power is
 * cut, and what is left is judged without the core: metadata by checker.c, data by the
 * ledger.
 *
 * A request can be stopped at the storage gate, in a thread of its own, while others go
 * on: so an interleaving that needs luck elsewhere happens each time.
 *
 * Locks: `lock' guards `stopped', `held' and the states of the threads.  The simdisk's
 * lock is held while the remains are judged.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "lib/checker.h"
#include "lib/regression.h"
#include "lib/ledger.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define MAX_THREADS 8
/* How long a request may take before it is believed to wait for another one (ms).  If
 * that is wrong, the requests meet in another way, which must be safe too. */
#define PATIENCE 300

struct errand {
  struct regression *e;
  enum regression_request request;
  uint64_t offset, count;
  enum storage_op stop_at;
  bool stops;                   /* and has not been stopped yet */
  bool ended;                   /* guarded by lock */
  pthread_t thread;
};

struct regression {
  struct regression_options options;
  struct disk_options disk_options;
  struct storage_hooks hooks;   /* the simdisk's, and the thread that is held */
  struct power_cut_trial power;
  struct disk *disk;
  struct export *client;
  struct ledger *ledger;
  struct blob initial, contents;
  struct blob below;            /* what is in its backing file; no data: it has none */
  uint64_t cluster_size;
  bool trims;                   /* a trim makes zeros (in version 2 over a backing file,
                                   it does nothing) */

  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool held, stopped;           /* guarded by lock */
  struct errand errands[MAX_THREADS];
  unsigned nr_errands;
};

static _Thread_local struct errand *my_errand;

/* --- judging --- */

static void
judge (void *opaque, const struct remains *r)
{
  struct regression *e = opaque;
  const bool dirty = blob_get (r->file, 4, 4) == 3 && blob_get (r->file, 72, 8) & 1;

  /* The dirty bit says that refcounts may be wrong. */
  if (!dirty || r->done)
    survivor_check (r->file, !r->done || r->kind != CUT_ALL, r->when);
  if (checker_read (r->file, e->below.data ? &e->below : NULL, e->contents.data,
                    e->contents.len) == -1)
    survivor_fail (r->file, "%s: the contents cannot be read", r->when);
  if (!ledger_allows (e->ledger, 0, e->contents.len / LEDGER_SECTOR, e->contents.data,
                      true))
    survivor_fail (r->file, "%s: wrong contents", r->when);
}

void
regression_check (struct regression *e)
{
  unsigned char *buf = malloc (e->initial.len);

  CHECK (buf != NULL);
  if (export_read (e->client, buf, e->initial.len, 0) == -1)
    FAIL ("the disk cannot be read: %m");
  if (!ledger_allows (e->ledger, 0, e->initial.len / LEDGER_SECTOR, buf, false))
    FAIL ("the disk reads as something else than was written");
  free (buf);
}

/* --- the storage gate --- */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  struct regression *e = opaque;
  const struct storage_hooks *sim = simdisk_hooks (e->power.sim);

  if (my_errand && my_errand->stops && my_errand->stop_at == op) {
    my_errand->stops = false;
    pthread_mutex_lock (&e->lock);
    e->stopped = true;
    pthread_cond_broadcast (&e->changed);
    while (e->held)
      pthread_cond_wait (&e->changed, &e->lock);
    pthread_mutex_unlock (&e->lock);
  }
  return sim->before (sim->opaque, path, op, iov, niov, offset, count, dsync);
}

/* --- open and close --- */

void
regression_enter (const char *name)
{
  trials_seed = seed_from_env ();
  images_enter (name);
}

int
regression_leave (void)
{
  images_leave ();
  printf ("%u power cuts\n", power_cuts.cuts);
  return 0;
}

/* Puts a disk with the contents of the file REGRESSION under power. */
static void
power_on (struct regression *e)
{
  power_cut_begin (&e->power, trials_seed);
  if (e->options.no_cuts)
    simdisk_watch (e->power.sim, NULL, NULL);
}

static void
connect (struct regression *e)
{
  if (disk_open (&e->disk_options, &e->disk) == -1 ||
      (e->client = export_open (e->disk, "", true)) == NULL ||
      !export_is_writable (e->client))
    FAIL ("the image cannot be opened for writing");
}

static bool
disconnect (struct regression *e)
{
  const bool left = export_close (e->client) == 0;

  return disk_close (e->disk) == 0 && left;
}

void
regression_over_raw (struct image_spec *spec, int n)
{
  struct blob contents;
  struct rng rng;

  rng_init (&rng, 1, 0);
  image_over_raw (spec, &rng, spec->size, n, &contents);
  blob_free (&contents);
  image_create (REGRESSION, spec);
}

struct regression *
regression_open (const struct regression_options *options)
{
  struct regression *e = calloc (1, sizeof *e);

  CHECK (e != NULL);
  if (options)
    e->options = *options;
  pthread_mutex_init (&e->lock, NULL);
  pthread_cond_init (&e->changed, NULL);
  image_contents (REGRESSION, NULL, &e->initial);
  e->contents.len = e->initial.len;
  e->contents.data = malloc (e->initial.len);
  CHECK (e->contents.data != NULL);
  e->ledger = ledger_new (&e->initial);

  e->power = (struct power_cut_trial) {
    .path = images_path (REGRESSION), .opaque = e, .judge = judge,
  };
  rng_init (&e->power.rng, trials_seed, 0);
  power_on (e);
  if (blob_get (regression_file (e), 8, 8) != 0)
    blob_load ("below", &e->below);
  e->cluster_size = UINT64_C (1) << blob_get (regression_file (e), 20, 4);
  e->trims = blob_get (regression_file (e), 4, 4) == 3 || e->below.data == NULL;
  e->hooks = (struct storage_hooks) { .before = before, .opaque = e };
  e->disk_options = (struct disk_options) {
    .path = e->power.path, .l2_cache = e->options.l2_cache_small ? 4096 : 1 << 20,
    .l2_slice = 512, .backing = BACKING_FOLLOW, .discard = true,
    .compress = e->options.compress, .hooks = &e->hooks,
  };
  connect (e);
  return e;
}

bool
regression_reopen (struct regression *e)
{
  const bool left = disconnect (e);

  /* (A file that is opened is measured.) */
  blob_save (REGRESSION, regression_file (e));
  power_cut_end (&e->power);
  power_on (e);
  connect (e);
  return left;
}

/* What is left is served with untrusted=true too, or refused if it has a backing file. */
static void
serve_untrusted (struct regression *e)
{
  blob_save (REGRESSION, regression_file (e));
  e->disk_options.hooks = NULL;
  e->disk_options.untrusted = true;
  e->disk_options.backing = BACKING_DENY;
  e->disk_options.data_file = DATA_FILE_DENY;
  if (e->below.data) {
    quiet_errors = true;
    CHECK (disk_open (&e->disk_options, &e->disk) == -1 && errno == EPERM);
    quiet_errors = false;
    return;
  }
  if (disk_open (&e->disk_options, &e->disk) == -1 ||
      (e->client = export_open (e->disk, "", true)) == NULL)
    FAIL ("the image cannot be opened with untrusted=true");
  CHECK (!export_is_writable (e->client));
  regression_check (e);
  CHECK (disconnect (e));
}

static void
finish (struct regression *e)
{
  power_cut_all_ways (&e->power);
  power_cut_end (&e->power);
  free ((char *) e->power.path);
  ledger_free (e->ledger);
  blob_free (&e->initial);
  blob_free (&e->contents);
  blob_free (&e->below);
  pthread_cond_destroy (&e->changed);
  pthread_mutex_destroy (&e->lock);
  free (e);
}

void
regression_close (struct regression *e)
{
  CHECK (e->nr_errands == 0);
  regression_check (e);
  if (!disconnect (e))
    FAIL ("the disk cannot be closed: %m");
  /* What was acknowledged is durable when the last writer has left. */
  ledger_flush_end (e->ledger, ledger_flush_begin (e->ledger));
  e->power.done = true;
  serve_untrusted (e);
  finish (e);
}

void
regression_abandon (struct regression *e)
{
  CHECK (e->nr_errands == 0);
  disconnect (e);
  finish (e);
}

struct simdisk *
regression_disk (struct regression *e)
{
  return e->power.sim;
}

const struct blob *
regression_file (struct regression *e)
{
  return simdisk_cut (e->power.sim, &e->power.rng, CUT_ALL);
}

/* --- requests --- */

static int
write_or_zero (struct regression *e, enum regression_request request, uint64_t offset,
               uint64_t count)
{
  const uint64_t first = offset / LEDGER_SECTOR, n = count / LEDGER_SECTOR;
  const uint32_t contents =
    request == REGRESSION_WRITE ? ledger_contents (e->ledger) : LEDGER_ZEROS;
  unsigned char *buf = malloc (count);
  int r, err;

  CHECK (buf != NULL && offset % LEDGER_SECTOR == 0 && count % LEDGER_SECTOR == 0);
  ledger_fill (contents, first, n, buf);
  ledger_begin (e->ledger, first, n, contents);
  switch (request) {
  case REGRESSION_WRITE:
    r = export_write (e->client, buf, count, offset, false);
    break;
  case REGRESSION_ZERO:
    r = export_zero (e->client, count, offset, REQUEST_MAY_TRIM, false);
    break;
  default:
    CHECK (offset % e->cluster_size == 0 && count % e->cluster_size == 0);
    r = export_trim (e->client, count, offset, false);
  }
  err = r == -1 ? errno : 0;
  if (r == 0 && (request != REGRESSION_TRIM || e->trims))
    ledger_end (e->ledger, first, n, false);
  free (buf);
  return err;
}

static int
flush (struct regression *e)
{
  const uint64_t stamp = ledger_flush_begin (e->ledger);

  if (export_flush (e->client) == -1)
    return errno;
  ledger_flush_end (e->ledger, stamp);
  return 0;
}

int
regression_do (struct regression *e, enum regression_request request, uint64_t offset,
               uint64_t count)
{
  int err;

  err = request == REGRESSION_FLUSH ? flush (e)
    : write_or_zero (e, request, offset, count);
  if (err != 0 && simdisk_failures (e->power.sim) == 0) {
    errno = err;
    FAIL ("request of kind %d fails, and no fault was ordered: %m", request);
  }
  return err;
}

void
regression_must (struct regression *e, enum regression_request request, uint64_t offset,
                 uint64_t count)
{
  errno = regression_do (e, request, offset, count);
  if (errno != 0)
    FAIL ("request of kind %d must succeed: %m", request);
}

/* --- threads --- */

static void *
run_errand (void *opaque)
{
  struct errand *errand = opaque;
  struct regression *e = errand->e;

  my_errand = errand;
  regression_do (e, errand->request, errand->offset, errand->count);
  pthread_mutex_lock (&e->lock);
  errand->ended = true;
  pthread_cond_broadcast (&e->changed);
  pthread_mutex_unlock (&e->lock);
  return NULL;
}

static struct errand *
start (struct regression *e, struct errand errand)
{
  struct errand *mine = &e->errands[e->nr_errands];

  CHECK (e->nr_errands < MAX_THREADS);
  *mine = errand;
  mine->e = e;
  e->nr_errands++;
  CHECK (pthread_create (&mine->thread, NULL, run_errand, mine) == 0);
  return mine;
}

void
regression_hold (struct regression *e, enum storage_op op,
                 enum regression_request request, uint64_t offset, uint64_t count)
{
  const struct errand *errand;

  pthread_mutex_lock (&e->lock);
  e->held = true;
  e->stopped = false;
  pthread_mutex_unlock (&e->lock);
  errand = start (e, (struct errand) {
      .request = request, .offset = offset, .count = count, .stop_at = op,
      .stops = true,
    });
  pthread_mutex_lock (&e->lock);
  while (!e->stopped && !errand->ended)
    pthread_cond_wait (&e->changed, &e->lock);
  pthread_mutex_unlock (&e->lock);
}

void
regression_start (struct regression *e, enum regression_request request, uint64_t offset,
                  uint64_t count)
{
  const struct errand *errand;
  struct timespec until;

  errand = start (e, (struct errand) {
      .request = request, .offset = offset, .count = count,
    });
  clock_gettime (CLOCK_REALTIME, &until);
  until.tv_nsec += PATIENCE * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock (&e->lock);
  while (!errand->ended &&
         pthread_cond_timedwait (&e->changed, &e->lock, &until) != ETIMEDOUT)
    ;
  pthread_mutex_unlock (&e->lock);
}

void
regression_go (struct regression *e)
{
  unsigned i;

  pthread_mutex_lock (&e->lock);
  e->held = false;
  pthread_cond_broadcast (&e->changed);
  pthread_mutex_unlock (&e->lock);
  for (i = 0; i < e->nr_errands; i++)
    CHECK (pthread_join (e->errands[i].thread, NULL) == 0);
  e->nr_errands = 0;
}
