/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator never allocates a cluster twice, nor one that contains metadata, nor one
 * before the removal of its last pointer is durable and all earlier requests have ended.
 * Clusters that it declares to be zeros read as zeros.  Those that are set aside are not
 * counted, and belong to nobody else.  The file does not grow forever.
 */

#include <config.h>

#include <stdlib.h>

#include "lib/alloc-model.h"

static void
random_step (void)
{
  struct alloc_run run;
  bool table;

  now++;
  switch (rng_below (&rng, 21)) {
  case 0: case 1: case 2: case 3: case 4: case 5: case 6:
    if (nruns < 1000) {
      CHECK (alloc_reserve (alloc, 1 + rng_below (&rng, 60), &run) == 0);
      handed_out (&run, OWNED);
    }
    break;
  case 7:
    if (nruns < 1000) {
      CHECK (alloc_reserve_table (alloc, &run) == 0);
      CHECK (run.clusters == 1);
      handed_out (&run, TABLE);
    }
    break;
  case 8: case 9:
    if (nruns > 0) {
      run = take_run (&table);
      if (table)
        alloc_abort_table (alloc, &run);
      else
        alloc_abort (alloc, &run);
      set_state (&run, table ? TABLE : OWNED, FREE);
    }
    break;
  case 10: case 11: case 12: case 13:
    free_some (rng_below (&rng, 5));
    break;
  case 14:
    checkpoint (rng_below (&rng, 4) != 0);
    break;
  case 15: case 16:
    if (nr_sections < MAX_SECTIONS) {
      sections[nr_sections].section = epoch_enter (epoch);
      sections[nr_sections++].since = ++now;
    }
    break;
  case 17:
    if (nr_sections > 0) {
      const size_t i = rng_below (&rng, nr_sections);

      epoch_leave (epoch, sections[i].section);
      sections[i] = sections[--nr_sections];
    }
    break;
  case 18:
    CHECK ((rng_below (&rng, 2) ? alloc_reap : alloc_reap_some) (alloc) == 0);
    break;
  case 19:
    if (rng_below (&rng, 50) == 0)
      quiesce ();
    break;
  case 20:
    if (rng_below (&rng, 3) == 0)
      end_aside ();
    else
      set_aside (1 + rng_below (&rng, 60));
    break;
  }
}

static void
test_model (unsigned cluster_bits, unsigned order, bool discard)
{
  struct alloc_run run;
  struct alloc_stats stats;

  make_alloc_image (cluster_bits, order);
  open_image (discard, &without_sync);
  if (rng_below (&rng, 2))
    alloc_set_max_idle (alloc, 1 + rng_below (&rng, 20));
  if (rng_below (&rng, 2))
    alloc_set_max_waiting (alloc, rng_below (&rng, 20));
  reset_model ();
  for (int i = 0; i < 3000; i++)
    random_step ();
  quiesce ();
  alloc_get_stats (alloc, &stats);
  CHECK (stats.allocated > 0 && stats.freed > 0 && stats.extended > 0);

  /* A new session finds what the old one left free, at most a block at a time. */
  end_aside ();
  close_image ();
  open_image (discard, &without_sync);
  for (int i = 0; i < 500; i++)
    random_step ();
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  handed_out (&run, OWNED);
  quiesce ();
  close_image ();
}

/* Freed and allocated again for a long time: the file stays near what is in use. */
static void
test_growth (unsigned cluster_bits, unsigned order, size_t max_idle)
{
  uint64_t live, limit;

  make_alloc_image (cluster_bits, order);
  open_image (true, &without_sync);
  alloc_set_max_idle (alloc, max_idle);
  reset_model ();
  for (int round = 0; round < (long_suite () ? 300 : 100); round++) {
    for (live = 0; live < 4000; ) {
      live = 0;
      for (size_t i = 0; i < nruns; i++)
        live += runs[i].clusters;
      if (live < 4000) {
        struct alloc_run run;

        CHECK (alloc_reserve (alloc, 1 + rng_below (&rng, 64), &run) == 0);
        handed_out (&run, OWNED);
      }
    }
    free_some (20);
    checkpoint (true);
    for (int i = 0; i < 3; i++)
      CHECK (alloc_reap (alloc) == 0);
  }
  limit = 4000 * 3 / 2 + (UINT64_C (9) << 20 >> bits);
  CHECK (storage_size (file) >> bits <= limit);
  quiesce ();
  close_image ();
}

