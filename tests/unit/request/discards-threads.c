/* SPDX-License-Identifier: BSD-3-Clause
 *
 * discards.c with many requests at a time: punched clusters have no data and no readers,
 * while other threads write, discard, read, take checkpoints and punch; and at the end
 * all discarded clusters have been punched.
 *
 * Environment: SEED repeats a run, as far as the timing of threads allows.
 */

#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/epoch.h"
#include "request/discards.h"
#include "lib/stubs.h"

#define CLUSTERS UINT64_C (1024)
#define BITS 16
#define ROUNDS 20000

static struct storage *file;
static struct epoch *epoch;
static struct rangelock *rangelock;
static struct discards *discards;

static _Atomic bool data[CLUSTERS];     /* changes under a claim */
static atomic_uint readers[CLUSTERS];   /* that have found data there */
static atomic_ulong punched;
static pthread_mutex_t one_checkpoint = PTHREAD_MUTEX_INITIALIZER;

static int
before (void *opaque, const char *name, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  const uint64_t first = offset >> BITS;
  const uint64_t n = div_up (count, UINT64_C (1) << BITS);

  (void) opaque, (void) name, (void) iov, (void) niov, (void) dsync;
  if (op != STORAGE_OP_PUNCH)
    return 0;
  /* When it begins, and when it ends. */
  for (unsigned i = 0; i < 2; i++) {
    for (uint64_t c = first; c < first + n; c++)
      CHECK (!data[c] && readers[c] == 0);
    sched_yield ();
  }
  punched += n;
  return 1;
}

/* --- requests --- */

static void
write_some (uint64_t first, uint64_t n)
{
  struct rangelock_claim claim;

  rangelock_claim (rangelock, &claim, first, first + n - 1);
  discards_remove (discards, first, n);
  for (uint64_t c = first; c < first + n; c++)
    data[c] = true;
  rangelock_release (rangelock, &claim);
}

static void
discard_some (uint64_t first, uint64_t n)
{
  struct rangelock_claim claim;

  rangelock_claim (rangelock, &claim, first, first + n - 1);
  for (uint64_t c = first; c < first + n; c++)
    if (data[c]) {
      data[c] = false;
      discards_add (discards, c, 1);
    }
  rangelock_release (rangelock, &claim);
}

static void
read_some (uint64_t first, uint64_t n)
{
  bool found[CLUSTERS];

  for (uint64_t c = first; c < first + n; c++) {
    found[c] = data[c];
    readers[c] += found[c];
  }
  sched_yield ();
  for (uint64_t c = first; c < first + n; c++)
    readers[c] -= found[c];
}

static void
checkpoint (bool ok)
{
  pthread_mutex_lock (&one_checkpoint);
  discards_take (discards);
  discards_done (discards, ok);
  pthread_mutex_unlock (&one_checkpoint);
}

static void *
work (void *arg)
{
  struct rng *rng = arg;

  for (unsigned i = 0; i < ROUNDS; i++) {
    const uint64_t first = rng_below (rng, CLUSTERS);
    const uint64_t n = 1 + rng_below (rng, min64 (CLUSTERS - first, 20));
    const struct epoch_section section = epoch_enter (epoch);

    switch (rng_below (rng, 4)) {
    case 0: write_some (first, n); break;
    case 1: discard_some (first, n); break;
    default: read_some (first, n);
    }
    epoch_leave (epoch, section);
    if (rng_below (rng, 8) == 0)
      checkpoint (rng_below (rng, 4) != 0);
    if (rng_below (rng, 4) == 0)
      discards_reap (discards);
  }
  return NULL;
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  static const struct storage_hooks hooks = { .before = before };
  const struct storage_options options = { .try_writable = true, .hooks = &hooks };
  char name[] = "discards-threads-XXXXXX";
  const int fd = mkstemp (name);
  struct rng rngs[4];

  CHECK (fd >= 0 && ftruncate (fd, CLUSTERS << BITS) == 0);
  close (fd);
  CHECK (storage_open (name, &options, &file) == 0);
  epoch = epoch_new ();
  rangelock = rangelock_new ();
  CHECK (epoch && rangelock);
  discards = discards_new (file, rangelock, epoch, BITS, CLUSTERS << BITS);
  CHECK (discards);

  for (unsigned i = 0; i < 4; i++)
    rng_init (&rngs[i], seed, i);
  run_threads (work, rngs, sizeof rngs[0], 4);
  CHECK (punched > 0);
  for (unsigned i = 0; i < 2; i++) {
    checkpoint (true);
    discards_reap (discards);
  }
  CHECK (discards_clusters (discards) == 0);
  printf ("%lu clusters punched\n", (unsigned long) punched);

  discards_free (discards);
  rangelock_free (rangelock);
  epoch_free (epoch);
  storage_close (file);
  CHECK (unlink (name) == 0);
  return 0;
}
