/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator, when refcounts cannot be read, when there is no memory to read them, and
 * when they are wrong: what cannot be done fails and changes nothing, so it succeeds the
 * next time; no cluster is given to two owners, and none that contains metadata.  What
 * cannot be taken back is leaked, and nothing else.
 *
 * The image is so large that not all refcount blocks are kept in memory: after others
 * were used, a block has to be read again.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "space/freeset.h"
#include "lib/alloc-image.h"
#include "lib/allocations.h"
#include "lib/nocalloc.h"
#include "lib/shortage.h"

/* 64 clusters in a block, and 4096 blocks are kept. */
#define BITS 9
#define PER_BLOCK 64u
#define KEPT 4096u
#define LARGE (UINT64_C (4400) * PER_BLOCK)

/* --- the host --- */

static int fail_reads, fail_growth;     /* errno, or 0 */
static unsigned nr_syncs, failing_sync; /* from 1; 0: none */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  errno = op == STORAGE_OP_READ ? fail_reads : op == STORAGE_OP_TRUNCATE ? fail_growth
    : op == STORAGE_OP_SYNC && ++nr_syncs == failing_sync ? EIO : 0;
  if (errno)
    return -1;
  return op == STORAGE_OP_SYNC; /* the host need not sync for us */
}

static const struct storage_hooks hooks = { .before = before };

/* --- what is ours --- */

static unsigned char owners[2 * LARGE]; /* references to each cluster */

static void
take (uint64_t host, uint64_t n)
{
  for (uint64_t c = host >> BITS; c < (host >> BITS) + n; c++) {
    CHECK (c < sizeof owners && c >= 4 && owners[c] == 0);
    CHECK (overlap_find (overlap, c << BITS, 1) == OVERLAP_NONE);
    owners[c]++;
  }
}

static void
drop (uint64_t host, uint64_t n)
{
  for (uint64_t c = host >> BITS; c < (host >> BITS) + n; c++)
    owners[c]--;
}

/* Returns how many references are counted that nobody has. */
static uint64_t
count_leaks (void)
{
  uint64_t value, end, leaks = 0;

  CHECK (refcount_end (refcounts, &end) == 0 && end <= sizeof owners);
  for (uint64_t c = 4; c < end; c++) {
    CHECK (refcount_get (refcounts, c, &value) == 0 && value >= owners[c]);
    if (overlap_find (overlap, c << BITS, 1) == OVERLAP_NONE)
      leaks += value - owners[c];
  }
  return leaks;
}

static struct alloc_run
reserve (uint64_t n)
{
  struct alloc_run run;

  CHECK (alloc_reserve (alloc, n, &run) == 0);
  take (run.host, run.clusters);
  return run;
}

/* --- which blocks are in memory --- */

static void
open_small (void)
{
  memset (owners, 0, sizeof owners);
  make_alloc_image (BITS, 6);
  open_image (true, &hooks);
}

static void
open_large (void)
{
  open_small ();
  for (uint64_t n = 0; n < LARGE; n += reserve (LARGE - n).clusters)
    ;
  write_counts ();
}

/* Other blocks take the place of those that were used last. */
static void
lose_blocks (void)
{
  uint64_t value;

  write_counts ();
  for (uint64_t c = 0; c <= KEPT; c++)
    CHECK (refcount_get (refcounts, c * PER_BLOCK, &value) == 0);
}

/* They cannot go to make room for others, either. */
static void
keep_blocks_busy (int by)
{
  for (uint64_t c = 0; c <= KEPT; c++)
    CHECK ((by > 0 ? refcount_inc (refcounts, c * PER_BLOCK, 1)
            : refcount_dec (refcounts, c * PER_BLOCK, 1, NULL, NULL)) == 0);
}

/* --- calls that fail --- */

#define FAILS(call, err)                        \
  do {                                          \
    const unsigned long errors_ = error_count (); \
    quiet_errors = true;                        \
    errno = 0;                                  \
    CHECK ((call) == -1 && errno == (err));     \
    CHECK (error_count () > errors_);           \
    quiet_errors = false;                       \
  } while (0)

/* The blocks have to be read: that fails, or there is no memory for it. */
#define FAILS_WITHOUT_BLOCKS(call)              \
  do {                                          \
    lose_blocks ();                             \
    fail_reads = EIO;                           \
    FAILS (call, EIO);                          \
    fail_reads = 0;                             \
    lose_blocks ();                             \
    keep_blocks_busy (1);                       \
    no_memory = true;                           \
    FAILS (call, ENOMEM);                       \
    no_memory = false;                          \
    keep_blocks_busy (-1);                      \
  } while (0)

