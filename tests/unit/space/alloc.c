/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator: no cluster is handed out twice, none that holds metadata, none
 * before the removal of its last pointer is durable and all earlier requests have
 * ended; what is said to read as zeros does; the file does not grow for ever.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/alloc-image.h"

static struct rng rng;
static int fail_truncate;       /* errno, or 0 */
static uint64_t size_limit = UINT64_MAX;        /* larger: EFBIG */
static atomic_ulong punches;

static int
before (void *opaque, const char *name, enum hostfile_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  (void) opaque; (void) name; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  if (op == HOSTFILE_OP_TRUNCATE && fail_truncate) {
    errno = fail_truncate;
    return -1;
  }
  if (op == HOSTFILE_OP_TRUNCATE && offset > size_limit) {
    errno = EFBIG;
    return -1;
  }
  punches += op == HOSTFILE_OP_PUNCH;
  return op == HOSTFILE_OP_SYNC;        /* the host need not sync for us */
}

static const struct hostfile_hooks hooks = { .before = before };

/* --- memory that fails (the linker's --wrap) --- */

static bool no_memory;

extern void *__real_calloc (size_t, size_t);
extern void *__wrap_calloc (size_t, size_t);

void *
__wrap_calloc (size_t n, size_t size)
{
  if (no_memory) {
    errno = ENOMEM;
    return NULL;
  }
  return __real_calloc (n, size);
}

/* --- the model --- */

enum state { FREE, OWNED, TABLE, PENDING, WAITING };

#define MAX_CLUSTERS 60000
static struct cluster {
  enum state state;
  uint64_t freed;               /* when the removal became durable */
  bool used;                    /* has ever been handed out */
} clusters[MAX_CLUSTERS];
static uint64_t now;            /* a step of the test */
static uint64_t durable;        /* the last mark that was settled */

#define MAX_RUNS 4000
static struct alloc_run runs[MAX_RUNS];
static bool is_table[MAX_RUNS];
static size_t nruns;

#define MAX_PINS 8
static struct { struct grace_pin pin; uint64_t since; } pins[MAX_PINS];
static size_t npins;

static void
reset_model (void)
{
  memset (clusters, 0, sizeof clusters);
  nruns = npins = 0;
  now = durable = 0;
}

static bool
reads_zero (uint64_t offset, uint64_t count)
{
  unsigned char *buf = malloc (count);
  bool zero;

  CHECK (buf && hostfile_read (file, buf, count, offset) == 0);
  zero = buf[0] == 0 && memcmp (buf, buf + 1, count - 1) == 0;
  free (buf);
  return zero;
}

/* Judges what the allocator gave us, and dirties it. */
static void
handed_out (const struct alloc_run *run, enum state state)
{
  const uint64_t first = run->host >> bits;

  CHECK ((run->host & ((UINT64_C (1) << bits) - 1)) == 0);
  CHECK (first > 0 && run->clusters > 0);
  CHECK (first + run->clusters <= MAX_CLUSTERS);
  for (uint64_t c = first; c < first + run->clusters; c++) {
    uint64_t count;

    CHECK (clusters[c].state == FREE || clusters[c].state == WAITING);
    if (clusters[c].state == WAITING)
      for (size_t i = 0; i < npins; i++)
        CHECK (pins[i].since > clusters[c].freed);      /* R4 (b) */
    CHECK (overlap_find (overlap, c << bits, 1) ==
           (state == TABLE ? OVERLAP_L2 : OVERLAP_NONE));
    CHECK (refcount_get (refcounts, c, &count) == 0 && count == 1);
    CHECK (!run->settled || (!clusters[c].used && c < durable));
    clusters[c].state = state;
    clusters[c].used = true;
  }
  CHECK (run->zeroed || !run->settled);
  if (run->zeroed)
    CHECK (reads_zero (run->host, run->clusters << bits));
  if (run->settled)
    CHECK (run->host + (run->clusters << bits) <= hostfile_size (file));
  for (uint64_t c = 0; c < run->clusters; c++)
    CHECK (hostfile_write (file, "x", 1,
                           run->host + (c << bits) + 100) == 0);
  CHECK (nruns < MAX_RUNS);
  is_table[nruns] = state == TABLE;
  runs[nruns++] = *run;
}

