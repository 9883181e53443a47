/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens to random images when the host fails, or memory runs out?
 *
 * A random image meets one session after the other (lib/session), and each time something
 * fails at random: an operation on the file, or all that need space, or an allocation, or
 * many.  Over NBD, libnbd also fails to begin requests, as it does when it has no memory
 * for one.  Or the image is read, described or checked (lib/uses).  Or several threads
 * work while space comes and goes, and memory is scarce: then each request fails with
 * ENOSPC or ENOMEM only, and succeeds some time.  At last qemu-img finds the image in
 * order, its snapshots as they were, and each change in its bitmap.
 *
 * (crash/each-failure tries each operation, and not only some.)
 *
 * Environment: SEED repeats a run (exactly, but for threads); ITERATIONS: how many images
 * (default: as many as are possible in SECONDS, 10); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "storage/nbdlib.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/reach.h"
#include "lib/session.h"
#include "lib/trials.h"
#include "lib/uses.h"

#define SESSIONS 12
#define MOST 40                 /* allocations to choose from */

static unsigned nr_sessions, nr_failed_uses;
static atomic_uint nr_failed_requests;

/* --- libnbd, which allocates memory for a request when that is begun --- */

static struct nbdlib real;
static _Thread_local bool refused;      /* the thread's last request */

#define REFUSE_OR(call) ((refused = shortage_hits (__wrap_nbdlib_load)) ? -1 : (call))

extern int __real_nbdlib_load (struct nbdlib *, const char **);
extern int __wrap_nbdlib_load (struct nbdlib *, const char **);

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

/* --- threads --- */

struct worker {
  struct attempt *attempt;
  const struct pieces *pieces;
  unsigned id;
  atomic_uint *working;
};

/* Space comes and goes by itself. */
static void *
work (void *opaque)
{
  struct worker *w = opaque;
  struct attempt *r = w->attempt;
  unsigned char *buf;
  struct attempt_request q;
  struct rng rng;
  int err;

  shortage_spare (true);
  buf = malloc (ATTEMPT_LONGEST);
  CHECK (buf != NULL);
  rng_init (&rng, r->image->work_seed, 100 + w->id);
  for (unsigned i = 0; i < ATTEMPT_REQUESTS; i++) {
    attempt_make_request (r->image, pieces_pick (w->pieces, &rng, w->id), &rng, &q);
    while ((err = attempt_execute (r, &q, buf)) != 0) {
      if (err != ENOSPC && err != ENOMEM)
        FAIL ("request of kind %d fails with %s", q.kind, strerror (err));
      nr_failed_requests++;
      usleep (50);
    }
  }
  free (buf);
  atomic_fetch_sub (w->working, 1);
  return NULL;
}

/* The last one lets space come and go. */
static void *
work_or_fill (void *opaque)
{
  struct worker *w = opaque;
  struct rng rng;

  if (w->id < w->pieces->owners)
    return work (w);
  rng_init (&rng, w->attempt->image->work_seed, 1);
  while (atomic_load (w->working) > 0) {
    const struct fault fault = {
      .ops = GROWING, .after = rng_below (&rng, 30), .times = 1 + rng_below (&rng, 20),
      .err = ENOSPC, .partial = true,
    };

    simdisk_fault (w->attempt->sim, &fault);
    usleep (500);
    simdisk_fault (w->attempt->sim, NULL);
    usleep (200);
  }
  return NULL;
}

static void
run_threads_in (const struct attempt_image *t, struct rng *rng)
{
  struct worker workers[5];
  struct pieces pieces;
  atomic_uint working;
  struct attempt r;

  attempt_begin (&r, t, "threads", 0);
  pieces_make (&pieces, rng, t->spec.size, t->spec.cluster_size, 512, 4, false);
  atomic_init (&working, pieces.owners);
  CHECK (attempt_come (&r) == 0);
  for (unsigned i = 0; i <= pieces.owners; i++)
    workers[i] = (struct worker) { &r, &pieces, i, &working };
  /* Failures are spread evenly, and the longest request may need memory several times
   * for each compressed cluster: if one of fewer failed, it would never succeed. */
  shortage_begin_scarcity (100 + 8 * ATTEMPT_LONGEST / t->spec.cluster_size +
                           rng_below (rng, 1000), rng_next (rng));
  run_threads (work_or_fill, workers, sizeof workers[0], pieces.owners + 1);
  shortage_end ();
  attempt_read_all (&r, "after all");
  if (attempt_leave (&r) != 0)
    FAIL ("leaving fails, though there is space and memory");
  attempt_judge (&r, CUT_ALL, false, "in the end");
  attempt_judge (&r, CUT_NOTHING, true, "in the end");
  pieces_free (&pieces);
  attempt_end (&r);
}

/* --- QEMU --- */

static void
check_bitmap (const struct attempt_image *t, const struct blob *now)
{
  const uint64_t size = t->spec.size;
  unsigned char *sectors = calloc (1, size / 512 + 1);
  struct checked_bitmap b;
  struct blob file;

  CHECK (sectors != NULL);
  blob_load (t->mixture.name, &file);
  if (!checker_bitmap (&file, MIXTURE_BITMAP, &b, sectors) || b.in_use)
    FAIL ("the bitmap is lost, or in use");
  for (uint64_t at = 0; at < size; at += 512)
    if (!sectors[at / 512] && memcmp (now->data + at, t->initial.data + at, 512) != 0)
      FAIL ("the bitmap does not know of a change at %" PRIu64, at);
  blob_free (&file);
  free (sectors);
}