/* --- tests --- */

/* The clusters between those that were allocated last and the end of the file. */
static uint64_t
left_in_reserve (void)
{
  struct alloc_stats stats;

  alloc_get_stats (alloc, &stats);
  return (storage_size (file) - stats.high_water) >> BITS;
}

/* Refcount blocks for a longer file do not fit into what is left of the reserve. */
static void
test_extension (void)
{
  struct alloc_stats stats;
  struct alloc_run run;

  open_large ();
  while (left_in_reserve () != 1)
    reserve (left_in_reserve () > 1 ? left_in_reserve () - 1 : 1);
  lose_blocks ();
  keep_blocks_busy (1);
  no_memory = true;
  FAILS (alloc_reserve (alloc, 5 * PER_BLOCK, &run), ENOMEM);
  no_memory = false;
  keep_blocks_busy (-1);
  reserve (5 * PER_BLOCK);

  /* They take the first clusters of the reserve, where others have put metadata. */
  alloc_get_stats (alloc, &stats);
  CHECK (overlap_add (overlap, stats.high_water, 1, OVERLAP_L1) == 0);
  FAILS (alloc_reserve (alloc, left_in_reserve () + 1000, &run), EUCLEAN);
  CHECK (strstr (last_error (), "new refcount blocks"));
  overlap_remove (overlap, stats.high_water, 1);
  reserve (left_in_reserve () + 1000);
  close_image ();
}

/* Something beyond the end of the file has references already. */
static void
test_counts_beyond_end (void)
{
  struct alloc_run run;
  uint64_t wrong;

  open_large ();
  while (left_in_reserve () < 500)
    reserve (left_in_reserve () + 1);
  /* One block counts the last clusters and what comes next. */
  wrong = storage_size (file) >> BITS;
  CHECK (wrong % PER_BLOCK != 0);
  CHECK (refcount_inc (refcounts, wrong, 1) == 0);
  FAILS (alloc_reserve (alloc, left_in_reserve () + 1000, &run), EUCLEAN);
  CHECK (strstr (last_error (), "should be free"));
  CHECK (refcount_dec (refcounts, wrong, 1, NULL, NULL) == 0);
  reserve (left_in_reserve () + 1000);
  close_image ();
}

/* R5: others have put metadata where the next clusters lie. */
static void
test_metadata_in_reserve (void)
{
  struct alloc_run run, next;
  struct alloc_stats stats;

  open_large ();
  reserve (1);
  alloc_get_stats (alloc, &stats);
  CHECK (left_in_reserve () > 0);
  CHECK (overlap_add (overlap, stats.high_water, 1, OVERLAP_L1) == 0);
  FAILS (alloc_reserve (alloc, 1, &run), EUCLEAN);
  overlap_remove (overlap, stats.high_water, 1);
  run = reserve (1);
  CHECK (run.host == stats.high_water);

  CHECK (alloc_reserve_table (alloc, &run) == 0);
  CHECK (overlap_add (overlap, run.host + (1 << BITS), 1, OVERLAP_L1) == 0);
  FAILS (alloc_reserve_table (alloc, &next), EUCLEAN);
  overlap_remove (overlap, run.host + (1 << BITS), 1);
  CHECK (alloc_reserve_table (alloc, &next) == 0);
  CHECK (next.host == run.host + (1 << BITS));
  close_image ();
}

static void
test_bytes (void)
{
  struct alloc_piece p[3] = { { 0, 300 }, { 0, 300 }, { 0, 300 } };
  uint64_t leaks;

  open_large ();
  CHECK (alloc_bytes (alloc, p, 1) == 0);
  owners[p[0].host >> BITS]++;
  FAILS_WITHOUT_BLOCKS (alloc_bytes (alloc, p + 1, 2));
  CHECK (alloc_bytes (alloc, p + 1, 2) == 0);
  CHECK (p[1].host == p[0].host + 300 && p[2].host == p[1].host + 300);
  leaks = count_leaks ();
  alloc_abort_bytes (alloc, p + 2, 1);
  CHECK (alloc_bytes (alloc, p + 2, 1) == 0);

  /* What cannot be taken back is leaked. */
  lose_blocks ();
  fail_reads = EIO;
  quiet_errors = true;
  alloc_abort_bytes (alloc, p + 2, 1);
  quiet_errors = false;
  fail_reads = 0;
  owners[p[1].host >> BITS]++;
  owners[(p[1].host + 299) >> BITS]++;
  CHECK (count_leaks () <= leaks);

  /* No place for more, in the middle of a call. */
  fail_growth = ENOSPC;
  quiet_errors = true;
  do {
    p[0].bytes = p[1].bytes = 512;
  } while (alloc_bytes (alloc, p, 2) == 0);
  CHECK (errno == ENOSPC);
  quiet_errors = false;
  fail_growth = 0;
  CHECK (alloc_bytes (alloc, p, 2) == 0);
  close_image ();
}