/* A file full of small holes is filled before it grows, by requests of one cluster to
 * the last hole, by larger ones until few are left. */
static void
test_holes (void)
{
  struct alloc_run run;
  uint64_t size;

  make_alloc_image (16, 4);
  open_image (false, &without_sync);
  reset_model ();
  for (int i = 0; i < 2000; i++) {
    CHECK (alloc_reserve (alloc, 1, &run) == 0);
    handed_out (&run, OWNED);
  }
  CHECK (alloc_free_begin (alloc, 1000) == 0);
  for (size_t i = 0; i < 1000; i++) {
    run = runs[i * 2];
    alloc_free_run (alloc, run.host, run.clusters);
    set_state (&run, OWNED, PENDING);
  }
  quiesce ();
  size = storage_size (file);
  close_image ();
  open_image (false, &without_sync);
  for (int i = 0; i < 1000; i++) {
    CHECK (alloc_reserve (alloc, i < 700 ? 8 : 1, &run) == 0);
    CHECK (run.clusters == 1 && !run.zeroed);
    handed_out (&run, OWNED);
  }
  CHECK (storage_size (file) == size);
  CHECK (alloc_reserve (alloc, 8, &run) == 0);
  CHECK (run.clusters == 8 && run.zeroed && run.host >= size);
  close_image ();
}

/* Of more holes than may be known each is found in the session that made it, and the
 * longest is known at once. */
static void
test_forgotten (void)
{
  struct alloc_run run, last;
  unsigned beyond = 0;

  make_alloc_image (9, 4);
  open_image (true, &without_sync);
  alloc_set_max_idle (alloc, 10);
  reset_model ();
  for (int i = 0; i < 2000; i++) {
    CHECK (alloc_reserve (alloc, 1, &run) == 0);
    handed_out (&run, OWNED);
  }
  CHECK (alloc_reserve (alloc, 20, &last) == 0);
  handed_out (&last, OWNED);
  for (size_t i = 0; i < 1000; i++)
    release (&runs[i * 2]);
  release (&last);
  checkpoint (true);
  CHECK (alloc_reap (alloc) == 0);

  CHECK (alloc_reserve (alloc, last.clusters, &run) == 0);
  CHECK (run.host == last.host && run.clusters == last.clusters);
  handed_out (&run, OWNED);
  for (int i = 0; i < 1000; i++) {
    CHECK (alloc_reserve (alloc, 1, &run) == 0);
    beyond += run.host > last.host;
    handed_out (&run, OWNED);
  }
  /* The end of a refcount block may have no hole; and there are ends of reserves. */
  CHECK (beyond < 100);
  close_image ();
}

/* Of more freed runs than may wait in a list, each gets a hole, a part of them in each
 * request's call.  Then all are used again. */
static void
test_crowd (void)
{
  struct epoch_section section;
  struct alloc_stats stats;
  struct alloc_run run;
  uint64_t size;

  make_alloc_image (12, 4);
  open_image (true, &without_sync);
  alloc_set_max_waiting (alloc, 10);
  reset_model ();
  for (int i = 0; i < 4000; i++) {
    CHECK (alloc_reserve (alloc, 1, &run) == 0);
    handed_out (&run, OWNED);
  }
  for (size_t i = 0; i < 2000; i++)
    release (&runs[i * 2]);
  nruns = 0;
  section = epoch_enter (epoch);
  checkpoint (true);
  CHECK (alloc_reap (alloc) == 0);
  alloc_get_stats (alloc, &stats);
  CHECK (stats.freed == 2000 && stats.punched == 0);
  epoch_leave (epoch, section);
  CHECK (alloc_reap_some (alloc) == 0);
  alloc_get_stats (alloc, &stats);
  CHECK (stats.punched > 10 && stats.punched < 1000 && alloc_deferred (alloc) > 0);
  CHECK (alloc_reap (alloc) == 0);
  alloc_get_stats (alloc, &stats);
  CHECK (stats.punched == 2000 && alloc_deferred (alloc) == 0);

  size = storage_size (file);
  for (int i = 0; i < 2000; i++) {
    CHECK (alloc_reserve (alloc, 1, &run) == 0);
    CHECK (run.zeroed && run.host < size);
    handed_out (&run, OWNED);
  }
  close_image ();
}