static void
set_state (const struct alloc_run *run, enum state from, enum state to)
{
  for (uint64_t c = run->host >> bits;
       c < (run->host >> bits) + run->clusters; c++) {
    CHECK (clusters[c].state == from);
    clusters[c].state = to;
    clusters[c].freed = now;
  }
}

/* One of our runs, or (often) a part of one. */
static struct alloc_run
take_run (bool *table)
{
  const size_t i = rng_below (&rng, nruns);
  struct alloc_run run = runs[i];
  const uint64_t cut = rng_below (&rng, run.clusters);

  *table = is_table[i];
  if (cut > 0 && rng_below (&rng, 2)) {
    runs[i].clusters = cut;
    run.host += cut << bits;
    run.clusters -= cut;
  }
  else {
    runs[i] = runs[--nruns];
    is_table[i] = is_table[nruns];
  }
  return run;
}

static void
free_some (unsigned n)
{
  unsigned unused = 0;

  CHECK (alloc_free_begin (alloc, n + 2) == 0);
  for (unsigned i = 0; i < n; i++)
    if (nruns > 0) {
      bool table;
      const struct alloc_run run = take_run (&table);

      alloc_free_run (alloc, run.host, run.clusters);
      set_state (&run, table ? TABLE : OWNED, PENDING);
    }
    else
      unused++;
  alloc_free_end (alloc, unused + 2);
}

static void
checkpoint (bool ok)
{
  struct alloc_frees *frees = alloc_take_frees (alloc);
  const uint64_t mark = alloc_top_up (alloc);

  if (!ok) {
    CHECK (alloc_frees_done (alloc, frees, false) == 0);
    return;
  }
  write_counts ();
  alloc_settle (alloc, mark);
  durable = mark;
  now++;
  CHECK (alloc_frees_done (alloc, frees, true) == 0);
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++)
    if (clusters[c].state == PENDING) {
      clusters[c].state = WAITING;
      clusters[c].freed = now;
    }
}

/* Counts are 1 for what is ours or metadata, 0 for all else.  (A reserve must have been
 * given back.) */
static void
compare_counts (void)
{
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++) {
    const bool mine = clusters[c].state == OWNED ||
      clusters[c].state == TABLE || clusters[c].state == PENDING;
    uint64_t count;

    CHECK (refcount_get (refcounts, c, &count) == 0);
    CHECK (count ==
           (mine || overlap_find (overlap, c << bits, 1) != OVERLAP_NONE));
  }
}

/* As at the end of a session. */
static void
quiesce (void)
{
  uint64_t end;

  while (npins > 0)
    grace_leave (grace, pins[--npins].pin);
  checkpoint (true);
  end_session ();
  durable = 0;
  compare_counts ();
  CHECK (refcount_end (refcounts, &end) == 0);
  CHECK (hostfile_size (file) >= end << bits);
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++)
    if (c << bits >= hostfile_size (file)) {
      CHECK (clusters[c].state != OWNED && clusters[c].state != TABLE);
      clusters[c].used = false; /* cut off: like new */
    }
}

static void
random_step (void)
{
  struct alloc_run run;
  bool table;

  now++;
  switch (rng_below (&rng, 20)) {
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
    if (npins < MAX_PINS) {
      pins[npins].pin = grace_enter (grace);
      pins[npins++].since = ++now;
    }
    break;
  case 17:
    if (npins > 0) {
      const size_t i = rng_below (&rng, npins);

      grace_leave (grace, pins[i].pin);
      pins[i] = pins[--npins];
    }
    break;
  case 18:
    CHECK (alloc_reap (alloc) == 0);
    break;
  case 19:
    if (rng_below (&rng, 50) == 0)
      quiesce ();
    break;
  }
}