static void
test_end_of_session (void)
{
  uint64_t size, leaks;

  open_large ();
  reserve (1);
  size = storage_size (file);
  leaks = count_leaks ();
  CHECK (left_in_reserve () > 0 && leaks > 0);
  lose_blocks ();
  keep_blocks_busy (1);
  no_memory = true;
  FAILS (alloc_give_back (alloc), ENOMEM);
  no_memory = false;
  keep_blocks_busy (-1);
  CHECK (count_leaks () == leaks);
  CHECK (alloc_give_back (alloc) == 0);
  CHECK (count_leaks () == 0);
  write_counts ();
  FAILS_WITHOUT_BLOCKS (alloc_trim_file (alloc));
  CHECK (storage_size (file) == size);
  CHECK (alloc_trim_file (alloc) == 0 && storage_size (file) < size);
  close_image ();

  /* What cannot be given back is leaked, once. */
  open_large ();
  reserve (1);
  lose_blocks ();
  fail_reads = EIO;
  quiet_errors = true;
  CHECK (alloc_give_back (alloc) == 0);
  quiet_errors = false;
  fail_reads = 0;
  CHECK (count_leaks () > 0);
  CHECK (alloc_give_back (alloc) == 0);
  close_image ();
}

/* Metadata comes to where freed clusters wait. */
static void
test_reaping (void)
{
  struct epoch_section section;
  struct alloc_run run, other;

  open_small ();
  run = reserve (3);
  other = reserve (3);
  section = epoch_enter (epoch);
  CHECK (alloc_free_begin (alloc, 2) == 0);
  alloc_free_run (alloc, run.host, 3);
  alloc_free_run (alloc, other.host, 3);
  alloc_free_end (alloc, 0);
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
  CHECK (alloc_deferred (alloc) == 6 << BITS);
  CHECK (overlap_add (overlap, run.host, 1, OVERLAP_L1) == 0);
  CHECK (alloc_reap (alloc) == 0 && alloc_deferred (alloc) == 6 << BITS);
  epoch_leave (epoch, section);
  FAILS (alloc_reap (alloc), EUCLEAN);
  CHECK (alloc_deferred (alloc) == 0);
  drop (run.host, 3);
  drop (other.host, 3);
  for (int i = 0; i < 100; i++)
    reserve (1);
  close_image ();
}

/* Gives up N clusters, the first of those that are ours from FIRST on.  Returns where it
 * ended. */
static uint64_t
free_from (uint64_t first, uint64_t n)
{
  while (n > 0) {
    uint64_t len = 0;

    CHECK (first < sizeof owners);
    if (owners[first] == 0) {
      first++;
      continue;
    }
    while (len < n && owners[first + len] > 0)
      len++;
    CHECK (alloc_free_begin (alloc, 1) == 0);
    alloc_free_run (alloc, first << BITS, len);
    alloc_free_end (alloc, 0);
    drop (first << BITS, len);
    first += len;
    n -= len;
  }
  return first;
}

/* A checkpoint that cannot lower counts keeps what was freed, for the next one. */
static void
test_frees (void)
{
  uint64_t leaks;

  open_large ();
  reserve (1);
  leaks = count_leaks ();
  free_from (KEPT * PER_BLOCK + PER_BLOCK, 1000);
  CHECK (alloc_deferred (alloc) == 1000 << BITS);
  lose_blocks ();
  keep_blocks_busy (1);
  quiet_errors = no_memory = true;
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
  quiet_errors = no_memory = false;
  keep_blocks_busy (-1);
  CHECK (count_leaks () == leaks + 1000);
  CHECK (alloc_deferred (alloc) == 1000 << BITS);
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
  CHECK (count_leaks () == leaks);
  CHECK (alloc_reap (alloc) == 0 && alloc_deferred (alloc) == 0);
  close_image ();
}

