/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator without resources: if the host has no space, all existing space can be
 * used and one line reports this; if there is no memory to record free clusters, requests
 * still end; and wrong refcounts are detected before they cause harm.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "lib/alloc-model.h"
#include "lib/nocalloc.h"

static int fail_truncate;       /* errno, or 0 */
static uint64_t size_limit = UINT64_MAX;        /* larger: EFBIG */

static int
before (void *opaque, const char *name, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  (void) opaque; (void) name; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  if (op == STORAGE_OP_TRUNCATE && fail_truncate) {
    errno = fail_truncate;
    return -1;
  }
  if (op == STORAGE_OP_TRUNCATE && offset > size_limit) {
    errno = EFBIG;
    return -1;
  }
  return op == STORAGE_OP_SYNC;        /* the host need not sync for us */
}

static const struct storage_hooks hooks = { .before = before };

/* --- tests --- */

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
  CHECK (storage_size (file) == run.host + (50 << bits));
  for (int i = 0; i < 20; i++) {
    CHECK (alloc_reserve (alloc, 3, &run) == 0);
    CHECK (storage_size (file) >= run.host + (run.clusters << bits));
  }
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
  size = storage_size (file);
  quiet_errors = true;
  fail_truncate = EFBIG;
  errors = error_count ();
  CHECK (alloc_reserve (alloc, 3, &run) == -1 && errno == ENOSPC);
  CHECK (error_count () == errors + 1);
  CHECK (!refcount_is_dirty (refcounts) && storage_size (file) == size);
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
  CHECK (alloc_deferred (alloc) == 0);
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
    limit = storage_size (file) + rng_below (&rng, UINT64_C (3) << 20);
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

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  image_begin ("alloc-full");

  test_cut_without_memory ();
  test_enospc ();
  test_limit (16, 1);
  test_limit (12, 100);
  test_limit (9, 300);
  test_full_without_memory ();

  image_end ();
  return 0;
}