static void
test_model (unsigned cluster_bits, unsigned order, bool discard)
{
  struct alloc_run run;
  struct alloc_stats stats;

  make_alloc_image (cluster_bits, order);
  open_image (discard, &hooks);
  if (rng_below (&rng, 2))
    alloc_set_max_idle (alloc, 1 + rng_below (&rng, 20));
  reset_model ();
  for (int i = 0; i < 3000; i++)
    random_step ();
  quiesce ();
  alloc_get_stats (alloc, &stats);
  CHECK (stats.allocated > 0 && stats.freed > 0 && stats.extended > 0);

  /* A new session finds what the old one left free, at most a block at a time. */
  close_image ();
  open_image (discard, &hooks);
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
  open_image (true, &hooks);
  alloc_set_max_idle (alloc, max_idle);
  reset_model ();
  for (int round = 0; round < 300; round++) {
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
  CHECK (hostfile_size (file) >> bits <= limit);
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
  open_image (false, &hooks);
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
  size = hostfile_size (file);
  close_image ();
  open_image (false, &hooks);
  for (int i = 0; i < 1000; i++) {
    CHECK (alloc_reserve (alloc, i < 700 ? 8 : 1, &run) == 0);
    CHECK (run.clusters == 1 && !run.zeroed);
    handed_out (&run, OWNED);
  }
  CHECK (hostfile_size (file) == size);
  CHECK (alloc_reserve (alloc, 8, &run) == 0);
  CHECK (run.clusters == 8 && run.zeroed && run.host >= size);
  close_image ();
}

static void
release (const struct alloc_run *run)
{
  CHECK (alloc_free_begin (alloc, 1) == 0);
  alloc_free_run (alloc, run->host, run->clusters);
  set_state (run, OWNED, PENDING);
}

/* Of more holes than may be known each is found in the session that made it, and the
 * longest is known at once. */
static void
test_forgotten (void)
{
  struct alloc_run run, last;
  unsigned beyond = 0;

  make_alloc_image (9, 4);
  open_image (true, &hooks);
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

static void
test_settled (void)
{
  struct alloc_run run;
  uint64_t mark;

  make_alloc_image (16, 4);
  open_image (true, &hooks);
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
  open_image (true, &hooks);
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

/* Frees a part of a run. */
static void
free_part (const struct alloc_run *run, uint64_t from, uint64_t n)
{
  CHECK (alloc_free_begin (alloc, 1) == 0);
  alloc_free_run (alloc, run->host + (from << bits), n);
  alloc_free_end (alloc, 0);
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
}

/* What is cut off is idle no more, also when there was no memory to note down what waits:
 * a table there would lie behind the end of the file. */
static void
test_cut_without_memory (void)
{
  struct alloc_run run;

  make_alloc_image (12, 4);
  open_image (true, &hooks);
  CHECK (alloc_reserve (alloc, 100, &run) == 0 && run.clusters == 100);
  no_memory = true;
  free_part (&run, 10, 5);
  no_memory = false;
  free_part (&run, 50, 50);
  end_session ();
  CHECK (hostfile_size (file) == run.host + (50 << bits));
  for (int i = 0; i < 20; i++) {
    CHECK (alloc_reserve (alloc, 3, &run) == 0);
    CHECK (hostfile_size (file) >= run.host + (run.clusters << bits));
  }
  close_image ();
}

/* What a request may still be reading is not cut off. */
static void
test_trim (void)
{
  struct grace_pin pin;
  struct alloc_run run;
  uint64_t size;
  char c;

  make_alloc_image (16, 4);
  open_image (false, &hooks);
  reset_model ();
  size = hostfile_size (file);
  CHECK (alloc_reserve (alloc, 3, &run) == 0);
  handed_out (&run, OWNED);
  pin = grace_enter (grace);
  free_some (1);
  free_some (100);
  checkpoint (true);
  CHECK (alloc_give_back (alloc) == 0);
  CHECK (alloc_quarantined (alloc) == UINT64_C (3) << bits);
  write_counts ();
  CHECK (alloc_trim_file (alloc) == 0);
  CHECK (hostfile_size (file) == run.host + (UINT64_C (3) << bits));
  CHECK (hostfile_read (file, &c, 1, run.host + (2 << bits) + 100) == 0);
  CHECK (c == 'x');
  grace_leave (grace, pin);
  quiesce ();
  CHECK (hostfile_size (file) == size);
  close_image ();
}

static void
test_enospc (void)
{
  struct alloc_run run, first;
  unsigned long errors;
  uint64_t size, end;

  make_alloc_image (16, 4);
  open_image (false, &hooks);
  size = hostfile_size (file);
  quiet_errors = true;
  fail_truncate = EFBIG;
  errors = error_count ();
  CHECK (alloc_reserve (alloc, 3, &run) == -1 && errno == ENOSPC);
  CHECK (error_count () == errors + 1);
  CHECK (!refcount_is_dirty (refcounts) && hostfile_size (file) == size);
  fail_truncate = 0;
  CHECK (alloc_reserve (alloc, 3, &first) == 0 && first.clusters == 3);

  /* Small change is taken when there is nothing else. */
  fail_truncate = ENOSPC;
  while (alloc_reserve (alloc, 1, &run) == 0)
    ;
  CHECK (errno == ENOSPC);
  first.clusters = 1;
  alloc_abort (alloc, &first);
  CHECK (alloc_reserve (alloc, 20, &run) == 0);
  CHECK (run.host == first.host && run.clusters == 1);
  fail_truncate = 0;

  /* R5: wrong refcounts are noticed before harm is done. */
  alloc_abort (alloc, &run);
  CHECK (overlap_add (overlap, run.host, 1, OVERLAP_L1) == 0);
  CHECK (alloc_reserve (alloc, 1, &run) == -1 && errno == EUCLEAN);
  overlap_remove (overlap, first.host, 1);
  CHECK (refcount_inc (refcounts, first.host >> bits, 1) == 0);
  CHECK (alloc_reserve (alloc, 1, &run) == -1 && errno == EUCLEAN);
  CHECK (refcount_dec (refcounts, first.host >> bits, 1, NULL, NULL) == 0);
  CHECK (alloc_reserve (alloc, 1, &run) == 0 && run.host == first.host);

  /* Freed metadata is neither punched nor used. */
  CHECK (alloc_free_begin (alloc, 1) == 0);
  alloc_free_run (alloc, header.l1_offset, 1);
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == -1);
  CHECK (errno == EUCLEAN);
  quiet_errors = false;
  CHECK (alloc_quarantined (alloc) == 0);
  CHECK (alloc_reap (alloc) == 0);
  CHECK (refcount_end (refcounts, &end) == 0);
  close_image ();
}

/* Takes clusters, up to N at a time, to the last one. */
static void
take_all (uint64_t n)
{
  struct alloc_run run;

  while (alloc_reserve (alloc, n, &run) == 0)
    handed_out (&run, OWNED);
  CHECK (errno == ENOSPC);
}

/* Where the host lets the file grow only so far, all of that can be used, and one line is
 * written for each request that gets nothing: none for the reserve. */
static void
test_limit (unsigned cluster_bits, uint64_t n)
{
  unsigned long errors;
  uint64_t limit, end, used;

  make_alloc_image (cluster_bits, 4);
  open_image (false, &hooks);
  reset_model ();
  quiet_errors = true;
  for (int step = 0; step < 8; step++) {
    limit = hostfile_size (file) + rng_below (&rng, UINT64_C (3) << 20);
    size_limit = limit;
    errors = error_count ();
    if (rng_below (&rng, 2))
      checkpoint (true);
    CHECK (error_count () == errors);
    take_all (n);
    CHECK (error_count () == errors + 1);
    checkpoint (true);
    CHECK (error_count () == errors + 1);
    /* What is left may do for refcount blocks, but not for what they would count. */
    CHECK (refcount_end (refcounts, &end) == 0);
    CHECK (refcount_extend_cost (refcounts, end, end, 1, &used) == 0);
    CHECK ((limit >> bits) - end <= used);
  }
  size_limit = UINT64_MAX;
  quiet_errors = false;
  quiesce ();
  close_image ();
}

/* When the file can't grow and there is no memory to note down what is free, that
 * ends. */
static void
test_full_without_memory (void)
{
  struct alloc_run run, last;

  make_alloc_image (12, 4);
  open_image (false, &hooks);
  reset_model ();
  for (int i = 0; i < 3000; i++) {
    CHECK (alloc_reserve (alloc, 1, &last) == 0);
    handed_out (&last, OWNED);
  }
  for (size_t i = 0; i < 1000; i++)
    release (&runs[i * 2]);
  checkpoint (true);
  end_session ();
  close_image ();

  open_image (false, &hooks);
  quiet_errors = true;
  fail_truncate = ENOSPC;
  no_memory = true;
  for (int i = 0; i < 3; i++)
    CHECK (alloc_reserve (alloc, 1, &run) == -1 && errno == ENOMEM);
  no_memory = false;
  for (int i = 0; i < 1000; i++)
    CHECK (alloc_reserve (alloc, 1, &run) == 0 && run.host < last.host);
  CHECK (alloc_reserve (alloc, 1, &run) == -1 && errno == ENOSPC);
  fail_truncate = 0;
  quiet_errors = false;
  close_image ();
}

/* --- threads --- */

#define NTHREADS 4
static atomic_int owner[MAX_CLUSTERS];
static pthread_mutex_t one_checkpoint = PTHREAD_MUTEX_INITIALIZER;

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
    const struct grace_pin pin = grace_enter (grace);

    if (n < 50 && rng_below (&r, 2)) {
      struct alloc_run *run = &mine[n];

      table[n] = rng_below (&r, 8) == 0;
      CHECK ((table[n] ? alloc_reserve_table (alloc, run)
                       : alloc_reserve (alloc, 1 + rng_below (&r, 20), run))
             == 0);
      n++;
      for (uint64_t c = 0; c < run->clusters; c++)
        CHECK (atomic_exchange (&owner[(run->host >> bits) + c], me) == 0);
    }
    else if (n > 0) {
      const size_t k = rng_below (&r, n);
      const struct alloc_run run = mine[k];

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
    grace_leave (grace, pin);
    if (rng_below (&r, 20) == 0)
      checkpoint_in_turn ();
    if (rng_below (&r, 10) == 0)
      CHECK (alloc_reap (alloc) == 0);
  }
  return NULL;
}

static void
test_threads (void)
{
  int ids[NTHREADS];
  uint64_t count, expected;

  make_alloc_image (12, 4);
  open_image (true, &hooks);
  for (int i = 0; i < NTHREADS; i++)
    ids[i] = i + 1;
  run_threads (worker, ids, sizeof ids[0], NTHREADS);
  checkpoint_in_turn ();
  end_session ();
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++) {
    expected = atomic_load (&owner[c]) != 0 ||
      overlap_find (overlap, c << bits, 1) != OVERLAP_NONE;
    CHECK (refcount_get (refcounts, c, &count) == 0 && count == expected);
  }
  CHECK (punches > 0);
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
  test_cut_without_memory ();
  test_enospc ();
  test_limit (16, 1);
  test_limit (12, 100);
  test_limit (9, 300);
  test_full_without_memory ();
  test_holes ();
  test_forgotten ();
  test_model (16, 4, true);
  test_model (12, 4, false);
  test_model (9, 6, true);
  test_growth (12, 4, SIZE_MAX);
  test_growth (12, 4, 5);
  test_threads ();

  image_end ();
  return 0;
}