/* The image itself becomes what the session has left. */
static void
ask_qemu (struct attempt *r, const struct attempt_image *t)
{
  char *name = strrchr (t->options.path, '/') + 1;
  struct blob now;

  simdisk_save (r->sim);
  if (image_check (name) != 0)
    FAIL ("qemu-img check finds faults");
  image_contents (name, NULL, &now);
  if (now.len != t->spec.size ||
      !ledger_allows (r->ledger, 0, t->spec.size / 512, now.data, false))
    FAIL ("qemu-img convert: wrong contents");
  if (t->mixture.bitmap)
    check_bitmap (t, &now);
  mixture_check_snapshots (&t->mixture);
  blob_free (&now);
}

/* --- images --- */

/* How many operations there are that can fail, and how much the file grows. */
struct numbers {
  uint64_t operations[ACCIDENTS], growth, *allocations;
  size_t nr_allocations;
};

static void
count (const struct attempt_image *t, struct numbers *n, struct rng *rng)
{
  static const struct accident none = { .name = "nothing", .ends = true };
  struct session s;
  struct blob b;

  blob_load (t->options.path, &b);
  session_run (&s, t, &none, 0);
  n->growth = simdisk_size (s.attempt.sim) - min64 (b.len, simdisk_size (s.attempt.sim));
  for (unsigned i = 0; i < ACCIDENTS; i++)
    n->operations[i] = simdisk_operations (s.attempt.sim, accidents[i].ops);
  session_end (&s);
  n->allocations = shortage_choose (rng, MOST, &n->nr_allocations);
  blob_free (&b);
}

/* Some accident.  LAST: qemu-img looks at what is left, if it should be in order. */
static void
run_session (const struct attempt_image *t, const struct numbers *n, struct rng *rng,
             bool last)
{
  const struct accident *a;
  struct session s;
  unsigned i;

  do {
    i = rng_below (rng, ACCIDENTS);
    a = &accidents[i];
  } while (!accident_concerns (a, t));
  session_run (&s, t, a, a->full ? rng_below (rng, n->growth / 1024 + 1)
               : a->ops ? rng_below (rng, n->operations[i])
               : a->one_in ? rng_below (rng, 1000)
               : n->allocations[rng_below (rng, n->nr_allocations)]);
  if (last && s.rests)
    ask_qemu (&s.attempt, t);
  session_end (&s);
  nr_sessions++;
}

/* FAILS: anything may, besides memory. */
static void
use_once (int (*how) (const struct disk_options *), const struct disk_options *o,
          struct shortage shortage, bool fails)
{
  int r;

  shortage_begin (shortage);
  r = SHORTAGE_MEETS (how (o));
  fails |= shortage_end () > 0;
  if (r == -1 && !fails)
    FAIL ("use of the image: %s", last_error ());
  nr_failed_uses += r == -1;
}

static void
use (const struct attempt_image *t, struct rng *rng)
{
  static int (*const uses[]) (const struct disk_options *) = {
    use_exports, use_description, use_map, use_check, use_directory,
  };
  /* (A directory has files.) */
  int (*const how) (const struct disk_options *) =
    uses[rng_below (rng, reach_server () ? 4 : 5)];
  struct disk_options o = t->options;
  struct fault fault = { .ops = 1 << STORAGE_OP_READ, .err = EIO, .times = 1 };
  CLEANUP_FREE uint64_t *chosen = NULL;
  struct attempt r;
  uint64_t reads;
  size_t n;

  attempt_prepare (&r, t, "use", 0);
  o.hooks = simdisk_hooks (r.sim);
  use_once (how, &o, SHORTAGE_NONE, false);
  reads = simdisk_operations (r.sim, fault.ops);
  chosen = shortage_choose (rng, MOST / 2, &n);
  for (size_t i = 0; i < n; i++)
    use_once (how, &o, (struct shortage) { chosen[i], 1 }, false);
  for (unsigned i = 0; i < 4; i++) {
    fault.after = rng_below (rng, reads);
    simdisk_fault (r.sim, &fault);
    use_once (how, &o, SHORTAGE_NONE, true);
  }
  attempt_end (&r);
}

static void
one_image (struct rng *rng)
{
  struct attempt_image t;
  struct numbers n;

  quiet_errors = true;          /* they are what we want */
  attempt_make_image (&t, rng);
  count (&t, &n, rng);
  use (&t, rng);
  for (unsigned i = 0; i < SESSIONS && (i < 5 || trials_time_left ()); i++)
    /* Two who write to one block: whose write found no space, and was it durable? */
    if (rng_below (rng, 8) == 0 && (!reach_shares_blocks () || !reach_writes_durably ()))
      run_threads_in (&t, rng);
    else
      run_session (&t, &n, rng, false);
  run_session (&t, &n, rng, true);
  quiet_errors = false;
  free (n.allocations);
  attempt_free_image (&t);
}

int
main (void)
{
  unsigned done;

  shortage_spare (true);
  done = trials_run ("random-failures", 10, 1, one_image);
  printf ("%u images, %u uses failed, %u sessions, %u calls failed in them, %u requests of "
          "threads; %" PRIu64 " allocations failed; %u power cuts\n", done, nr_failed_uses,
          nr_sessions, session_failed_calls, nr_failed_requests, shortage_all_failures (),
          attempt_counts.cuts);
  return 0;
}