static void
test_settled (void)
{
  struct alloc_run run;
  uint64_t mark;

  make_alloc_image (16, 4);
  open_image (true, &without_sync);
  CHECK (alloc_top_up (alloc) == 4);    /* nothing is used: nothing is raised */
  CHECK (!refcount_is_dirty (refcounts));
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK (run.zeroed && !run.settled);
  mark = alloc_top_up (alloc);
  write_counts ();
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK (!run.settled);                 /* not yet known to be durable */
  alloc_settle (alloc, mark);
  CHECK (alloc_reserve (alloc, 2, &run) == 0);
  CHECK (run.settled && run.zeroed && run.clusters == 2);
  /* Tables, too; and what comes back is not. */
  CHECK (alloc_reserve_table (alloc, &run) == 0);
  CHECK (run.settled);
  alloc_abort_table (alloc, &run);
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK (!run.settled && !run.zeroed);
  /* What was raised after the mark is not settled with it. */
  mark = alloc_top_up (alloc);
  write_counts ();
  do
    CHECK (alloc_reserve (alloc, 40, &run) == 0);
  while ((run.host >> bits) < mark);
  alloc_settle (alloc, mark);
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK (run.zeroed && !run.settled);
  close_image ();
}

/* A mark says nothing of a reserve that was made after the file was cut: a reader's
 * flush may end after the last writer has left and another has come. */
static void
test_stale_mark (void)
{
  struct alloc_run run;
  uint64_t mark;

  make_alloc_image (16, 4);
  open_image (true, &without_sync);
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  mark = alloc_top_up (alloc);
  CHECK (alloc_free_begin (alloc, 1) == 0);
  alloc_free_run (alloc, run.host, run.clusters);
  alloc_free_end (alloc, 0);
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
  CHECK (alloc_give_back (alloc) == 0);
  CHECK (alloc_trim_file (alloc) == 0);
  /* The next writer's reserve lies where the old one was. */
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK ((run.host >> bits) < mark && !run.settled);
  alloc_settle (alloc, mark);
  CHECK (alloc_reserve (alloc, 1, &run) == 0);
  CHECK ((run.host >> bits) < mark && !run.settled);
  close_image ();
}

/* What a request may still be reading is not cut off. */
static void
test_trim (void)
{
  struct epoch_section section;
  struct alloc_run run;
  uint64_t size;
  char c;

  make_alloc_image (16, 4);
  open_image (false, &without_sync);
  reset_model ();
  size = storage_size (file);
  CHECK (alloc_reserve (alloc, 3, &run) == 0);
  handed_out (&run, OWNED);
  section = epoch_enter (epoch);
  free_some (1);
  free_some (100);
  checkpoint (true);
  CHECK (alloc_give_back (alloc) == 0);
  CHECK (alloc_deferred (alloc) == UINT64_C (3) << bits);
  write_counts ();
  CHECK (alloc_trim_file (alloc) == 0);
  CHECK (storage_size (file) == run.host + (UINT64_C (3) << bits));
  CHECK (storage_read (file, &c, 1, run.host + (2 << bits) + 100) == 0);
  CHECK (c == 'x');
  epoch_leave (epoch, section);
  quiesce ();
  CHECK (storage_size (file) == size);
  close_image ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  image_begin ("alloc");

  test_settled ();
  test_stale_mark ();
  test_trim ();
  test_holes ();
  test_forgotten ();
  test_crowd ();
  test_model (16, 4, true);
  test_model (12, 4, false);
  test_model (9, 6, true);
  test_growth (12, 4, SIZE_MAX);
  test_growth (12, 4, 5);

  image_end ();
  return 0;
}