/* What a crash leaks is freed before a checkpoint, meanwhile, or by the one before. */
static void
test_wants_release (void)
{
  const uint64_t some = LARGE / 4, limit = UINT64_C (128) << 20;
  struct alloc_frees *taken;
  uint64_t at;

  CHECK ((3 * some) << BITS < limit && (4 * some) << BITS > limit);
  open_large ();
  reserve (some);
  at = free_from (0, 2 * some);
  CHECK (!alloc_wants_release (alloc));
  taken = alloc_take_frees (alloc);
  at = free_from (at, some);
  CHECK (!alloc_wants_release (alloc));
  at = free_from (at, some);
  CHECK (alloc_wants_release (alloc));
  /* It failed; then the next one succeeds. */
  CHECK (alloc_frees_done (alloc, taken, false) == 0);
  CHECK (alloc_wants_release (alloc));
  taken = alloc_take_frees (alloc);
  CHECK (alloc_wants_release (alloc));
  CHECK (alloc_frees_done (alloc, taken, true) == 0);
  CHECK (alloc_wants_release (alloc));
  CHECK (alloc_frees_done (alloc, alloc_take_frees (alloc), true) == 0);
  CHECK (!alloc_wants_release (alloc));
  close_image ();
}

/* A run that has to be split needs memory. */
static void
test_freeset (void)
{
  struct freeset set = { 0 };
  uint64_t first, len;

  CHECK (freeset_add (&set, 10, 10) == 0);
  no_memory = true;
  CHECK (freeset_remove (&set, 12, 3) == -1);
  no_memory = false;
  CHECK (set.clusters == 10 && set.runs == 1);
  CHECK (freeset_find (&set, 1, &first, &len) && first == 10 && len == 10);
  CHECK (freeset_remove (&set, 12, 3) == 0 && set.clusters == 7 && set.runs == 2);
  freeset_clear (&set);
}

/* New blocks are in place, but not all entries that name them: sync number K fails. */
static bool
sync_fails (unsigned k)
{
  struct refcount_moved moved;
  uint64_t leaks;
  int r;

  open_large ();
  /* Blocks that are counted by others, which are new themselves. */
  for (int i = 0; i < 2; i++)
    reserve (left_in_reserve () + PER_BLOCK);
  leaks = count_leaks ();
  nr_syncs = 0;
  failing_sync = k;
  quiet_errors = true;
  errno = 0;
  r = refcount_write (refcounts, &moved);
  quiet_errors = false;
  failing_sync = 0;
  CHECK (r == (k <= nr_syncs ? -1 : 0));
  if (r == -1)
    CHECK (errno == EIO && refcount_is_dirty (refcounts));
  CHECK (count_leaks () == leaks);
  write_counts ();
  close_image ();
  return r == -1;
}

static void
test_syncs (void)
{
  unsigned k = 1;

  while (sync_fails (k))
    k++;
  CHECK (k > 2);
}

/* Each allocation fails while the refcount table becomes longer, and while it is
 * opened. */
static void
test_no_memory (void)
{
  struct refcounts *other;
  struct alloc_run run;
  bool met = true;
  int r;

  quiet_errors = true;
  for (uint64_t n = 0; met; n++) {
    open_small ();
    reserve (60 * PER_BLOCK);
    shortage_begin ((struct shortage) { n, 1 });
    errno = 0;
    r = alloc_reserve (alloc, 100 * PER_BLOCK, &run);
    CHECK (r == 0 || errno == ENOMEM);
    met = shortage_end () > 0;
    if (r == 0)
      take (run.host, run.clusters);
    reserve (100 * PER_BLOCK);
    write_counts ();
    close_image ();
  }
  open_large ();
  met = true;
  for (uint64_t n = 0; met; n++) {
    struct overlap *set = overlap_new (BITS);

    CHECK (set != NULL);
    shortage_begin ((struct shortage) { n, 1 });
    errno = 0;
    other = refcount_open (file, &header, set);
    CHECK (other || errno == ENOMEM);
    met = shortage_end () > 0;
    refcount_close (other);
    overlap_free (set);
  }
  quiet_errors = false;
  close_image ();
}

static void
test_table_overlaps (void)
{
  struct refcounts *other;

  open_small ();
  quiet_errors = true;
  overlap_remove (overlap, header.reftable_offset, 1 << BITS);
  CHECK (overlap_add (overlap, header.reftable_offset, 1, OVERLAP_L1) == 0);
  errno = 0;
  other = refcount_open (file, &header, overlap);
  quiet_errors = false;
  CHECK (other == NULL && errno == EUCLEAN);
  CHECK (strstr (last_error (), "overlaps the"));
  close_image ();
}

int
main (void)
{
  image_begin ("alloc-faults");
  test_extension ();
  test_counts_beyond_end ();
  test_metadata_in_reserve ();
  test_bytes ();
  test_end_of_session ();
  test_reaping ();
  test_frees ();
  test_wants_release ();
  test_freeset ();
  test_syncs ();
  test_no_memory ();
  test_table_overlaps ();
  image_end ();
  return 0;
}
