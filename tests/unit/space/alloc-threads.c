/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator, with several threads: no cluster is allocated twice, or punched while it
 * is in use, whether freed ones wait in a list or not, and at the end all refcounts are
 * correct.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>

#include "lib/alloc-image.h"

#define MAX_CLUSTERS 60000
#define NTHREADS 4
static atomic_int owner[MAX_CLUSTERS];
static atomic_ulong punches;
static pthread_mutex_t one_checkpoint = PTHREAD_MUTEX_INITIALIZER;

static int
before (void *opaque, const char *name, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  (void) opaque; (void) name; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  punches += op == STORAGE_OP_PUNCH;
  return op == STORAGE_OP_SYNC;        /* the host need not sync for us */
}

static const struct storage_hooks hooks = { .before = before };

static void
checkpoint_in_turn (void)
{
  struct alloc_frees *frees;
  uint64_t mark;

  pthread_mutex_lock (&one_checkpoint);
  frees = alloc_take_frees (alloc);
  mark = alloc_top_up (alloc);
  write_counts ();
  alloc_settle (alloc, mark);
  CHECK (alloc_frees_done (alloc, frees, true) == 0);
  pthread_mutex_unlock (&one_checkpoint);
}

/* The last cluster of the run contains what its owner has written. */
static void
look (const struct alloc_run *run, int me)
{
  int was;

  CHECK (storage_read (file, &was, sizeof was,
                       run->host + ((run->clusters - 1) << bits)) == 0 && was == me);
}

static void *
worker (void *arg)
{
  const int me = *(const int *) arg;
  struct alloc_run mine[50];
  bool table[50];
  size_t n = 0;
  struct rng r;

  rng_init (&r, rng.s, me);
  for (int i = 0; i < 1500; i++) {
    const struct epoch_section section = epoch_enter (epoch);

    if (n < 50 && rng_below (&r, 2)) {
      struct alloc_run *run = &mine[n];

      table[n] = rng_below (&r, 8) == 0;
      CHECK ((table[n] ? alloc_reserve_table (alloc, run)
                       : alloc_reserve (alloc, 1 + rng_below (&r, 20), run))
             == 0);
      n++;
      for (uint64_t c = 0; c < run->clusters; c++)
        CHECK (atomic_exchange (&owner[(run->host >> bits) + c], me) == 0);
      CHECK (storage_write (file, &me, sizeof me,
                            run->host + ((run->clusters - 1) << bits)) == 0);
    }
    else if (n > 0) {
      const size_t k = rng_below (&r, n);
      const struct alloc_run run = mine[k];

      look (&run, me);
      for (uint64_t c = 0; c < run.clusters; c++)
        CHECK (atomic_exchange (&owner[(run.host >> bits) + c], 0) == me);
      if (rng_below (&r, 4) == 0) {
        if (table[k])
          alloc_abort_table (alloc, &run);
        else
          alloc_abort (alloc, &run);
      }
      else {
        CHECK (alloc_free_begin (alloc, 2) == 0);
        alloc_free_run (alloc, run.host, run.clusters);
        alloc_free_end (alloc, 1);
      }
      mine[k] = mine[--n];
      table[k] = table[n];
    }
    epoch_leave (epoch, section);
    if (rng_below (&r, 20) == 0)
      checkpoint_in_turn ();
    if (rng_below (&r, 10) == 0)
      CHECK ((rng_below (&r, 2) ? alloc_reap : alloc_reap_some) (alloc) == 0);
  }
  while (n > 0)
    look (&mine[--n], me);
  return NULL;
}

static void
test (size_t max_waiting)
{
  int ids[NTHREADS];
  uint64_t count, expected;

  make_alloc_image (12, 4);
  open_image (true, &hooks);
  alloc_set_max_waiting (alloc, max_waiting);
  for (int i = 0; i < NTHREADS; i++)
    ids[i] = i + 1;
  run_threads (worker, ids, sizeof ids[0], NTHREADS);
  checkpoint_in_turn ();
  end_session ();
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++) {
    expected = atomic_load (&owner[c]) != 0 ||
      overlap_find (overlap, c << bits, 1) != OVERLAP_NONE;
    CHECK (refcount_get (refcounts, c, &count) == 0 && count == expected);
    atomic_store (&owner[c], 0);
  }
  CHECK (punches > 0);
  close_image ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  image_begin ("alloc-threads");
  test (SIZE_MAX);
  test (3);
  image_end ();
  return 0;
}
